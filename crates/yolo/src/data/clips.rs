//! Which frames are of one clip.
//!
//! What a file calls a clip is the name of one only together with its day and its camera, as far as these are known: numbers begin anew on every day, as
//! LTDv2's do (`clip_22_2307` lies in the folder of a date), and with every camera. A clip that goes on over midnight is one, and called by the day it began
//! on: it goes on where the step over midnight is no gap, by the rule of `frame_interval`. Where two splits have unlike parts of such a clip the same clip may have
//! two names; that they share their time is seen all the same (`leak`). A frame of which no clip is told is of the one that its folder is.

use std::collections::HashMap;
use std::path::Path;

use super::frame_interval::{FEW, GAP, typical_interval};
use super::moment::Moment;

/// What is known of the clip of a frame.
pub(crate) enum OfClip<'a> {
    /// What its file tells: the clip's name, the camera, when the frame was taken.
    Named { name: &'a str, camera: Option<&'a str>, taken: Option<&'a str> },
    /// Nothing but the folder.
    Folder(String),
}

impl OfClip<'_> {
    pub(crate) fn folder(image: &Path) -> Self {
        Self::Folder(image.parent().map(|p| p.to_string_lossy().replace('\\', "/")).unwrap_or_default())
    }
}

#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    /// Name, camera, day.
    Named(&'a str, Option<&'a str>, Option<i64>),
    Folder(String),
}

/// The clips of a list of frames.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Clips {
    /// In the order of their first frames.
    pub(crate) names: Vec<String>,
    /// Of each, whether its file tells of it; else it is a folder, which may be no clip at all.
    pub(crate) named: Vec<bool>,
    /// Of each frame, the number of its clip.
    pub(crate) of: Vec<u32>,
}

/// The frames of one key: of a clip that goes on over midnight those of one day.
struct Part {
    name: String,
    named: bool,
    /// Milliseconds.
    times: Vec<i64>,
}

impl Part {
    fn new(key: &Key<'_>, moment: Option<Moment>) -> Self {
        let name = match key {
            Key::Folder(folder) => folder.clone(),
            Key::Named(name, camera, _) => {
                let date = moment.map(|moment| format!(" {}", moment.date())).unwrap_or_default();
                let camera = camera.map(|camera| format!(" camera {camera}")).unwrap_or_default();
                format!("{name}{date}{camera}")
            }
        };
        Self { name, named: matches!(key, Key::Named(..)), times: Vec::new() }
    }

    fn steps(&self) -> impl Iterator<Item = i64> {
        self.times.windows(2).map(|pair| pair[1] - pair[0])
    }

    /// Whether `after`, of the next day, goes on with this, where `all` is the step of all clips. Of frames that have a date and no time of day nobody can say, and each day is a clip.
    fn goes_on(&self, after: &Self, all: Option<f64>) -> bool {
        let (Some(last), Some(first)) = (self.times.last(), after.times.first()) else { return false };
        let own: Vec<i64> = self.steps().chain(after.steps()).collect();
        let usual = if own.len() < FEW { all.or(typical_interval(own)) } else { typical_interval(own) };
        usual.is_some_and(|usual| ((first - last) as f64) < GAP * usual)
    }
}

/// The clips of `frames`.
pub(crate) fn assign_clips<'a>(frames: impl Iterator<Item = OfClip<'a>>) -> Clips {
    let mut known: HashMap<Key<'a>, u32> = HashMap::new();
    let (mut parts, mut of): (Vec<Part>, Vec<u32>) = (Vec::new(), Vec::new());
    for frame in frames {
        let (key, moment) = match frame {
            OfClip::Folder(folder) => (Key::Folder(folder), None),
            OfClip::Named { name, camera, taken } => {
                let moment = taken.and_then(Moment::read);
                (Key::Named(name, camera, moment.map(|moment| moment.days())), moment)
            }
        };
        let next = parts.len() as u32;
        let part = *known.entry(key).or_insert_with_key(|key| {
            parts.push(Part::new(key, moment));
            next
        });
        parts[part as usize].times.extend(moment.map(|moment| moment.milliseconds()));
        of.push(part);
    }
    let begun = begun(&known, &mut parts);
    let mut numbers: Vec<Option<u32>> = vec![None; parts.len()];
    let (mut names, mut named) = (Vec::new(), Vec::new());
    for clip in &mut of {
        let first = begun[*clip as usize];
        *clip = *numbers[first].get_or_insert_with(|| {
            names.push(std::mem::take(&mut parts[first].name));
            named.push(parts[first].named);
            names.len() as u32 - 1
        });
    }
    Clips { names, named, of }
}

/// The part that the clip of each part began with.
fn begun<'a>(known: &HashMap<Key<'a>, u32>, parts: &mut [Part]) -> Vec<usize> {
    let mut begun: Vec<usize> = (0..parts.len()).collect();
    let day_before = |(key, after): (&Key<'a>, &u32)| match key {
        Key::Named(name, camera, Some(day)) => {
            let before = known.get(&Key::Named(name, *camera, Some(day - 1)))?;
            Some((*day, *before as usize, *after as usize))
        }
        _ => None,
    };
    let mut days: Vec<(i64, usize, usize)> = known.iter().filter_map(day_before).collect();
    if days.is_empty() {
        return begun;
    }
    // The first day first: where a part began is known before one goes on with it.
    days.sort_unstable();
    parts.iter_mut().for_each(|part| part.times.sort_unstable());
    let all = typical_interval(parts.iter().flat_map(Part::steps).collect());
    for (_, before, after) in days {
        if parts[before].goes_on(&parts[after], all) {
            begun[after] = begun[before];
        }
    }
    begun
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clips of frames of one name, each with its camera and moment.
    fn of(frames: &[(&str, &str)]) -> (Vec<String>, Vec<u32>) {
        let known = |text| Some(text).filter(|text: &&str| !text.is_empty());
        let named = frames.iter().map(|&(camera, taken)| OfClip::Named { name: "c0", camera: known(camera), taken: known(taken) });
        let clips = assign_clips(named);
        assert!(clips.named.iter().all(|named| *named));
        (clips.names, clips.of)
    }

    #[test]
    fn a_name_is_of_one_day_and_one_camera() {
        let (names, clips) = of(&[
            ("1", "2020-05-14T10:00:00"),
            ("1", "2020-05-15T10:00:00"),
            ("2", "2020-05-14T10:00:00"),
            ("1", "2020-05-14T10:00:01"),
            ("1", "2020-05-15T10:00:01"),
        ]);
        assert_eq!(clips, [0, 1, 2, 0, 1]);
        assert_eq!(names, ["c0 2020-05-14 camera 1", "c0 2020-05-15 camera 1", "c0 2020-05-14 camera 2"]);
        assert_eq!(of(&[("", "2020-05-14"), ("", "2020-05-15"), ("", "2020-05-14")]).1, [0, 1, 0], "a date alone is a day");
        assert_eq!(of(&[("", ""), ("", "soon"), ("7", "")]), (vec!["c0".into(), "c0 camera 7".into()], vec![0, 0, 1]));
        let folders = ["a/1.jpg", "b/1.jpg", "a/2.jpg"].map(|path| OfClip::folder(Path::new(path)));
        let clips = assign_clips(folders.into_iter());
        assert_eq!(clips, Clips { names: vec!["a".into(), "b".into()], named: vec![false; 2], of: vec![0, 1, 0] });
    }

    #[test]
    fn a_clip_goes_on_over_midnight_where_its_steps_do() {
        let over = |first: &str| {
            of(&[
                ("", "2020-05-31T23:59:57"),
                ("", "2020-05-31T23:59:58"),
                ("", "2020-05-31T23:59:59"),
                ("", first),
                ("", "2020-06-01T00:00:30"),
            ])
        };
        assert_eq!(over("2020-06-01T00:00:00"), (vec!["c0 2020-05-31".into()], vec![0; 5]));
        assert_eq!(over("2020-06-01T00:00:01").1, [0, 0, 0, 1, 1], "a second is missing");
        // Through two midnights, an hour from frame to frame, whichever stands first in the list; the day before yesterday is none that it goes on with.
        let hours: Vec<String> = (0..60).map(|i| format!("2020-02-{:02}T{:02}:00:00", 27 + i / 24, i % 24)).collect();
        let mut frames: Vec<(&str, &str)> = hours.iter().map(|at| ("", at.as_str())).collect();
        frames.reverse();
        assert_eq!(of(&frames), (vec!["c0 2020-02-27".into()], vec![0; frames.len()]));
        frames.retain(|(_, at)| !at.contains("-28T"));
        assert_eq!(of(&frames).0, ["c0 2020-02-29", "c0 2020-02-27"]);
        // Where there are too few steps the others are asked: here c0 of another camera, with a frame a second.
        let (_, clips) = of(&[
            ("1", "2020-05-31T23:59:59"),
            ("1", "2020-06-01T00:00:00"),
            ("2", "2020-05-31T10:00:00"),
            ("2", "2020-05-31T10:00:01"),
            ("2", "2020-05-31T10:00:02"),
        ]);
        assert_eq!(clips, [0, 0, 1, 1, 1]);
    }
}
