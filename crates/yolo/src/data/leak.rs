//! Frames of two splits that are nearly the same picture: of one clip, or taken within a minute of each other.
//!
//! A detector that is judged on the next second of what it learnt is judged too well. Only images are compared of which something is known: clips
//! by their names, times within one camera where the meta names it.

use std::collections::{BTreeMap, HashSet};

use super::description::Split;
use super::meta::{FrameMeta, MOMENT};
use super::moment::Moment;
use super::scan::Scan;

/// Nearer than this, seconds, two frames of a camera show the same.
const NEAR: i64 = 60;

/// A line about clips in both, and one about frames that are too near.
pub fn leaks((first, a): (Split, &Scan), (second, b): (Split, &Scan)) -> Vec<String> {
    if a.meta.keys().is_empty() || b.meta.keys().is_empty() {
        return Vec::new();
    }
    let (one, other) = (first.key(), second.key());
    let mut lines = Vec::new();
    let clips = |meta: &'_ FrameMeta| (0..meta.clips() as u32).map(|c| meta.clip_name(c).to_string()).collect::<HashSet<_>>();
    let mut both: Vec<String> = clips(&a.meta).intersection(&clips(&b.meta)).cloned().collect();
    both.sort_unstable();
    if let Some(name) = both.first().filter(|_| a.meta.clips() > 1) {
        lines.push(format!(
            "warning: {} clips have frames in both {one} and {other} ({name} the first): neighbours are nearly the same picture, and {other} is judged too well",
            both.len()
        ));
    }
    let times = times(&a.meta, a.len());
    let near = |i: &usize| {
        let Some((camera, at)) = time(&b.meta, *i) else { return false };
        let Some(of_camera) = times.get(&camera) else { return false };
        let next = of_camera.partition_point(|&t| t < at - NEAR);
        of_camera.get(next).is_some_and(|&t| t <= at + NEAR)
    };
    let count = (0..b.len()).filter(near).count();
    if lines.is_empty() && count > 0 {
        lines.push(format!("warning: {count} of {} images of {other} were taken within {NEAR} s of one of {one}", b.len()));
    }
    lines
}

/// Camera and second of an image.
fn time(meta: &FrameMeta, index: usize) -> Option<(String, i64)> {
    let camera = meta.keys().into_iter().find(|k| k.eq_ignore_ascii_case("camera"));
    let camera = camera.and_then(|key| meta.get(index, key)).unwrap_or_default().to_string();
    Some((camera, Moment::read(meta.get(index, MOMENT)?)?.seconds()))
}

/// By camera, sorted.
fn times(meta: &FrameMeta, images: usize) -> BTreeMap<String, Vec<i64>> {
    let mut times: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for (camera, at) in (0..images).filter_map(|i| time(meta, i)) {
        times.entry(camera).or_default().push(at);
    }
    times.values_mut().for_each(|list| list.sort_unstable());
    times
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::image::tests::jpeg;
    use crate::data::{DataConfig, ScanOptions, scan};

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
            let images: Vec<String> = frames.iter().enumerate().map(image).collect();
            std::fs::write(dir.path().join(format!("{json}.json")), format!(r#"{{"images":[{}]}}"#, images.join(","))).unwrap();
            let yaml = format!("train: {json}.json\nval: {json}.json\nnames: [a]\n");
            let config = DataConfig::parse(&yaml, &dir.path().join("d.yaml")).unwrap();
            scan(&config, Split::Train, &ScanOptions { cache_dir: None, ..ScanOptions::default() }, &|_, _| {}).unwrap()
        };
        let train = split("t", &[("c1", "2020-05-14T10:00:00", "1"), ("c2", "2020-05-14T12:00:00", "1")]);
        let told = |val: &Scan| leaks((Split::Train, &train), (Split::Val, val));
        assert_eq!(told(&split("u", &[("c3", "2020-05-15T10:00:00", "1"), ("c4", "2020-05-14T10:00:10", "2")])), Vec::<String>::new());
        let both = told(&split("v", &[("c2", "2020-05-14T12:00:01", "1")]));
        assert!(both.len() == 1 && both[0].starts_with("warning: 1 clips have frames in both train and val (frames/c2"), "{both:?}");
        let near = told(&split("w", &[("c5", "2020-05-14T12:00:59", "1"), ("c5", "2020-05-14T12:01:01", "1")]));
        assert_eq!(near, ["warning: 1 of 2 images of val were taken within 60 s of one of train"]);
        // Of a data set in one folder every image has the same clip.
        let one = split("x", &[("c6", "2020-05-14T10:00:00", "1"), ("c6", "2020-05-14T10:00:01", "1")]);
        let other = split("y", &[("c6", "2020-05-14T10:00:02", "1"), ("c6", "2020-05-15T10:00:02", "1")]);
        let near = leaks((Split::Train, &one), (Split::Val, &other));
        assert_eq!(near, ["warning: 1 of 2 images of val were taken within 60 s of one of train"]);
    }
}
