//! Frames of two splits that are nearly the same picture: of one clip, of clips that share their time, or taken within a minute of each other.
//!
//! A detector that is judged on the next second of what it learnt is judged too well. Only images are compared of which something is known beside their
//! pixels, for of others nobody can say whether a folder is a clip: clips by their names, times within one camera where the meta names it. What
//! lasts longer than a day is no clip but a folder: of it only single frames are compared. Nor is the one folder of all images that have no named clip.

use std::collections::{BTreeMap, HashSet};

use super::description::Split;
use super::meta::{FrameMeta, MOMENT};
use super::moment::Moment;
use super::scan::Scan;

/// Nearer than this, seconds, two frames of a camera show the same.
const NEAR: i64 = 60;
/// Seconds that a clip lasts at most.
const LONGEST: i64 = 86_400;

/// A line about clips in both, one about clips that share their time, and where there are none of these one about frames that are too near.
pub fn leaks((first, a): (Split, &Scan), (second, b): (Split, &Scan)) -> Vec<String> {
    if !a.meta.tells() || !b.meta.tells() {
        return Vec::new();
    }
    let (one, other) = (first.key(), second.key());
    let too_well = format!("neighbours are nearly the same picture, and {other} is judged too well");
    let mut lines = Vec::new();
    let both = common(&a.meta, &b.meta);
    if let Some(name) = both.first() {
        lines.push(format!("warning: {} clips have frames in both {one} and {other} ({name} the first): {too_well}", both.len()));
    }
    let (theirs, ours) = (Times::new(a), Times::new(b));
    let shared = theirs.shared_with(&ours, |of_a, of_b| name_of(&a.meta, of_a) == name_of(&b.meta, of_b));
    if let Some(&(of_a, of_b)) = shared.first() {
        let ((_, clip), (_, its)) = (name_of(&b.meta, of_b), name_of(&a.meta, of_a));
        let count = shared.iter().map(|(_, of_b)| of_b).collect::<HashSet<_>>().len();
        lines.push(format!(
            "warning: {count} clips of {other} share their time with clips of {one} ({clip} with {its} the first): {too_well}"
        ));
    }
    let near = ours.near(&theirs);
    if let Some((of_a, of_b)) = near.first().filter(|_| lines.is_empty()) {
        let (image, its) = (b.path(*of_b), a.path(*of_a));
        let pair = format!("{} and {} the first", image.display(), its.display());
        lines.push(format!("warning: {} of {} images of {other} were taken within {NEAR} s of one of {one} ({pair})", near.len(), b.len()));
    }
    lines
}

/// Whether the meta names a clip, and what it is called: the folder of all images is `.`.
fn name_of(meta: &FrameMeta, clip: u32) -> (bool, &str) {
    let name = meta.clip_name(clip);
    (meta.is_named(clip), if name.is_empty() { "." } else { name })
}

/// The names of clips that both have. Folders are clips where a split has several of them: one, of all images or of those without a named clip, is none.
fn common<'a>(a: &'a FrameMeta, b: &FrameMeta) -> Vec<&'a str> {
    let several = |meta: &FrameMeta| (0..meta.clips() as u32).filter(|&clip| !meta.is_named(clip)).count() > 1;
    let folders = several(a) || several(b);
    let theirs: HashSet<(bool, &str)> = (0..b.clips() as u32).map(|clip| name_of(b, clip)).collect();
    let ours = (0..a.clips() as u32).map(|clip| name_of(a, clip));
    let mut both: Vec<&str> = ours.filter(|of| (of.0 || folders) && theirs.contains(of)).map(|(_, name)| name).collect();
    both.sort_unstable();
    both
}

/// From and to, in seconds.
type Span = (i64, i64);

/// When a camera took what.
#[derive(Default)]
struct Taken {
    /// Second and index of each image, sorted.
    images: Vec<(i64, usize)>,
    /// Of each clip.
    spans: BTreeMap<u32, Span>,
}

/// The images of a split by camera, as far as their times are known and tell them apart.
struct Times(BTreeMap<String, Taken>);

impl Times {
    fn new(scan: &Scan) -> Self {
        let meta = &scan.meta;
        let mut all: BTreeMap<String, Taken> = BTreeMap::new();
        for i in 0..scan.len() {
            let Some(at) = meta.get(i, MOMENT).and_then(Moment::read).map(|moment| moment.seconds()) else { continue };
            let name = meta.camera(i).unwrap_or_default();
            if !all.contains_key(name) {
                all.insert(name.into(), Taken::default());
            }
            let Some(taken) = all.get_mut(name) else { continue };
            taken.images.push((at, i));
            let span = taken.spans.entry(meta.clip_of()[i]).or_insert((at, at));
            *span = (span.0.min(at), span.1.max(at));
        }
        all.values_mut().for_each(|taken| taken.images.sort_unstable());
        // One moment of all images is that of their export.
        all.retain(|_, Taken { images, .. }| images.len() < 2 || images[0].0 != images[images.len() - 1].0);
        Self(all)
    }

    /// Of these and of the `others` the clips, neither longer than a day, of which one was taken while the other was, or within [`NEAR`]; in the order of the
    /// others' time. Those that `are_one` counts are others' business.
    fn shared_with(&self, others: &Self, are_one: impl Fn(u32, u32) -> bool) -> Vec<(u32, u32)> {
        let mut shared = Vec::new();
        for (camera, others) in &others.0 {
            let Some(own) = self.0.get(camera) else { continue };
            let sorted = |taken: &Taken| {
                let mut spans: Vec<(Span, u32)> = taken.spans.iter().map(|(clip, span)| (*span, *clip)).collect();
                spans.retain(|((from, to), _)| to - from <= LONGEST);
                spans.sort_unstable();
                spans
            };
            let (own, others) = (sorted(own), sorted(others));
            for ((from, to), theirs) in others {
                // What began more than the longest clip before has ended.
                let begin = own.partition_point(|((begin, _), _)| *begin < from - LONGEST - NEAR);
                let end = own.partition_point(|((begin, _), _)| *begin <= to + NEAR);
                let same = own[begin..end].iter().filter(|((_, end), ours)| *end >= from - NEAR && !are_one(*ours, theirs));
                shared.extend(same.map(|(_, ours)| (*ours, theirs)));
            }
        }
        shared
    }

    /// Of these images those that were taken within [`NEAR`] of one of the `others`, each behind that one.
    fn near(&self, others: &Self) -> Vec<(usize, usize)> {
        let mut near = Vec::new();
        for (camera, own) in &self.0 {
            let Some(others) = others.0.get(camera) else { continue };
            for &(at, image) in &own.images {
                let next = others.images.partition_point(|(other, _)| *other < at - NEAR);
                near.extend(others.images.get(next).filter(|(other, _)| *other <= at + NEAR).map(|(_, other)| (*other, image)));
            }
        }
        near
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::data::image::tests::jpeg;
    use crate::data::{DataConfig, ScanOptions, scan};

    /// What a file of these images, elements of its list, holds.
    fn scanned(dir: &Path, json: &str, images: Vec<String>) -> Scan {
        std::fs::write(dir.join(format!("{json}.json")), format!(r#"{{"images":[{}]}}"#, images.join(","))).unwrap();
        let yaml = format!("train: {json}.json\nval: {json}.json\nnames: [a]\n");
        let config = DataConfig::parse(&yaml, &dir.join("d.yaml")).unwrap();
        scan(&config, Split::Train, &ScanOptions { cache_dir: None, ..ScanOptions::default() }, &|_, _| {}).unwrap()
    }

    #[test]
    fn a_clip_that_is_named_is_shared_with_its_day_and_camera() {
        let dir = tempfile::tempdir().unwrap();
        let split = |json: &str, frames: &[(&str, &str)]| {
            let image = |(i, (taken, camera)): (usize, &(&str, &str))| {
                let name = format!("{json}{i}.jpg");
                std::fs::write(dir.path().join(&name), jpeg(64, 48)).unwrap();
                format!(r#"{{"id":{i},"file_name":"{name}","date_captured":"{taken}","meta":{{"clip":"c0","Camera":{camera}}}}}"#)
            };
            scanned(dir.path(), json, frames.iter().enumerate().map(image).collect())
        };
        let told = |a: &Scan, b: &Scan| leaks((Split::Train, a), (Split::Val, b));
        let train = split("t", &[("2020-05-14T10:00:00", "1"), ("2020-05-15T10:00:00", "1")]);
        assert_eq!(train.meta.clips(), 2);
        let other = split("o", &[("2020-05-16T10:00:00", "1"), ("2020-05-14T10:00:00", "2")]);
        assert_eq!(told(&train, &other), Vec::<String>::new(), "the name alone is no clip");
        let same = split("s", &[("2020-05-15T12:00:00", "1")]);
        // A split of one clip has a clip, too.
        let one = split("u", &[("2020-05-15T10:00:00", "1")]);
        for a in [&train, &one] {
            let lines = told(a, &same);
            let begins = "warning: 1 clips have frames in both train and val (c0 2020-05-15 camera 1 the first)";
            assert!(lines.len() == 1 && lines[0].starts_with(begins), "{lines:?}");
        }
    }

    #[test]
    fn a_folder_of_what_has_no_clip_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let split = |json: &str, frames: &[(&str, &str, &str)]| {
            let image = |(i, (folder, clip, taken)): (usize, &(&str, &str, &str))| {
                let name = format!("{folder}{json}{i}.jpg");
                std::fs::create_dir_all(dir.path().join(folder)).unwrap();
                std::fs::write(dir.path().join(&name), jpeg(64, 48)).unwrap();
                format!(r#"{{"id":{i},"file_name":"{name}","date_captured":"{taken}","meta":{{"clip":"{clip}"}}}}"#)
            };
            scanned(dir.path(), json, frames.iter().enumerate().map(image).collect())
        };
        let told = |a: &Scan, b: &Scan| leaks((Split::Train, a), (Split::Val, b));
        let train = split("t", &[("", "n/a", "2020-05-14T10:00:00"), ("", "n/a", "2020-05-14T11:00:00")]);
        let val = split("v", &[("", "n/a", "2020-05-15T10:00:00")]);
        assert_eq!(told(&train, &val), Vec::<String>::new(), "no image has a clip");
        let train = split("u", &[("", "c0", "2020-05-14T10:00:00"), ("", "n/a", "2020-05-14T11:00:00")]);
        let other = split("w", &[("", "c1", "2020-05-15T10:00:00"), ("", "n/a", "2020-05-15T11:00:00")]);
        assert_eq!(told(&train, &other), Vec::<String>::new(), "one of each has none");
        // The folder is called as a clip of the other split is.
        let folder = split("x", &[("c0 2020-05-14/", "n/a", "2020-05-16T10:00:00"), ("c9/", "n/a", "2020-05-17T10:00:00")]);
        assert_eq!(told(&train, &folder), Vec::<String>::new());
        // Where there are several folders each is a clip.
        let several = split("y", &[("", "n/a", "2020-05-15T10:00:00"), ("more/", "n/a", "2020-05-16T10:00:00")]);
        for (a, b) in [(&train, &several), (&several, &train)] {
            let lines = told(a, b);
            assert!(
                lines.len() == 1 && lines[0].starts_with("warning: 1 clips have frames in both train and val (. the first)"),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn a_camera_that_nobody_knows_is_that_of_frames_without_one() {
        let dir = tempfile::tempdir().unwrap();
        let split = |json: &str, folder: &str, taken: &str, meta: &str| {
            let name = format!("{folder}/{json}.jpg");
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
            std::fs::write(dir.path().join(&name), jpeg(64, 48)).unwrap();
            scanned(dir.path(), json, vec![format!(r#"{{"id":1,"file_name":"{name}","date_captured":"{taken}","meta":{meta}}}"#)])
        };
        let train = split("t", "a", "2020-05-14T10:00:00", r#"{"Camera":"n/a"}"#);
        for meta in [r#"{"Camera":"none"}"#, "{}"] {
            let lines = leaks((Split::Train, &train), (Split::Val, &split("v", "b", "2020-05-14T10:00:01", meta)));
            assert!(lines.len() == 1 && lines[0].contains("(b with a the first)"), "{lines:?}");
        }
    }

    #[test]
    fn moments_that_tell_nothing_are_not_compared() {
        let dir = tempfile::tempdir().unwrap();
        let split = |json: &str, folders: [&str; 2], taken: &str| {
            let image = |(i, folder): (usize, &str)| {
                let name = format!("{folder}/{json}{i}.jpg");
                std::fs::create_dir_all(dir.path().join(folder)).unwrap();
                std::fs::write(dir.path().join(&name), jpeg(64, 48)).unwrap();
                format!(r#"{{"id":{i},"file_name":"{name}","date_captured":{taken}}}"#)
            };
            scanned(dir.path(), json, folders.into_iter().enumerate().map(image).collect())
        };
        let told = |a: &Scan, b: &Scan| leaks((Split::Train, a), (Split::Val, b));
        // Every image of an export has its time.
        let exported = r#""2024-03-01T10:00:00+00:00""#;
        let (train, val) = (split("t", ["train"; 2], exported), split("v", ["valid"; 2], exported));
        assert_eq!(told(&train, &val), Vec::<String>::new());
        // Whether a folder is a clip nobody has said.
        let (train, val) = (split("u", ["a", "b"], "0"), split("w", ["a", "b"], "0"));
        assert_eq!(told(&train, &val), Vec::<String>::new());
    }

    #[test]
    fn clips_and_minutes_that_two_splits_share_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let split = |json: &str, frames: &[(&str, &str, &str)]| {
            let image = |(i, (clip, time, camera)): (usize, &(&str, &str, &str))| {
                let name = format!("frames/{clip}/{json}{i}.jpg");
                std::fs::create_dir_all(dir.path().join("frames").join(clip)).unwrap();
                std::fs::write(dir.path().join(&name), jpeg(64, 48)).unwrap();
                format!(r#"{{"id":{i},"file_name":"{name}","date_captured":"{time}","meta":{{"Camera":{camera}}}}}"#)
            };
            scanned(dir.path(), json, frames.iter().enumerate().map(image).collect())
        };
        let train = split("t", &[("c1", "2020-05-14T10:00:00", "1"), ("c2", "2020-05-14T12:00:00", "1")]);
        let told = |val: &Scan| leaks((Split::Train, &train), (Split::Val, val));
        assert_eq!(told(&split("u", &[("c3", "2020-05-15T10:00:00", "1"), ("c4", "2020-05-14T10:00:10", "2")])), Vec::<String>::new());
        let both = told(&split("v", &[("c2", "2020-05-14T12:00:01", "1")]));
        assert!(both.len() == 1 && both[0].starts_with("warning: 1 clips have frames in both train and val (frames/c2"), "{both:?}");
        // A clip of another name that goes on where one of train ends, and one that has the same name: both are told.
        let near = told(&split("w", &[("c5", "2020-05-14T12:00:59", "1"), ("c5", "2020-05-14T12:01:01", "1")]));
        assert_eq!(near.len(), 1, "{near:?}");
        assert!(
            near[0].starts_with("warning: 1 clips of val share their time with clips of train (frames/c5 with frames/c2 the first)"),
            "{near:?}"
        );
        assert_eq!(told(&split("z", &[("c1", "2020-05-14T10:00:01", "1"), ("c9", "2020-05-14T12:00:30", "1")])).len(), 2);
        // None of the frames is near to another, and the clips were taken at the same time: in turns, or one within the other.
        let long = split("l", &[("m", "2020-05-14T10:00:00", "1"), ("m", "2020-05-14T12:00:00", "1"), ("n", "2020-05-16T10:00:00", "1")]);
        let with_long = |val: &Scan| leaks((Split::Train, &long), (Split::Val, val));
        for (from, to) in [("11:00", "13:00"), ("09:00", "13:00"), ("10:30", "11:30"), ("12:01", "13:00")] {
            let [from, to] = [from, to].map(|at| format!("2020-05-14T{at}:00"));
            let told = with_long(&split("i", &[("o", &from, "1"), ("o", &to, "1")]));
            assert!(told.len() == 1 && told[0].contains("(frames/o with frames/m the first)"), "{told:?}");
        }
        assert!(with_long(&split("j", &[("o", "2020-05-14T12:01:01", "1"), ("o", "2020-05-14T13:00:00", "1")])).is_empty());
        // Of a data set in one folder every image has the same clip; what lasts longer than a day is none.
        let one = split("x", &[("c6", "2020-05-14T10:00:00", "1"), ("c6", "2020-05-14T10:00:01", "1")]);
        let other = split("y", &[("c6", "2020-05-14T10:00:02", "1"), ("c6", "2020-05-15T10:00:02", "1")]);
        let near = leaks((Split::Train, &one), (Split::Val, &other));
        assert!(
            near.len() == 1 && near[0].starts_with("warning: 1 of 2 images of val were taken within 60 s of one of train ("),
            "{near:?}"
        );
        assert!(near[0].contains("c6/y0.jpg and ") && near[0].ends_with("c6/x0.jpg the first)"), "{near:?}");
        let months = split("p", &[("p", "2020-05-14T10:00:00", "1"), ("p", "2020-06-14T10:00:00", "1"), ("q", "2020-08-14T10:00:00", "1")]);
        let between = split("r", &[("r", "2020-05-20T10:00:00", "1"), ("r", "2020-07-14T10:00:00", "1")]);
        assert!(leaks((Split::Train, &months), (Split::Val, &between)).is_empty());
    }
}
