//! `sample:` of a data.yaml: which data set is drawn where there is none.

use std::path::PathBuf;

use bellows_settings::{plain, unknown};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Class indices, as in datasets/ltdv2.yaml.
const NAMES: [&str; 4] = ["person", "bicycle", "motorcycle", "vehicle"];

/// The `sample:` settings of a data.yaml.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SampleSpec {
    /// Of all draws.
    pub seed: u64,
    /// Training frames.
    pub train: u32,
    /// Validation frames.
    pub val: u32,
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// JPEG quality, 1..100.
    pub quality: u8,
    /// 0 (clear) to 1 (little contrast, more noise, more distant objects).
    pub difficulty: f64,
    /// Size of all objects; at 1 a person is 14 to 45 pixels tall in a frame of 288.
    pub object_scale: f64,
    /// Fraction of frames without objects.
    pub empty: f64,
    /// Objects in a frame: 1 to about this plus 2.
    pub objects: u32,
    /// 16-bit PNG in hundredths of a kelvin instead of JPEG.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deep: bool,
    /// Clips of static cameras through months instead of `train` and `val` single frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clips: Option<ClipSpec>,
}

/// Clips at one frame a second; `empty` is then the share of clips without objects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClipSpec {
    /// Places.
    pub cameras: u32,
    /// Months that validation covers, from May 2020 on.
    pub months: u32,
    /// The first of them, which training covers.
    pub train_months: u32,
    /// Training clips of a camera in a month.
    pub train: u32,
    /// Validation clips of a camera in a month, of other days and hours.
    pub val: u32,
    /// Frames of a clip.
    pub frames: ClipLength,
    /// 0 to 1: how faint objects are before a background that drifts, how much stands before them, how many warm things are none of them, how far the
    /// sensor changes with the months.
    #[serde(skip_serializing_if = "is_zero")]
    pub hard: f64,
}

/// How many frames clips have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "clips: `frames` must be a whole number, or [fewest, most]")]
pub enum ClipLength {
    /// All of them; it is described as it was before there was another way, so that what was drawn then is not drawn again.
    Of(u32),
    /// Each from the first to the second.
    Between([u32; 2]),
}

impl ClipLength {
    /// Fewest and most.
    pub(crate) fn bounds(self) -> [u32; 2] {
        match self {
            Self::Of(frames) => [frames, frames],
            Self::Between(bounds) => bounds,
        }
    }
}

/// What is not hard is described as it was before there was hardness.
fn is_zero(hard: &f64) -> bool {
    *hard == 0.0
}

impl Default for ClipSpec {
    fn default() -> Self {
        Self { cameras: 2, months: 12, train_months: 8, train: 4, val: 2, frames: ClipLength::Of(12), hard: 0.0 }
    }
}

impl ClipSpec {
    /// The key that is out of range, and its range.
    fn fault(&self) -> Option<(&'static str, &'static str)> {
        let [fewest, most] = self.frames.bounds();
        let rules = [
            ("cameras", (1..=9).contains(&self.cameras), "1 to 9"),
            ("months", (1..=120).contains(&self.months), "1 to 120"),
            ("train_months", (1..=self.months).contains(&self.train_months), "1 to `months`"),
            ("train", (1..=100).contains(&self.train), "1 to 100"),
            ("val", (1..=100).contains(&self.val), "1 to 100"),
            (
                "cameras",
                self.cameras.saturating_mul(self.months).saturating_mul(self.train.max(self.val)) <= 10_000,
                "such that a split has at most 10000 clips",
            ),
            ("frames", (1..=most).contains(&fewest) && most <= 1000, "1 to 1000, or [fewest, most] of these"),
            ("hard", (0.0..=1.0).contains(&self.hard), "0 to 1"),
        ];
        rules.iter().find(|(_, good, _)| !good).map(|&(key, _, range)| (key, range))
    }
}

impl Default for SampleSpec {
    fn default() -> Self {
        Self {
            seed: 0,
            train: 256,
            val: 64,
            width: 384,
            height: 288,
            quality: 90,
            difficulty: 0.3,
            object_scale: 1.0,
            empty: 0.1,
            objects: 5,
            deep: false,
            clips: None,
        }
    }
}

impl SampleSpec {
    /// From the YAML's mapping (or null for the defaults).
    ///
    /// # Errors
    /// The reason, naming the key.
    pub fn from_value(value: &Value) -> Result<Self, String> {
        const KEYS: [&str; 12] =
            ["seed", "train", "val", "width", "height", "quality", "difficulty", "object_scale", "empty", "objects", "deep", "clips"];
        let map = match value {
            Value::Null => return Ok(Self::default()),
            Value::Object(map) => map,
            _ => return Err("`sample` must be a map of settings".into()),
        };
        if let Some(key) = map.keys().find(|k| !KEYS.contains(&k.as_str())) {
            return Err(format!("sample: {}", unknown("key", key, KEYS)));
        }
        let spec: Self = serde_json::from_value(value.clone()).map_err(|e| format!("sample: {}", plain(value, &e)))?;
        let rules = [
            ("train", spec.train >= 1 && spec.train <= 1_000_000, "1 to 1000000"),
            ("val", spec.val >= 1 && spec.val <= 1_000_000, "1 to 1000000"),
            ("width", (64..=4096).contains(&spec.width), "64 to 4096"),
            ("height", (64..=4096).contains(&spec.height), "64 to 4096"),
            ("quality", (1..=100).contains(&spec.quality), "1 to 100"),
            ("difficulty", (0.0..=1.0).contains(&spec.difficulty), "0 to 1"),
            ("object_scale", (0.3..=4.0).contains(&spec.object_scale), "0.3 to 4"),
            ("empty", (0.0..=1.0).contains(&spec.empty), "0 to 1"),
            ("objects", (1..=40).contains(&spec.objects), "1 to 40"),
        ];
        if let Some((key, range)) = spec.clips.as_ref().and_then(ClipSpec::fault) {
            return Err(format!("sample: clips: `{key}` must be {range}"));
        }
        match rules.iter().find(|(_, good, _)| !good) {
            Some((key, _, range)) => Err(format!("sample: `{key}` must be {range}")),
            None => Ok(spec),
        }
    }

    /// Where the images of a split are, relative to the root: a folder, or clips' COCO file.
    pub(crate) fn source(&self, split: &str) -> PathBuf {
        match (&self.clips, split) {
            (None, _) => PathBuf::from("images").join(split),
            (Some(_), "train") => "Train.json".into(),
            (Some(_), _) => "Valid.json".into(),
        }
    }

    /// The class names of generated data.
    pub fn names() -> [&'static str; 4] {
        NAMES
    }
}
