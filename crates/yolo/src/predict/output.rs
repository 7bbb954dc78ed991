//! What is written of a prediction: a line for a person, an object for a program, label files, crops.
//!
//! Class names come from a weight file, which may be a stranger's: as names of folders they lose everything that could lead elsewhere.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use bellows_learner::format_g;
use bellows_runs::open_regular;
use serde_json::{Value, json};

use crate::boxes::{Detection, xyxy_to_xywh};
use crate::data::{Frame, Size};

/// What a crop's comment begins with.
const CROP_OF: &str = "crop of ";
/// What precedes a comment in a JPEG, and its length.
const COMMENT: [u8; 2] = [0xFF, 0xFE];
/// Bytes of a file that are searched for it, and more.
const HEAD: u64 = 4096;

/// `4 persons, 1 bus`, in the order of classes; `(no detections)`.
pub fn sentence(found: &[Detection], names: &[String]) -> String {
    let mut counts = BTreeMap::new();
    found.iter().for_each(|d| *counts.entry(d.class).or_insert(0usize) += 1);
    if counts.is_empty() {
        return "(no detections)".into();
    }
    let parts = counts.into_iter().map(|(class, n)| format!("{n} {}{}", name(names, class), if n > 1 { "s" } else { "" }));
    parts.collect::<Vec<_>>().join(", ")
}

/// One line of JSON: `image`, `frame` (of a film, from 0), `width`, `height` and `detections`, each with `class`, `name`, `confidence` and `box`
/// (`x1`, `y1`, `x2`, `y2` in pixels).
pub fn json_line(image: &str, frame: Option<u64>, size: Size, found: &[Detection], names: &[String]) -> String {
    let round = |v: f32, unit: f64| (f64::from(v) * unit).round() / unit;
    let detections = found.iter().map(|d| {
        let [x1, y1, x2, y2] = d.xyxy.map(|v| round(v, 1e2));
        let place = json!({ "x1": x1, "y1": y1, "x2": x2, "y2": y2 });
        json!({ "class": d.class, "name": name(names, d.class), "confidence": round(d.score, 1e5), "box": place })
    });
    let mut line = json!({ "image": image, "width": size.width, "height": size.height, "detections": detections.collect::<Vec<_>>() });
    if let Some(frame) = frame {
        line["frame"] = Value::from(frame);
    }
    line.to_string()
}

/// A label file: `class x y w h` a line, normalised to the image, the confidence behind it if `conf`.
pub fn label_lines(found: &[Detection], size: Size, conf: bool) -> String {
    let [width, height] = [size.width, size.height].map(f64::from);
    let line = |d: &Detection| {
        let [x, y, w, h] = xyxy_to_xywh(d.xyxy).map(f64::from);
        let mut numbers = vec![x / width, y / height, w / width, h / height];
        numbers.extend(conf.then_some(f64::from(d.score)));
        let numbers: Vec<String> = numbers.into_iter().map(|v| format_g(v, 6)).collect();
        format!("{} {}\n", d.class, numbers.join(" "))
    };
    found.iter().map(line).collect()
}

/// The part of a frame that a detection covers, with a little around it (2 % and 10 pixels); `None` where nothing of it lies in the frame.
pub fn crop(frame: &Frame, detection: &Detection) -> Option<Frame> {
    let [x, y, w, h] = xyxy_to_xywh(detection.xyxy);
    let [w, h] = [w, h].map(|side| side * 1.02 + 10.0);
    let clip = |v: f32, end: usize| (v.max(0.0) as usize).min(end);
    let (x1, x2) = (clip(x - w / 2.0, frame.width), clip(x + w / 2.0, frame.width));
    let (y1, y2) = (clip(y - h / 2.0, frame.height), clip(y + h / 2.0, frame.height));
    if x1 >= x2 || y1 >= y2 {
        return None;
    }
    let mut part = Frame::filled(frame.channels, x2 - x1, y2 - y1, 0);
    part.paste(frame, (x1, y1), (0, 0), x2 - x1, y2 - y1);
    Some(part)
}

/// A JPEG with a comment that says what it is a crop of: its file is called by a number where others are, which may be another image's own name.
pub fn signed(jpeg: &[u8], of: &str) -> Vec<u8> {
    let text = format!("{CROP_OF}{of}");
    let length = (text.len() as u16 + 2).to_be_bytes();
    let (begin, rest) = jpeg.split_at(behind_jfif(jpeg));
    [begin, &COMMENT[..], &length[..], text.as_bytes(), rest].concat()
}

/// What the file at `path` is a crop of, if it says so.
pub fn crop_of(path: &Path) -> Option<String> {
    let mut head = Vec::new();
    open_regular(path).ok()?.take(HEAD).read_to_end(&mut head).ok()?;
    let (length, text) = head.get(behind_jfif(&head)..)?.strip_prefix(&COMMENT)?.split_first_chunk()?;
    let text = text.get(..usize::from(u16::from_be_bytes(*length)).checked_sub(2)?)?;
    std::str::from_utf8(text).ok()?.strip_prefix(CROP_OF).map(str::to_owned)
}

/// Where comments stand in a JPEG as it is written here: behind the segment that says that it is one, which some look for in its first bytes.
fn behind_jfif(jpeg: &[u8]) -> usize {
    match jpeg {
        [0xFF, 0xD8, 0xFF, 0xE0, high, low, ..] => 4 + usize::from(u16::from_be_bytes([*high, *low])),
        _ => 0,
    }
}

/// A folder for each class, called by its name, with a number where another would have the same.
pub fn folders(names: &[String]) -> Vec<String> {
    let plain = names.iter().enumerate().map(|(class, name)| {
        let safe: String = name.chars().map(|c| if c.is_alphanumeric() || matches!(c, ' ' | '-' | '_') { c } else { '_' }).collect();
        if safe.trim().is_empty() { format!("class_{class}") } else { shortened(&safe, LONGEST).to_owned() }
    });
    let plain: Vec<String> = plain.collect();
    let (mut fresh, owned) = (FreshNames::default(), plain.iter().cloned().collect());
    plain.iter().map(|name| fresh.fresh(name, &owned).display().to_string()).collect()
}

/// What a class is called in `names`, or by its number.
pub fn name(names: &[String], class: u32) -> String {
    names.get(class as usize).cloned().unwrap_or_else(|| format!("class_{class}"))
}

/// Bytes of a file's name but for its suffix: file systems have room for 255, of which a suffix may take four.
pub(super) const LONGEST: usize = 251;

/// The first `bytes` of a name, or a letter's less.
pub(super) fn shortened(name: &str, bytes: usize) -> &str {
    &name[..name.floor_char_boundary(bytes)]
}

/// File names that nobody has had yet: images of one name from two folders do not overwrite each other. Of each name, the number that is tried next.
#[derive(Debug, Default)]
pub struct FreshNames(HashMap<String, u64>);

impl FreshNames {
    /// `stem`, or `stem_2`, `stem_3`, ... without those that are `owned`: a number does not take the name that another image has by itself. Of a `stem` that leaves it
    /// no room in the name of a file the end is left out.
    pub fn fresh(&mut self, stem: &str, owned: &HashSet<String>) -> PathBuf {
        let is_owned = |name: &str| owned.contains(name.rsplit('/').next().unwrap_or(name));
        let longest = stem.rfind('/').map_or(0, |at| at + 1) + LONGEST;
        let mut name = stem.to_string();
        let mut number = self.0.get(stem).copied().unwrap_or(2);
        let mut is_free = !self.0.contains_key(stem);
        while !is_free {
            let ending = format!("_{number}");
            name = shortened(stem, longest - ending.len()).to_owned() + &ending;
            number += 1;
            is_free = !self.0.contains_key(&name) && !is_owned(&name);
        }
        self.0.insert(stem.into(), number);
        self.0.entry(name.clone()).or_insert(2);
        name.into()
    }

    /// Whether somebody has this name.
    pub fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> [Detection; 3] {
        let d = |xyxy, score, class| Detection { xyxy, score, class };
        [d([10.0, 20.0, 30.0, 60.0], 0.9, 1), d([0.0, 0.0, 10.0, 10.0], 0.5, 0), d([5.0, 5.0, 6.0, 6.0], 0.25, 1)]
    }

    fn names() -> Vec<String> {
        vec!["car".into(), "person".into()]
    }

    const SIZE: Size = Size { width: 100, height: 80 };

    #[test]
    fn people_and_programs_are_told() {
        assert_eq!(sentence(&found(), &names()), "1 car, 2 persons");
        assert_eq!(sentence(&[], &names()), "(no detections)");
        let line: Value = serde_json::from_str(&json_line("a.jpg", Some(3), SIZE, &found()[..1], &names())).unwrap();
        let place = json!({ "x1": 10.0, "y1": 20.0, "x2": 30.0, "y2": 60.0 });
        assert_eq!(line["detections"], json!([{ "class": 1, "name": "person", "confidence": 0.9, "box": place }]));
        assert_eq!((&line["frame"], &line["width"]), (&json!(3), &json!(100)));
        assert!(!json_line("a.jpg", None, SIZE, &[], &[]).contains("frame"));
        assert_eq!(label_lines(&found()[..2], SIZE, true), "1 0.2 0.5 0.2 0.5 0.9\n0 0.05 0.0625 0.1 0.125 0.5\n");
        assert_eq!(label_lines(&found()[..1], SIZE, false), "1 0.2 0.5 0.2 0.5\n");
    }

    #[test]
    fn crops_lie_in_the_frame_and_folders_in_theirs() {
        let frame = Frame { pixels: (0..=255).cycle().take(100 * 80).collect(), channels: 1, width: 100, height: 80, difference: false };
        let part = crop(&frame, &found()[1]).unwrap();
        assert_eq!((part.width, part.height, part.pixels[1]), (15, 15, 1));
        assert!(crop(&frame, &Detection { xyxy: [200.0, 0.0, 210.0, 5.0], ..found()[0] }).is_none());
        // Of letters of four bytes; those that are cut off are all that two of them differ in.
        let [long, other] = ["a", "b"].map(|end| "𠀀".repeat(80) + end);
        let names = ["../../etc", " ", &long, &other, "a/b", "a?b", "a_b_2"].map(String::from);
        let cut = "𠀀".repeat(62);
        let expected = ["______etc", "class_1", &cut, &format!("{cut}_2"), "a_b", "a_b_3", "a_b_2"];
        assert_eq!(folders(&names), expected);
        let (mut fresh, mut owned) = (FreshNames::default(), HashSet::new());
        assert!(!fresh.contains("a_2"));
        assert_eq!(["a", "a", "a_2", "a"].map(|s| fresh.fresh(s, &owned).display().to_string()), ["a", "a_2", "a_2_2", "a_3"]);
        assert_eq!(["a_3", "a_4", "a"].map(|s| fresh.fresh(s, &owned).display().to_string()), ["a_3_2", "a_4", "a_5"]);
        assert!(fresh.contains("a_2") && !fresh.contains("a_6"));
        // Counted on, and not from 2 each time.
        (1..20_000).for_each(|_| drop(fresh.fresh("b", &owned)));
        assert_eq!(fresh.fresh("b", &owned), PathBuf::from("b_20000"));
        owned.extend(["c", "c_2"].map(String::from));
        let names = ["c", "c", "c_2", "c_2", "car/c", "car/c"].map(|s| fresh.fresh(s, &owned).display().to_string());
        assert_eq!(names, ["c", "c_3", "c_2", "c_2_2", "car/c", "car/c_3"]);
        // Names as long as may be, of letters of two bytes; the second has all but its last bytes in common.
        let [long, other] = ["a", "b"].map(|end| format!("car/{}{end}", "é".repeat(125)));
        let names = [&long, &long, &other, &other].map(|s| fresh.fresh(s, &owned).display().to_string());
        let begin = format!("car/{}", "é".repeat(124));
        assert_eq!(names, [long, format!("{begin}_2"), other, format!("{begin}_3")]);
    }
}
