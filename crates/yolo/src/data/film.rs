//! A clip of a static camera, one frame a second: a day and an hour of a year, its weather, what drifts, and what passes by.
//!
//! Everything of a clip is a function of (seed, split, clip), everything of a frame of that and its number. A camera's place never changes; months,
//! hours, sun and rain change how warm it is, how far people stand out and how much the sensor noises.

use super::hard::Hardship;
use super::raster::Canvas;
use super::rng::Draw;
use super::sample_spec::{ClipLength, ClipSpec, SampleSpec};
use super::thermal::{Air, Exposure, Season, Seen, Thing, background, depth, expose, place, street_furniture, thing};

/// The first month of the data set this is like.
const FIRST: (u32, u32) = (2020, 5);
/// Height of a person, metres: what is so tall in pixels gives the scale of a place.
const PERSON: f32 = 1.75;
/// Metres a second, slowest and fastest, of each class; and how likely it is that one stands still.
const PACE: [(f64, f64, f64); 4] = [(0.8, 1.8, 0.15), (3.0, 6.0, 0.02), (6.0, 12.0, 0.02), (5.0, 12.0, 0.3)];

/// One clip.
pub(crate) struct Film {
    split: String,
    camera: u32,
    /// Over all clips of a split.
    serial: u32,
    year: u32,
    month: u32,
    day: u32,
    hour: u32,
    minute: u32,
    weather: Weather,
    /// Number of frames.
    pub(crate) frames: u32,
    /// Of its files, relative to the data set.
    pub(crate) folder: String,
    tracks: Vec<Track>,
    hardship: Option<Hardship>,
}

/// What a weather station says.
struct Weather {
    temperature: f64,
    humidity: f64,
    rain: f64,
    dew: f64,
    wind: [f64; 2],
    /// 0 to 1.
    sun: f64,
}

/// What passes by.
struct Track {
    class: u32,
    foot: f32,
    tall: f32,
    /// Where it is at the clip's first frame, pixels; it may be outside.
    x: f32,
    /// Pixels a second.
    pace: f32,
    number: u64,
}

impl Film {
    /// The clips of a split: `each` of every camera in each of `months`, camera by camera, month by month.
    pub(crate) fn all(spec: &SampleSpec, clips: &ClipSpec, split: &str, months: u32, each: u32) -> Vec<Self> {
        let places = (0..clips.cameras).flat_map(|camera| (0..months).flat_map(move |month| (0..each).map(move |_| (camera, month))));
        places.zip(0..).map(|((camera, month), serial)| Self::new(spec, clips, split, camera, month, serial)).collect()
    }

    fn new(spec: &SampleSpec, clips: &ClipSpec, split: &str, camera: u32, month: u32, serial: u32) -> Self {
        let mut d = Draw::new(spec.seed, &format!("clip {split}"), 0, u64::from(serial));
        let months = FIRST.1 - 1 + month;
        let (year, month) = (FIRST.0 + months / 12, 1 + months % 12);
        // Splits have days of their own: a clip of the next hour would be nearly the same picture.
        let day = if split == "train" { 1 + d.below(20) as u32 } else { 22 + d.below(7) as u32 };
        // None runs over midnight.
        let (hour, minute) = (d.below(23) as u32, d.below(60) as u32);
        let weather = Weather::draw(month, f64::from(hour) + f64::from(minute) / 60.0, &mut d);
        let frames = length(clips.frames, spec.seed, split, serial);
        let tracks = if d.chance(spec.empty) { Vec::new() } else { Track::all(spec, frames, &mut d) };
        let number = serial + if split == "train" { 0 } else { 50_000 };
        let folder = format!("frames/{year}{month:02}{day:02}/clip_{number}_{hour:02}{minute:02}");
        let hardship = Hardship::of(clips.hard, spec.seed, split, [camera, serial, month], weather.sun);
        Self { split: split.into(), camera, serial, year, month, day, hour, minute, weather, frames, folder, tracks, hardship }
    }

    /// Draws frame `frame`.
    pub(crate) fn frame(&self, spec: &SampleSpec, frame: u32) -> (Exposure, Vec<Seen>) {
        let of_clip = |stream: &str| Draw::new(spec.seed, &format!("{stream} {}", self.split), 0, u64::from(self.serial));
        let mut d = of_clip("weather");
        let mut season = Season::under(self.weather.temperature as f32, self.weather.sun as f32, &self.under_rain(spec), &mut d);
        let place_seed = spec.seed ^ (u64::from(self.camera) << 32);
        let shift = frame as f32 * (1.0 + self.weather.wind[1] as f32) * 0.4;
        let hardship = self.hardship.as_ref();
        if let Some(hard) = hardship {
            hard.weather(&mut season);
        }
        let mut canvas = background(spec, &season, &Air { place: place_seed, drift: d.bits(), shift });
        if let Some(hard) = hardship {
            hard.stir(&mut canvas, shift);
        }
        let mut things: Vec<Thing> = street_furniture(spec, &season);
        things.extend(hardship.into_iter().flat_map(|hard| hard.things(spec, &season)));
        for track in &self.tracks {
            let x = track.x + track.pace * frame as f32;
            // Nothing is longer than three times a person is tall.
            if !(-3.0 * track.tall..spec.width as f32 + 3.0 * track.tall).contains(&x) {
                continue;
            }
            let facing = if track.pace < 0.0 { -1.0 } else { 1.0 };
            // The same clothes and the same car in every frame.
            let mut look = Draw::new(spec.seed, &format!("look {}", self.split), u64::from(self.serial), track.number);
            let thing = thing(track.class, [x, track.foot], track.tall, facing, &season, &mut look);
            let thing = Thing { number: track.number, ..thing };
            things.push(match hardship {
                Some(hard) => hard.fade(thing, &season, track.number),
                None => thing,
            });
        }
        let mut seen = place(&mut canvas, things);
        if self.camera % 2 == 1 {
            mirror(&mut canvas, &mut seen);
        }
        canvas.blur(season.blur);
        let mut noise = Draw::new(spec.seed, &format!("film {}", self.split), u64::from(self.serial), u64::from(frame));
        // The sensor drifts slowly, and jumps when its shutter calibrates it: every seventh second.
        let drift = of_clip("sensor").uniform(-0.03, 0.03) as f32 + 0.004 * (frame % 7) as f32;
        let mut picture = expose(&canvas, spec, &season, drift, &mut noise);
        if let Some(hard) = hardship {
            hard.sensor(&mut picture, canvas.width);
        }
        (picture, seen)
    }

    /// Rain takes contrast away.
    fn under_rain(&self, spec: &SampleSpec) -> SampleSpec {
        SampleSpec { difficulty: (spec.difficulty + 0.5 * self.weather.rain.min(1.0)).min(1.0), ..spec.clone() }
    }

    /// Its file, relative to the data set.
    pub(crate) fn file_name(&self, frame: u32, suffix: &str) -> String {
        format!("{}/image_{frame:04}.{suffix}", self.folder)
    }

    /// Seventeen digits, as LTDv2 has them.
    fn id(&self, frame: u32) -> u64 {
        let half = if self.split == "train" { 0 } else { 5 };
        let date = u64::from(self.year * 10_000 + self.month * 100 + self.day);
        (date * 10 + half + u64::from(self.camera % 5)) * 100_000_000 + u64::from(self.serial % 10_000) * 10_000 + u64::from(frame)
    }

    /// An element of `images`.
    pub(crate) fn image_json(&self, spec: &SampleSpec, frame: u32, name: &str) -> String {
        let (second, minute) = (frame % 60, self.minute + frame / 60);
        let time = format!("{:02}:{:02}:{second:02}", self.hour + minute / 60, minute % 60);
        let (id, w) = (self.id(frame), &self.weather);
        let meta = [
            ("Temperature", w.temperature),
            ("Humidity", w.humidity),
            ("Precipitation latest 10 min", w.rain),
            ("Dew Point", w.dew),
            ("Wind Direction", w.wind[0]),
            ("Wind Speed", w.wind[1]),
            ("Sun Radiation Intensity", 800.0 * w.sun),
            ("Min of sunshine latest 10 min", 10.0 * w.sun),
            ("Camera", f64::from(self.camera)),
        ];
        // Adding 0 makes 0 of -0.
        let meta: Vec<String> = meta.map(|(key, value)| format!("\"{key}\":{}", (value * 10.0).round() / 10.0 + 0.0)).to_vec();
        format!(
            "{{\"id\":{id},\"file_name\":\"{name}\",\"width\":{},\"height\":{},\"date_captured\":\"{}-{:02}-{:02}T{time}\",\"meta\":{{{}}}}}",
            spec.width,
            spec.height,
            self.year,
            self.month,
            self.day,
            meta.join(",")
        )
    }

    /// An element of `annotations`.
    pub(crate) fn annotation_json(&self, frame: u32, &(number, class, [x1, y1, x2, y2]): &Seen) -> String {
        let (w, h) = (x2 - x1, y2 - y1);
        let uid = u64::from(self.serial) * 1000 + number;
        let (image, id, area) = (self.id(frame), self.id(frame) * 100 + number, w * h);
        format!(
            "{{\"id\":{id},\"image_id\":{image},\"category_id\":{},\"bbox\":[{x1:.2},{y1:.2},{w:.2},{h:.2}],\"area\":{area:.2},\"iscrowd\":0,\"uid\":{uid}}}",
            class + 1
        )
    }
}

/// How many frames a clip has. Lengths are even on a scale of factors, many short clips and few long ones, as cameras that begin with a movement make them.
/// The draw is of a stream of its own: a clip has the weather and the hour that it has among clips of one length.
fn length(frames: ClipLength, seed: u64, split: &str, serial: u32) -> u32 {
    let [fewest, most] = frames.bounds();
    if fewest == most {
        return most;
    }
    let draw = Draw::new(seed, &format!("length {split}"), 0, u64::from(serial)).unit();
    let factor = (f64::from(most) / f64::from(fewest)).powf(draw);
    (f64::from(fewest) * factor).round() as u32
}

impl Weather {
    /// Of a harbour in the north: the coldest in January, the longest day in June.
    fn draw(month: u32, hour: f64, d: &mut Draw) -> Self {
        let turn = |shift: f64| (std::f64::consts::TAU * (f64::from(month) - shift) / 12.0).cos();
        let (summer, daylight) = (8.0 - 9.0 * turn(1.0), 12.0 - 5.0 * turn(0.0));
        let rise = 12.5 - daylight / 2.0;
        let height = (std::f64::consts::PI * (hour - rise) / daylight).sin();
        let clear = d.unit();
        let sun = if (rise..rise + daylight).contains(&hour) { height.max(0.0) * (0.15 + 0.85 * clear) } else { 0.0 };
        let rain = if clear < 0.2 && d.chance(0.6) { d.uniform(0.1, 1.5) } else { 0.0 };
        let temperature = summer + 5.0 * sun - 2.0 + 2.5 * d.normal();
        let humidity = (88.0 - 30.0 * sun + 15.0 * f64::from(u8::from(rain > 0.0)) + 6.0 * d.normal()).clamp(30.0, 100.0);
        let dew = temperature - (100.0 - humidity) / 5.0;
        Self { temperature, humidity, rain, dew, wind: [d.uniform(0.0, 360.0), d.normal().abs() * 3.0], sun }
    }
}

impl Track {
    fn all(spec: &SampleSpec, frames: u32, d: &mut Draw) -> Vec<Self> {
        let count = 1 + d.below(2 + spec.objects as usize);
        (0..count as u64).map(|number| Self::draw(spec, frames, number, d)).collect()
    }

    /// Something that is in the middle half of the picture at some moment of the clip.
    fn draw(spec: &SampleSpec, frames: u32, number: u64, d: &mut Draw) -> Self {
        let class = [0, 0, 0, 0, 0, 1, 1, 2, 3, 3][d.below(10)];
        let (foot, tall) = depth(spec, d);
        let (slow, fast, still) = PACE[class as usize];
        let metres = if d.chance(still) { 0.0 } else { d.uniform(slow, fast) };
        let way = if d.chance(0.5) { 1.0 } else { -1.0 };
        let pace = way * metres as f32 * tall / PERSON;
        let (moment, there) = (d.uniform(0.0, f64::from(frames)) as f32, d.uniform(0.25, 0.75) as f32 * spec.width as f32);
        Self { class, foot, tall, x: there - pace * moment, pace, number }
    }
}

/// Left is right.
fn mirror(canvas: &mut Canvas, seen: &mut [Seen]) {
    let width = canvas.width;
    canvas.value.chunks_exact_mut(width).for_each(<[f32]>::reverse);
    for (_, _, xyxy) in seen {
        let [x1, y1, x2, y2] = *xyxy;
        *xyxy = [width as f32 - x2, y1, width as f32 - x1, y2];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn films(clips: &ClipSpec) -> Vec<Film> {
        Film::all(&SampleSpec::default(), clips, "train", clips.months, clips.train)
    }

    #[test]
    fn what_passes_moves_by_its_pace_and_the_place_stays() {
        let spec = SampleSpec { width: 192, height: 144, empty: 0.0, ..SampleSpec::default() };
        let clips = ClipSpec { frames: ClipLength::Of(6), ..ClipSpec::default() };
        let mut moved = 0;
        for film in Film::all(&spec, &clips, "train", 3, 3) {
            let frames: Vec<Vec<Seen>> = (0..4).map(|i| film.frame(&spec, i).1).collect();
            for pair in frames.windows(2) {
                for (number, _, before) in &pair[0] {
                    let Some((_, _, after)) = pair[1].iter().find(|(n, ..)| n == number) else { continue };
                    let inside = |b: &[f32; 4]| b[0] > 1.0 && b[2] < 191.0;
                    if inside(before) && inside(after) {
                        let track = film.tracks.iter().find(|t| t.number == *number).unwrap();
                        let way = if film.camera % 2 == 1 { -1.0 } else { 1.0 };
                        assert!((after[0] - before[0] - way * track.pace).abs() < 0.01, "{before:?} {after:?} {}", track.pace);
                        moved += usize::from(track.pace != 0.0);
                    }
                }
            }
        }
        assert!(moved > 10, "{moved}");
        // Of two frames of one clip without objects little differs; of two seasons much does.
        let empty = SampleSpec { empty: 1.0, ..spec };
        let films = Film::all(&empty, &clips, "train", 12, 1);
        let gray = |film: &Film, i| film.frame(&empty, i).0.counts();
        let distance = |a: &[u16], b: &[u16]| a.iter().zip(b).map(|(a, b)| f64::from(a.abs_diff(*b))).sum::<f64>() / a.len() as f64;
        let (one, next, winter) = (gray(&films[2], 0), gray(&films[2], 1), gray(&films[8], 0));
        assert!(distance(&one, &next) * 3.0 < distance(&one, &winter), "{} {}", distance(&one, &next), distance(&one, &winter));
        assert_eq!(gray(&films[2], 0), one, "the same every time");
    }

    /// A frame of a clip that is not hard, as it was drawn before there were hard ones: folders that were drawn then are not drawn again.
    fn as_it_was(film: &Film, spec: &SampleSpec, frame: u32) -> (Exposure, Vec<Seen>) {
        let of_clip = |stream: &str| Draw::new(spec.seed, &format!("{stream} {}", film.split), 0, u64::from(film.serial));
        let mut d = of_clip("weather");
        let season = Season::under(film.weather.temperature as f32, film.weather.sun as f32, &film.under_rain(spec), &mut d);
        let shift = frame as f32 * (1.0 + film.weather.wind[1] as f32) * 0.4;
        let air = Air { place: spec.seed ^ (u64::from(film.camera) << 32), drift: d.bits(), shift };
        let mut canvas = background(spec, &season, &air);
        let mut things = street_furniture(spec, &season);
        for track in &film.tracks {
            let x = track.x + track.pace * frame as f32;
            if (-3.0 * track.tall..spec.width as f32 + 3.0 * track.tall).contains(&x) {
                let facing = if track.pace < 0.0 { -1.0 } else { 1.0 };
                let mut look = Draw::new(spec.seed, &format!("look {}", film.split), u64::from(film.serial), track.number);
                let thing = thing(track.class, [x, track.foot], track.tall, facing, &season, &mut look);
                things.push(Thing { number: track.number, ..thing });
            }
        }
        let mut seen = place(&mut canvas, things);
        if film.camera % 2 == 1 {
            mirror(&mut canvas, &mut seen);
        }
        canvas.blur(season.blur);
        let mut noise = Draw::new(spec.seed, &format!("film {}", film.split), u64::from(film.serial), u64::from(frame));
        let drift = of_clip("sensor").uniform(-0.03, 0.03) as f32 + 0.004 * (frame % 7) as f32;
        (expose(&canvas, spec, &season, drift, &mut noise), seen)
    }

    #[test]
    fn what_is_not_hard_is_as_it_was() {
        let spec = SampleSpec { width: 96, height: 72, empty: 0.0, object_scale: 2.0, ..SampleSpec::default() };
        let (easy, hard) = (ClipSpec::default(), ClipSpec { hard: 0.5, ..ClipSpec::default() });
        let written = |clips: &ClipSpec| serde_json::to_value(clips).unwrap().get("hard").cloned();
        assert_eq!((written(&easy), written(&hard)), (None, Some(0.5.into())));
        let [easy, hard] = [easy, hard].map(|clips| Film::all(&spec, &clips, "train", 2, 1));
        for (easy, hard) in easy.iter().zip(&hard) {
            for i in [0, 9] {
                let frame = easy.frame(&spec, i);
                assert!(frame == as_it_was(easy, &spec, i), "{} {i}", easy.folder);
                assert!(frame.0 != hard.frame(&spec, i).0);
                assert_eq!(easy.image_json(&spec, i, "a.jpg"), hard.image_json(&spec, i, "a.jpg"), "the same weather");
            }
        }
    }

    #[test]
    fn clips_of_unlike_lengths_are_else_the_same_clips() {
        let spec_of = |text, name: &str| {
            let config = crate::data::DataConfig::parse(text, std::path::Path::new(name)).unwrap();
            config.generator.unwrap()
        };
        let uneven = spec_of(include_str!("../../../../datasets/thermal-clips-uneven.yaml"), "thermal-clips-uneven.yaml");
        let even = spec_of(include_str!("../../../../datasets/thermal-clips-hard.yaml"), "thermal-clips-hard.yaml");
        let (of_uneven, of_even) = (uneven.clips.clone().unwrap(), even.clips.clone().unwrap());
        assert_eq!(
            (SampleSpec { clips: None, ..uneven.clone() }, ClipSpec { frames: of_even.frames, ..of_uneven.clone() }),
            (SampleSpec { clips: None, ..even.clone() }, of_even.clone()),
            "the two files differ in nothing else"
        );
        // A folder that was drawn when there were numbers alone has its marker still.
        let written = |clips: &ClipSpec| serde_json::to_value(clips).unwrap()["frames"].clone();
        assert_eq!((written(&of_even), written(&of_uneven)), (12.into(), serde_json::json!([3, 30])));
        for (split, months, each) in [("train", of_even.train_months, of_even.train), ("val", of_even.months, of_even.val)] {
            let [uneven, even] =
                [(&uneven, &of_uneven), (&even, &of_even)].map(|(spec, clips)| Film::all(spec, clips, split, months, each));
            let lengths: Vec<u32> = uneven.iter().map(|film| film.frames).collect();
            assert!(lengths.iter().all(|frames| (3..=30).contains(frames)), "{lengths:?}");
            assert!(lengths.iter().any(|frames| *frames < 5) && lengths.iter().any(|frames| *frames > 25), "{lengths:?}");
            let [all, before] = [&uneven, &even].map(|films| films.iter().map(|film| film.frames).sum::<u32>());
            assert!(all.abs_diff(before) * 20 < before, "{all} frames of {split}, and {before} of clips of one length");
            assert!(even.iter().all(|film| film.frames == 12));
            for (a, b) in uneven.iter().zip(&even) {
                assert_eq!((&a.folder, a.image_json(&spec_small(), 1, "a.jpg")), (&b.folder, b.image_json(&spec_small(), 1, "a.jpg")));
            }
        }
        for (frames, reason) in [
            (serde_json::json!([9, 3]), "sample: clips: `frames` must be 1 to 1000, or [fewest, most] of these"),
            (serde_json::json!([0, 3]), "sample: clips: `frames` must be 1 to 1000, or [fewest, most] of these"),
            (serde_json::json!(1001), "sample: clips: `frames` must be 1 to 1000, or [fewest, most] of these"),
            (serde_json::json!([3, 9, 12]), "sample: clips: `frames` must be a whole number, or [fewest, most]"),
            (serde_json::json!("many"), "sample: clips: `frames` must be a whole number, or [fewest, most]"),
        ] {
            let told = SampleSpec::from_value(&serde_json::json!({"clips": {"frames": frames}})).unwrap_err();
            assert_eq!(told, reason);
        }
    }

    fn spec_small() -> SampleSpec {
        SampleSpec { width: 96, height: 72, ..SampleSpec::default() }
    }

    /// How far the levels of boxes are from those around them.
    fn contrast(picture: &Exposure, width: usize, seen: &[Seen]) -> Vec<f32> {
        let height = picture.levels.len() / width;
        let mean = |[x1, y1, x2, y2]: [f32; 4], outside: [f32; 4]| {
            let (mut sum, mut count) = (0.0, 0.0f32);
            for y in (y1.max(0.0) as usize)..(y2.ceil() as usize).min(height) {
                for x in (x1.max(0.0) as usize)..(x2.ceil() as usize).min(width) {
                    let at = [x as f32 + 0.5, y as f32 + 0.5];
                    let left_out = (outside[0]..outside[2]).contains(&at[0]) && (outside[1]..outside[3]).contains(&at[1]);
                    if !left_out {
                        (sum, count) = (sum + picture.levels[y * width + x], count + 1.0);
                    }
                }
            }
            sum / count.max(1.0)
        };
        let of = |&(_, _, [x1, y1, x2, y2]): &Seen| {
            let (own, around) = ([x1, y1, x2, y2], [x1 - 4.0, y1 - 4.0, x2 + 4.0, y2 + 4.0]);
            (mean(own, [0.0; 4]) - mean(around, own)).abs()
        };
        seen.iter().map(of).collect()
    }

    #[test]
    fn hard_clips_are_small_and_faint_and_change_with_the_months() {
        let text = include_str!("../../../../datasets/thermal-clips-hard.yaml");
        let config = crate::data::DataConfig::parse(text, std::path::Path::new("thermal-clips-hard.yaml")).unwrap();
        let spec = SampleSpec { empty: 0.0, ..config.generator.unwrap() };
        let clips = spec.clips.clone().unwrap();
        assert!(clips.hard > 0.0);
        let easy = ClipSpec { hard: 0.0, ..clips.clone() };
        let [hard, easy] = [&clips, &easy].map(|clips| Film::all(&spec, clips, "val", clips.months, 1));
        let drawn = |films: &[Film]| films.iter().map(|film| film.frame(&spec, 0)).collect::<Vec<_>>();
        let frames = drawn(&hard);
        assert!(frames == drawn(&hard), "the same every time");
        // Of what is trained on at half the frames' size.
        let longest: Vec<f32> =
            frames.iter().flat_map(|(_, seen)| seen).map(|(_, _, [x1, y1, x2, y2])| (x2 - x1).max(y2 - y1) / 2.0).collect();
        let small = longest.iter().filter(|side| (4.0..=14.0).contains(*side)).count();
        assert!(longest.len() > 40 && 2 * small > longest.len(), "{small} of {}: {longest:?}", longest.len());
        let mean = |all: &[(Exposure, Vec<Seen>)]| {
            let all: Vec<f32> = all.iter().flat_map(|(picture, seen)| contrast(picture, spec.width as usize, seen)).collect();
            all.iter().sum::<f32>() / all.len() as f32
        };
        let (faint, clear) = (mean(&frames), mean(&drawn(&easy)));
        assert!(faint < 0.9 * clear, "{faint} {clear}");
        // Warm is black in some clips of winter and in none of another season, and white in some of all.
        let many = Film::all(&spec, &clips, "train", 12, 12);
        let inverted = |film: &Film| film.frame(&SampleSpec { width: 64, height: 64, ..spec.clone() }, 0).0.inverted;
        let by_month = |months: &[u32]| many.iter().filter(|film| months.contains(&film.month)).map(inverted).collect::<Vec<_>>();
        let (winter, summer) = (by_month(&[1, 12]), by_month(&[6, 11]));
        assert!(winter.contains(&true) && winter.contains(&false) && !summer.contains(&true));
        // Things in the way are of the place, decoys of the clip; neither is an object.
        let empty = SampleSpec { empty: 1.0, ..spec.clone() };
        assert!(Film::all(&empty, &clips, "val", 1, 1).iter().all(|film| film.frame(&empty, 0).1.is_empty()));
    }

    #[test]
    fn a_year_is_warm_in_summer_and_light_by_day_and_ids_are_their_own() {
        let clips = ClipSpec { train: 30, frames: ClipLength::Of(2), ..ClipSpec::default() };
        let mut films = films(&clips);
        let mean = |months: &[u32]| {
            let of: Vec<f64> = films.iter().filter(|f| months.contains(&f.month)).map(|f| f.weather.temperature).collect();
            of.iter().sum::<f64>() / of.len() as f64
        };
        assert!(mean(&[6, 7, 8]) > mean(&[12, 1, 2]) + 10.0);
        assert!(films.iter().filter(|f| f.hour < 2).all(|f| f.weather.sun == 0.0) && films.iter().any(|f| f.weather.sun > 0.5));
        assert!(films.iter().any(|f| f.tracks.is_empty()) && films.iter().any(|f| f.weather.rain > 0.0));
        let mut ids: Vec<u64> = films.iter().flat_map(|f| (0..2).map(|i| f.id(i))).collect();
        assert!(ids.iter().all(|id| id.to_string().len() == 17), "{}", ids[0]);
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
        let text = films[0].image_json(&SampleSpec::default(), 1, "a.jpg");
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((json["id"].as_u64(), json["meta"]["Camera"].as_f64()), (Some(films[0].id(1)), Some(0.0)));
        films[0].weather.temperature = -0.03;
        let text = films[0].image_json(&SampleSpec::default(), 1, "a.jpg");
        assert!(text.contains("\"Temperature\":0,"), "{text}");
        let seen = (3, 1, [1.0, 2.0, 4.5, 8.0]);
        let json: serde_json::Value = serde_json::from_str(&films[0].annotation_json(1, &seen)).unwrap();
        assert_eq!((json["category_id"].as_u64(), json["bbox"][2].as_f64()), (Some(2), Some(3.5)));
    }
}
