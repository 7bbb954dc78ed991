//! What makes clips hard: faint objects before patches of warm air that drift by, things in the way, warm things that are no objects, ground that is warmer
//! than people in the sun, a sensor that changes with the months and has its palette turned round in winter.
//!
//! All of it is a function of the seed and the clip, or the camera, in streams of its own: clips that are not hard have the bits they have without it.

use super::raster::{Canvas, Shape};
use super::rng::Draw;
use super::sample_spec::SampleSpec;
use super::thermal::{Exposure, HORIZON, Season, Thing, clouds, depth};

/// Posts and hedges of a camera's place, beside those that every place has.
const OBSTACLES: f32 = 12.0;
/// Most warm things of a clip that are no objects.
const DECOYS: usize = 9;

/// How hard a clip is.
pub(crate) struct Hardship {
    /// Above 0, at most 1.
    strength: f32,
    seed: u64,
    split: String,
    camera: u64,
    serial: u64,
    /// 0 to 1.
    sun: f32,
    /// What the sensor adds to levels, and stretches them by.
    offset: f32,
    gain: f32,
    /// Seed of what drifts by.
    patches: u64,
    inverted: bool,
}

impl Hardship {
    /// Of clip `serial` of a split, in `month` 1 to 12; none without strength.
    pub(crate) fn of(strength: f64, seed: u64, split: &str, [camera, serial, month]: [u32; 3], sun: f64) -> Option<Self> {
        if strength <= 0.0 {
            return None;
        }
        let mut d = Draw::new(seed, &format!("hard {split}"), 0, u64::from(serial));
        let winter = (std::f64::consts::TAU * (f64::from(month) - 1.0) / 12.0).cos();
        Some(Self {
            strength: strength as f32,
            seed,
            split: split.into(),
            camera: camera.into(),
            serial: serial.into(),
            sun: sun as f32,
            offset: (0.12 * winter + d.uniform(-0.05, 0.05)) as f32,
            gain: d.uniform(-0.3, 0.15) as f32,
            patches: d.bits(),
            // From December to February.
            inverted: d.chance(0.5 * strength) && winter > 0.8,
        })
    }

    /// Ground and walls in the sun of a warm month are warmer than who passes by; temperatures lie closer together, and the sensor sees them worse.
    pub(crate) fn weather(&self, s: &mut Season) {
        let sunny = self.strength * self.sun * ((s.air + 6.0) / 33.0).clamp(0.0, 1.0);
        s.ground += 12.0 * sunny;
        s.wall += 8.0 * sunny;
        let more = 0.5 * self.strength * s.span;
        s.black -= 0.44 * more;
        s.span += more;
        s.noise *= 1.0 + self.strength;
    }

    /// Patches of the size of objects move over the ground, `shift` pixels so far and half as many more.
    pub(crate) fn stir(&self, canvas: &mut Canvas, shift: f32) {
        let (width, top) = (canvas.width, (HORIZON * canvas.height as f32) as usize);
        for (i, value) in canvas.value.iter_mut().enumerate().skip(top * width) {
            let (x, y) = ((i % width) as f32, (i / width) as f32);
            let small = clouds(x + 1.5 * shift, 1.5 * y, 14.0, self.patches);
            let large = clouds(x + shift, y, 40.0, self.patches ^ 1);
            *value += self.strength * (3.0 * small + 2.0 * large);
        }
    }

    /// What stands in the way, and what is warm and no object.
    pub(crate) fn things(&self, spec: &SampleSpec, s: &Season) -> Vec<Thing> {
        let mut of_place = Draw::new(self.seed, "obstacles", 0, self.camera);
        let mut of_clip = Draw::new(self.seed, &format!("decoys {}", self.split), 0, self.serial);
        let obstacles = (OBSTACLES * self.strength).round() as usize;
        let decoys = (self.strength * (4 + of_clip.below(DECOYS - 3)) as f32).round() as u64;
        let mut things: Vec<Thing> = (0..obstacles).map(|_| obstacle(spec, s, &mut of_place)).collect();
        // Objects have numbers from 0.
        things.extend((0..decoys).map(|i| self.fade(decoy(spec, s, &mut of_clip), s, 1000 + i)));
        things
    }

    /// The same thing nearer to the ground's temperature; `number` is its own within the clip.
    pub(crate) fn fade(&self, thing: Thing, s: &Season, number: u64) -> Thing {
        let mut d = Draw::new(self.seed, &format!("fade {}", self.split), self.serial, number);
        let kept = 1.0 - self.strength * d.uniform(0.1, 0.65) as f32;
        let parts = thing.parts.into_iter().map(|(shape, value)| (shape, s.ground + (value - s.ground) * kept)).collect();
        Thing { parts, ..thing }
    }

    /// Gain and offset of the month, a pattern of the camera's own, shading, and the palette.
    pub(crate) fn sensor(&self, picture: &mut Exposure, width: usize) {
        let mut d = Draw::new(self.seed, "pattern", 0, self.camera);
        let mut lines = |count: usize, spread: f64| -> Vec<f32> { (0..count).map(|_| (spread * d.normal()) as f32).collect() };
        let (columns, rows) = (lines(width, 0.012), lines(picture.levels.len() / width, 0.006));
        for (i, level) in picture.levels.iter_mut().enumerate() {
            let (x, y) = (i % width, i / width);
            let shade = 0.12 * clouds(x as f32, y as f32, width as f32 / 3.0, self.patches ^ 2);
            let added = self.offset + columns[x] + rows[y] + shade;
            *level = 0.5 + (*level - 0.5) * (1.0 + self.strength * self.gain) + self.strength * added;
        }
        picture.inverted = self.inverted;
    }
}

/// A post or a hedge, as large beside objects as those of a street.
fn obstacle(spec: &SampleSpec, s: &Season, d: &mut Draw) -> Thing {
    let (foot, tall) = depth(spec, d);
    let x = d.uniform(0.02, 0.98) as f32 * spec.width as f32;
    let value = s.ground + d.uniform(-2.5, 1.0) as f32;
    let mut part = |low: f64, high: f64| tall * d.uniform(low, high) as f32;
    let (up, thick, wide, high) = (part(1.5, 3.0), part(0.08, 0.2), part(1.0, 2.5), part(0.15, 0.3));
    let shape = if d.chance(0.5) {
        Shape::Capsule { from: [x, foot], to: [x, foot - up], radius: thick }
    } else {
        Shape::Block { at: [x, foot - high], half: [wide, high], round: 0.5 }
    };
    Thing { class: None, number: 0, foot, parts: vec![(shape, value)] }
}

/// A bollard, a cabinet, a lamp or a bicycle that is parked: as warm as objects, and as large.
fn decoy(spec: &SampleSpec, s: &Season, d: &mut Draw) -> Thing {
    let (foot, u) = depth(spec, d);
    let x = d.uniform(0.02, 0.98) as f32 * spec.width as f32;
    let clothed = s.air + s.clothes * d.uniform(0.7, 1.2) as f32;
    let wheel = |side: f32| Shape::Ring { at: [x + side * 0.3 * u, foot - 0.17 * u], radius: 0.15 * u, width: (0.06 * u).max(1.1) };
    let parts = match d.below(4) {
        0 => vec![(Shape::Capsule { from: [x, foot - 0.1 * u], to: [x, foot - 0.75 * u], radius: 0.09 * u }, clothed)],
        1 => {
            let half = [u * d.uniform(0.5, 1.1) as f32, u * d.uniform(0.2, 0.4) as f32];
            vec![(Shape::Block { at: [x, foot - half[1]], half, round: 0.1 * u }, s.air + d.uniform(1.0, 8.0) as f32)]
        }
        2 => vec![(Shape::Ellipse { at: [x, foot - 0.5 * u], radii: [0.12 * u; 2] }, s.air + d.uniform(10.0, 25.0) as f32)],
        _ => vec![(wheel(-1.0), s.air + 2.0), (wheel(1.0), s.air + 2.0)],
    };
    Thing { class: None, number: 0, foot, parts }
}
