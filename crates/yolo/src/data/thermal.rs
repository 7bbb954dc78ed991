//! What a fixed long-wave camera over a harbour front would see, drawn in degrees Celsius and then turned into gray as its gain control would.
//!
//! The place never changes; the weather does. A clip of eight frames shares a season: how warm ground, walls, water and sky are, how far people
//! and engines stand out, which span of temperatures the camera maps to 0..255, how it drifts. In summer a person is barely warmer than
//! the pavement, in winter a lamp. Shapes, not brightness alone, tell the classes apart.

use bellows_learner::rng::mix;

use super::raster::{Canvas, Shape};
use super::rng::Draw;
use super::sample_spec::SampleSpec;

const CLIP: u64 = 8;
/// Of the frame's height, from the top.
pub(crate) const HORIZON: f32 = 0.24;

/// Temperatures of a clip, degrees Celsius.
pub(crate) struct Season {
    pub(crate) air: f32,
    pub(crate) ground: f32,
    pub(crate) wall: f32,
    water: f32,
    sky: f32,
    /// Of clothes over the air.
    pub(crate) clothes: f32,
    /// The camera's black level and span.
    pub(crate) black: f32,
    pub(crate) span: f32,
    pub(crate) noise: f32,
    pub(crate) blur: f32,
}

/// A thing with parts; `class` is `None` for what only stands in the way.
pub(crate) struct Thing {
    pub(crate) class: Option<u32>,
    /// Its number in a clip; 0 outside of clips.
    pub(crate) number: u64,
    /// Where it touches the ground, pixels: what is further down is nearer.
    pub(crate) foot: f32,
    pub(crate) parts: Vec<(Shape, f32)>,
}

/// A frame `[height, width]` as the sensor has it: 0 is the camera's black level, 1 its white.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Exposure {
    pub(crate) levels: Vec<f32>,
    black: f32,
    span: f32,
    /// Warm is black.
    pub(crate) inverted: bool,
}

impl Exposure {
    /// 8 bits, with the camera's gain and palette.
    pub(crate) fn gray(&self) -> Vec<u8> {
        let gray = self.levels.iter().map(|level| (level * 255.0).round().clamp(0.0, 255.0) as u8);
        if self.inverted { gray.map(|v| 255 - v).collect() } else { gray.collect() }
    }

    /// 16 bits: hundredths of a kelvin, whatever the gain.
    pub(crate) fn counts(&self) -> Vec<u16> {
        self.levels.iter().map(|level| ((self.black + level * self.span + 273.15) * 100.0).round().clamp(0.0, 65_535.0) as u16).collect()
    }
}

/// An object of a frame: its number in the clip, class, and `xyxy` in pixels.
pub(crate) type Seen = (u64, u32, [f32; 4]);

/// A frame and its objects: class and `xyxy` in pixels.
pub(crate) type Picture = (Exposure, Vec<(u32, [f32; 4])>);

/// Draws frame `index` of `split`.
pub(crate) fn frame(spec: &SampleSpec, split: &str, index: u64) -> Picture {
    let season = Season::draw(spec, split, index / CLIP);
    let mut draw = Draw::new(spec.seed, &format!("sample {split}"), 0, index);
    let mut canvas = background(spec, &season, &Air { place: spec.seed, drift: draw.bits(), shift: 0.0 });
    let mut things = street_furniture(spec, &season);
    if !draw.chance(spec.empty) {
        let count = 1 + draw.below(3) + draw.below(spec.objects as usize);
        things.extend((0..count).map(|_| object(spec, &season, &mut draw)));
    }
    let boxes = place(&mut canvas, things).into_iter().map(|(_, class, xyxy)| (class, xyxy)).collect();
    canvas.blur(season.blur);
    let offset = draw.uniform(-0.03, 0.03) as f32;
    (expose(&canvas, spec, &season, offset, &mut draw), boxes)
}

impl Season {
    fn draw(spec: &SampleSpec, split: &str, clip: u64) -> Self {
        let mut d = Draw::new(spec.seed, &format!("season {split}"), 0, clip);
        let (air, sun) = (d.uniform(-6.0, 27.0) as f32, d.uniform(0.0, 1.0) as f32);
        Self::under(air, sun, spec, &mut d)
    }

    /// With air of so many degrees and so much sun, 0 to 1.
    pub(crate) fn under(air: f32, sun: f32, spec: &SampleSpec, d: &mut Draw) -> Self {
        let mut within = |a: f64, b: f64| d.uniform(a, b) as f32;
        let warm = (air + 6.0) / 33.0;
        let hard = spec.difficulty as f32;
        let span = within(24.0, 40.0) + 8.0 * hard;
        Self {
            air,
            ground: air + within(-1.0, 1.5) + 4.0 * sun * warm,
            wall: air + within(0.0, 4.0) + 3.0 * sun,
            water: 4.0 + 10.0 * warm + within(-2.0, 2.0),
            sky: air - within(10.0, 22.0),
            clothes: (13.0 - 7.0 * warm) * (1.0 - 0.45 * hard),
            black: air - within(0.38, 0.5) * span,
            span,
            noise: within(0.008, 0.018) * (0.6 + 1.4 * hard),
            blur: within(0.55, 0.85),
        }
    }
}

/// Smooth noise: random values on a lattice of `cell` pixels, blended.
pub(crate) fn clouds(x: f32, y: f32, cell: f32, seed: u64) -> f32 {
    let (u, v) = (x / cell, y / cell);
    let at = |i: f32, j: f32| mix(seed ^ mix((i as i64 as u64) << 32 ^ (j as i64 as u64 & 0xFFFF_FFFF))) as f32 / u64::MAX as f32 - 0.5;
    let ease = |t: f32| t * t * (3.0 - 2.0 * t);
    let (fu, fv) = (ease(u - u.floor()), ease(v - v.floor()));
    let row = |j: f32| at(u.floor(), j) * (1.0 - fu) + at(u.floor() + 1.0, j) * fu;
    row(v.floor()) * (1.0 - fv) + row(v.floor() + 1.0) * fv
}

/// What moves in a place without objects.
pub(crate) struct Air {
    /// Seed of the ground's texture.
    pub(crate) place: u64,
    /// Seed of clouds and warm air.
    pub(crate) drift: u64,
    /// How far they have moved, pixels.
    pub(crate) shift: f32,
}

pub(crate) fn background(spec: &SampleSpec, s: &Season, air: &Air) -> Canvas {
    let (w, h) = (spec.width as f32, spec.height as f32);
    let mut canvas = Canvas::new(spec.width as usize, spec.height as usize);
    let horizon = HORIZON * h;
    // Slow thermal drift: warm air, clouds and wet patches move from frame to frame; the ground's texture does not.
    let &Air { place, drift, shift } = air;
    for y in 0..spec.height as usize {
        for x in 0..spec.width as usize {
            let (fx, fy) = (x as f32, y as f32);
            let value = if fy < horizon {
                s.sky + (s.air - s.sky) * 0.7 * (fy / horizon).powi(2) + 3.0 * clouds(fx + shift, fy * 2.0, 60.0, drift)
            } else {
                let near = (fy - horizon) / (h - horizon);
                let texture = 1.6 * clouds(fx, fy * (2.5 - 1.5 * near), 34.0, place) + 0.9 * clouds(fx, fy * 2.0, 9.0, place ^ 1);
                s.ground + texture + 1.2 * clouds(fx + shift, fy, 90.0, drift) - 0.8 * near
            };
            canvas.value[y * spec.width as usize + x] = value;
        }
    }
    scenery(&mut canvas, s, w, h);
    canvas
}

/// Buildings with windows, a quay with water behind it, kerbs and a crossing: the same in every frame.
fn scenery(canvas: &mut Canvas, s: &Season, w: f32, h: f32) {
    let block = |x1: f32, y1: f32, x2: f32, y2: f32| Shape::Block {
        at: [(x1 + x2) / 2.0 * w, (y1 + y2) / 2.0 * h],
        half: [(x2 - x1) / 2.0 * w, (y2 - y1) / 2.0 * h],
        round: 0.5,
    };
    canvas.paint(&block(0.42, HORIZON - 0.005, 1.02, HORIZON + 0.07), s.water, 0.9, 0);
    for (x1, top, x2, warmth) in [(-0.02, 0.03, 0.17, 0.0), (0.175, 0.1, 0.4, 1.5), (0.62, 0.17, 0.74, -1.0), (0.86, 0.14, 1.02, 0.8)] {
        let bottom = if x1 < 0.4 { HORIZON + 0.09 } else { HORIZON + 0.01 };
        canvas.paint(&block(x1, top, x2, bottom), s.wall + warmth, 1.0, 0);
        let (columns, rows) = (((x2 - x1) * 34.0) as usize, ((bottom - top) * 26.0) as usize);
        for column in 0..columns {
            for row in 0..rows {
                let (x, y) =
                    (x1 + (column as f32 + 0.3) * (x2 - x1) / columns as f32, top + (row as f32 + 0.3) * (bottom - top) / rows as f32);
                let lit = (column * 7 + row * 3 + x1.to_bits() as usize).is_multiple_of(5);
                canvas.paint(&block(x, y, x + 0.012, y + 0.018), s.wall + warmth + if lit { 3.0 } else { -2.5 }, 0.9, 0);
            }
        }
    }
    for (from, to, width, warmth) in
        [([-0.1, 0.47], [1.1, 0.4], 0.008, 1.6), ([-0.1, 0.84], [1.1, 0.69], 0.014, 1.3), ([0.3, 0.33], [0.62, 1.05], 0.01, -1.2)]
    {
        let (from, to): ([f32; 2], [f32; 2]) = (from, to);
        canvas.paint(
            &Shape::Capsule { from: [from[0] * w, from[1] * h], to: [to[0] * w, to[1] * h], radius: width * h / 2.0 },
            s.ground + warmth,
            0.7,
            0,
        );
    }
    for stripe in 0..7 {
        let x = 0.66 + 0.03 * stripe as f32;
        canvas.paint(&Shape::Capsule { from: [x * w, 0.5 * h], to: [(x + 0.05) * w, 0.64 * h], radius: 0.005 * w }, s.ground - 1.0, 0.6, 0);
    }
    canvas.paint(&block(-0.02, HORIZON + 0.085, 0.4, HORIZON + 0.095), s.ground + 2.0, 0.6, 0);
}

/// Lamp posts, a hedge, a container: they hide what passes behind them.
pub(crate) fn street_furniture(spec: &SampleSpec, s: &Season) -> Vec<Thing> {
    let (w, h) = (spec.width as f32, spec.height as f32);
    let post = |x: f32, foot: f32, tall: f32, warmth: f32| {
        let shaft = Shape::Capsule { from: [x * w, foot * h], to: [x * w, (foot - tall) * h], radius: 0.004 * h + 0.006 * h * foot };
        let head = Shape::Ellipse { at: [x * w, (foot - tall) * h], radii: [0.012 * h, 0.008 * h] };
        Thing { class: None, number: 0, foot: foot * h, parts: vec![(shaft, s.air + warmth), (head, s.air + warmth + 3.0)] }
    };
    let block = |x: f32, foot: f32, half_w: f32, tall: f32, t: f32, round: f32| Thing {
        class: None,
        number: 0,
        foot: foot * h,
        parts: vec![(Shape::Block { at: [x * w, (foot - tall / 2.0) * h], half: [half_w * w, tall / 2.0 * h], round }, t)],
    };
    vec![
        post(0.22, 0.6, 0.42, -1.5),
        post(0.56, 0.52, 0.36, -1.0),
        post(0.88, 0.9, 0.7, -2.0),
        block(0.4, 0.62, 0.03, 0.07, s.ground - 1.5, 3.0),
        block(0.09, 0.76, 0.075, 0.06, s.air - 0.5, 6.0),
    ]
}

/// A random object somewhere on the ground.
fn object(spec: &SampleSpec, s: &Season, d: &mut Draw) -> Thing {
    let w = f64::from(spec.width);
    let class = [0, 0, 0, 0, 1, 1, 2, 2, 3, 3][d.below(10)];
    let (foot, tall) = depth(spec, d);
    let at = [d.uniform(0.02, 0.98) as f32 * w as f32, foot];
    let facing = if d.chance(0.5) { 1.0 } else { -1.0 };
    thing(class, at, tall, facing, s, d)
}

/// Where on the ground an object stands, and how tall a person is there, pixels.
pub(crate) fn depth(spec: &SampleSpec, d: &mut Draw) -> (f32, f32) {
    let h = spec.height as f32;
    // More ground is far away than near; nothing small enough to be a single pixel.
    let near = d.unit().powf(0.8 + 0.7 * spec.difficulty) as f32;
    let top = HORIZON + 0.13;
    let tall = spec.object_scale as f32 * (0.05 + 0.105 * near) * h * d.uniform(0.9, 1.1) as f32;
    ((top + (1.0 - top) * 0.97 * near) * h, tall)
}

/// An object of `class` with its foot at `at`, facing right (1) or left (-1).
pub(crate) fn thing(class: u32, at: [f32; 2], tall: f32, facing: f32, s: &Season, d: &mut Draw) -> Thing {
    let parts = match class {
        0 => person(at, tall, s, d),
        1 => bicycle(at, tall, facing, s, d),
        2 => motorcycle(at, tall, facing, s, d),
        _ => vehicle(at, tall, facing, s, d),
    };
    Thing { class: Some(class), number: 0, foot: at[1], parts }
}

type Parts = Vec<(Shape, f32)>;

fn face(s: &Season) -> f32 {
    s.air + (33.0 - s.air) * 0.72
}

fn person([x, y]: [f32; 2], tall: f32, s: &Season, d: &mut Draw) -> Parts {
    let cloth = s.air + s.clothes * d.uniform(0.75, 1.25) as f32;
    let u = tall;
    let stride = d.uniform(0.02, 0.13) as f32 * u;
    let lean = d.uniform(-0.03, 0.03) as f32 * u;
    let (hip, shoulder) = (y - 0.48 * u, y - 0.8 * u);
    let leg = |side: f32| (Shape::Capsule { from: [x, hip], to: [x + side * stride, y - 0.035 * u], radius: 0.045 * u }, cloth - 1.5);
    let arm = |side: f32| {
        (
            Shape::Capsule {
                from: [x + lean + side * 0.1 * u, shoulder],
                to: [x + side * (0.11 * u + 0.5 * stride), hip + 0.02 * u],
                radius: 0.03 * u,
            },
            cloth - 0.5,
        )
    };
    vec![
        leg(-1.0),
        leg(1.0),
        arm(-1.0),
        arm(1.0),
        (Shape::Capsule { from: [x, hip], to: [x + lean, shoulder], radius: 0.095 * u }, cloth),
        (Shape::Ellipse { at: [x + 1.4 * lean, y - 0.925 * u], radii: [0.06 * u, 0.075 * u] }, face(s)),
    ]
}

/// A rider leaning over two thin wheels.
fn bicycle([x, y]: [f32; 2], tall: f32, facing: f32, s: &Season, d: &mut Draw) -> Parts {
    let u = tall;
    let cloth = s.air + s.clothes * d.uniform(0.8, 1.3) as f32;
    let frame = s.air + d.uniform(-1.5, 0.5) as f32;
    let wheel = 0.18 * u;
    let axle = y - wheel;
    let (back, front) = (x - facing * 0.3 * u, x + facing * 0.3 * u);
    let (saddle, bars) = ([x - facing * 0.1 * u, y - 0.5 * u], [x + facing * 0.24 * u, y - 0.55 * u]);
    let pedal = [x + facing * d.uniform(-0.05, 0.07) as f32 * u, y - d.uniform(0.08, 0.2) as f32 * u];
    let thin = (0.028 * u).max(0.55);
    let line = |from, to, radius| Shape::Capsule { from, to, radius };
    let shoulder = [x + facing * 0.08 * u, y - 0.78 * u];
    vec![
        (Shape::Ring { at: [back, axle], radius: wheel - thin, width: 2.0 * thin }, frame + 2.0),
        (Shape::Ring { at: [front, axle], radius: wheel - thin, width: 2.0 * thin }, frame + 2.0),
        (line([back, axle], saddle, thin), frame),
        (line([front, axle], bars, thin), frame),
        (line([back, axle], [x, axle], thin), frame),
        (line([x, axle], [front, axle - 0.2 * u], thin), frame),
        (line(saddle, pedal, 0.05 * u), cloth - 1.0),
        (line(saddle, shoulder, 0.085 * u), cloth),
        (line(shoulder, bars, 0.03 * u), cloth - 0.5),
        (Shape::Ellipse { at: [x + facing * 0.13 * u, y - 0.925 * u], radii: [0.06 * u, 0.075 * u] }, face(s)),
    ]
}

/// A rider on thick tyres, with a hot engine and exhaust below the seat.
fn motorcycle([x, y]: [f32; 2], tall: f32, facing: f32, s: &Season, d: &mut Draw) -> Parts {
    let u = tall;
    let cloth = s.air + s.clothes * d.uniform(0.6, 1.0) as f32;
    let body = s.air + d.uniform(0.0, 4.0) as f32;
    let hot = s.air + d.uniform(22.0, 38.0) as f32;
    let wheel = 0.17 * u;
    let axle = y - wheel;
    let (back, front) = (x - facing * 0.4 * u, x + facing * 0.4 * u);
    let line = |from, to, radius| Shape::Capsule { from, to, radius };
    let (seat, shoulder) = ([x - facing * 0.12 * u, y - 0.45 * u], [x - facing * 0.02 * u, y - 0.72 * u]);
    vec![
        (Shape::Ellipse { at: [back, axle], radii: [wheel, wheel] }, body + 7.0),
        (Shape::Ellipse { at: [front, axle], radii: [wheel, wheel] }, body + 5.0),
        (line([back, axle - 0.12 * u], [x + facing * 0.2 * u, y - 0.42 * u], 0.09 * u), body),
        (line([front, axle], [x + facing * 0.22 * u, y - 0.52 * u], 0.04 * u), body),
        (Shape::Block { at: [x, y - 0.24 * u], half: [0.15 * u, 0.1 * u], round: 0.05 * u }, hot),
        (line([x - facing * 0.05 * u, y - 0.14 * u], [x - facing * 0.48 * u, y - 0.19 * u], 0.035 * u), hot - 4.0),
        (line(seat, [x + facing * 0.1 * u, y - 0.24 * u], 0.06 * u), cloth - 1.0),
        (line(seat, shoulder, 0.1 * u), cloth),
        (line(shoulder, [x + facing * 0.24 * u, y - 0.53 * u], 0.035 * u), cloth - 0.5),
        (Shape::Ellipse { at: [x + facing * 0.03 * u, y - 0.88 * u], radii: [0.085 * u, 0.095 * u] }, (cloth + face(s)) / 2.0),
    ]
}

/// A car or van from the side: cool glass, warm bonnet, warm tyres, a hot spot of exhaust.
fn vehicle([x, y]: [f32; 2], tall: f32, facing: f32, s: &Season, d: &mut Draw) -> Parts {
    let u = tall;
    let van = d.chance(0.3);
    let (half, high) = (d.uniform(1.1, 1.35) as f32 * u, if van { 1.12 } else { 0.84 } * u);
    let body = s.air + d.uniform(-1.5, 5.0) as f32;
    let engine = body + d.uniform(4.0, 16.0) as f32;
    let glass = s.air - d.uniform(3.0, 8.0) as f32;
    let wheel = 0.17 * u;
    let block = |cx: f32, cy: f32, hw: f32, hh: f32, round: f32| Shape::Block { at: [cx, cy], half: [hw, hh], round };
    let waist = y - 0.5 * u;
    let cabin = if van { -0.12 * half * facing } else { -0.08 * half * facing };
    let cabin_half = if van { 0.86 * half } else { 0.6 * half };
    let mut parts = vec![
        (block(x, (waist + y - 0.1 * u) / 2.0, half, 0.5 * (0.5 * u - 0.1 * u), 0.1 * u), body),
        (block(x + cabin, (y - high + waist) / 2.0, cabin_half, (high - 0.5 * u) / 2.0 + 0.04 * u, 0.12 * u), body - 0.5),
        (
            block(
                x + cabin + facing * 0.34 * cabin_half,
                (y - high + waist) / 2.0 + 0.01 * u,
                0.5 * cabin_half,
                0.36 * (high - 0.5 * u),
                0.05 * u,
            ),
            glass,
        ),
        (Shape::Ellipse { at: [x + facing * 0.74 * half, y - 0.36 * u], radii: [0.24 * half, 0.13 * u] }, engine),
        (block(x, y - 0.12 * u, 0.9 * half, 0.035 * u, 0.02 * u), s.ground + 2.0),
    ];
    if !van {
        parts.push((
            block(
                x + cabin - facing * 0.5 * cabin_half,
                (y - high + waist) / 2.0 + 0.01 * u,
                0.3 * cabin_half,
                0.36 * (high - 0.5 * u),
                0.05 * u,
            ),
            glass,
        ));
    }
    for side in [-0.62, 0.62] {
        parts.push((Shape::Ellipse { at: [x + side * half, y - wheel], radii: [wheel, wheel] }, s.air + d.uniform(3.0, 10.0) as f32));
    }
    parts.push((Shape::Ellipse { at: [x - facing * 0.97 * half, y - 0.12 * u], radii: [0.05 * u, 0.04 * u] }, engine + 12.0));
    parts
}

/// Paints far to near; boxes of what is at least 40 % visible and whole pixels large. What would be hidden or cut is left out of the picture
/// altogether, so that no frame holds an object that its labels do not name. Of each that is shown: its number, its class, its box.
pub(crate) fn place(canvas: &mut Canvas, mut things: Vec<Thing>) -> Vec<Seen> {
    things.sort_by(|a, b| a.foot.total_cmp(&b.foot));
    let (base_value, base_owner) = (canvas.value.clone(), canvas.owner.clone());
    let mut shown: Vec<bool> = vec![true; things.len()];
    loop {
        canvas.value.clone_from(&base_value);
        canvas.owner.clone_from(&base_owner);
        for (i, thing) in things.iter().enumerate().filter(|(i, _)| shown[*i]) {
            for (shape, value) in &thing.parts {
                canvas.paint(shape, *value, 1.0, i as u16 + 1);
            }
        }
        let mut visible = vec![0usize; things.len() + 1];
        canvas.owner.iter().for_each(|&o| visible[usize::from(o)] += 1);
        let hidden = (0..things.len()).find(|&i| {
            let whole = || silhouette(&things[i], canvas.width, canvas.height);
            shown[i] && things[i].class.is_some() && (visible[i + 1] as f32) < 0.4 * whole()
        });
        match hidden {
            Some(i) => shown[i] = false,
            None => break,
        }
    }
    let (w, h) = (canvas.width as f32, canvas.height as f32);
    let labelled = things.iter().zip(shown).filter_map(|(thing, shown)| {
        let [x1, y1, x2, y2] = hull(thing);
        let class = thing.class.filter(|_| shown)?;
        Some((thing.number, class, [x1.clamp(0.0, w), y1.clamp(0.0, h), x2.clamp(0.0, w), y2.clamp(0.0, h)]))
    });
    labelled.collect()
}

fn hull(thing: &Thing) -> [f32; 4] {
    let join = |a: [f32; 4], b: [f32; 4]| [a[0].min(b[0]), a[1].min(b[1]), a[2].max(b[2]), a[3].max(b[3])];
    thing.parts.iter().map(|(s, _)| s.bounds()).fold([f32::MAX, f32::MAX, f32::MIN, f32::MIN], join)
}

/// How many pixels the thing would cover if nothing hid or cut it.
fn silhouette(thing: &Thing, width: usize, height: usize) -> f32 {
    let margin = width.max(height);
    let mut alone = Canvas::new(width + 2 * margin, height + margin);
    let move_by = |p: [f32; 2]| [p[0] + margin as f32, p[1]];
    for (shape, _) in &thing.parts {
        let moved = match *shape {
            Shape::Ellipse { at, radii } => Shape::Ellipse { at: move_by(at), radii },
            Shape::Capsule { from, to, radius } => Shape::Capsule { from: move_by(from), to: move_by(to), radius },
            Shape::Block { at, half, round } => Shape::Block { at: move_by(at), half, round },
            Shape::Ring { at, radius, width } => Shape::Ring { at: move_by(at), radius, width },
        };
        alone.paint(&moved, 1.0, 1.0, 1);
    }
    alone.owner.iter().filter(|&&o| o == 1).count() as f32
}

/// Degrees to levels: the season's gain, a vignette, fixed column noise of the sensor, and noise.
pub(crate) fn expose(canvas: &Canvas, spec: &SampleSpec, s: &Season, offset: f32, draw: &mut Draw) -> Exposure {
    let mut columns = Draw::new(spec.seed, "columns", 0, 0);
    let stripes: Vec<f32> = (0..canvas.width).map(|_| columns.normal() as f32 * 0.004).collect();
    let (w, h) = (canvas.width as f32, canvas.height as f32);
    let level = |(i, &t): (usize, &f32)| {
        let (x, y) = (i % canvas.width, i / canvas.width);
        let (u, v) = (x as f32 / w - 0.5, y as f32 / h - 0.5);
        (t - s.black) / s.span + offset - 0.08 * (u * u + v * v) + stripes[x] + draw.normal() as f32 * s.noise
    };
    Exposure { levels: canvas.value.iter().enumerate().map(level).collect(), black: s.black, span: s.span, inverted: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A standing block of 20 x 40 pixels with its left edge at `x`.
    fn block(class: Option<u32>, number: u64, x: f32, foot: f32, value: f32) -> Thing {
        let shape = Shape::Block { at: [x + 10.0, foot - 20.0], half: [10.0, 20.0], round: 0.5 };
        Thing { class, number, foot, parts: vec![(shape, value)] }
    }

    #[test]
    fn what_is_hidden_too_far_is_not_in_the_picture() {
        let draw = |things: Vec<Thing>| {
            let mut canvas = Canvas::new(96, 72);
            let seen = place(&mut canvas, things);
            (canvas.value, seen)
        };
        let wall = || block(None, 0, 40.0, 60.0, -3.0);
        // Half of it stands behind the wall: its box is that of the whole.
        let (picture, seen) = draw(vec![wall(), block(Some(2), 7, 30.0, 58.0, 9.0)]);
        assert_eq!(seen, [(7, 2, [30.0, 18.0, 50.0, 58.0])]);
        assert_eq!((picture[40 * 96 + 35], picture[40 * 96 + 45]), (9.0, -3.0), "the nearer thing is painted over the further one");
        // Three quarters behind it, or out of the picture, and neither the picture nor the labels have it.
        for x in [35.0, -15.0] {
            assert_eq!(draw(vec![wall(), block(Some(2), 7, x, 58.0, 9.0)]), draw(vec![wall()]), "{x}");
        }
        // Things that stand equally near keep their numbers.
        let numbers = draw([(5, 60.0), (3, 20.0)].map(|(number, x)| block(Some(0), number, x, 58.0, 9.0)).into()).1;
        assert_eq!(numbers.iter().map(|seen| (seen.0, seen.2[0])).collect::<Vec<_>>(), [(5, 60.0), (3, 20.0)]);
    }
}
