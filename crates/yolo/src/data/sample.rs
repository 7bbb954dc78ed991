//! A data set for those who have none yet: thermal street scenes, generated once, the same on every machine for the same `sample:` settings.
//!
//! Frames are a function of (seed, split, index) alone. Files are written in YOLO layout, and `sample.json` last: a folder with it is complete and
//! is not generated again unless the settings changed; one with only `sample.partial.json` was interrupted and is made anew. A folder that has
//! files but neither is somebody's, and is refused.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{DataError, thermal};
use crate::boxes::xyxy_to_xywh;

const DONE: &str = "sample.json";
const PARTIAL: &str = "sample.partial.json";
/// Raised when the picture changes for the same settings, so that old folders are made anew.
const VERSION: u32 = 1;

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
        }
    }
}

/// What [`generate`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generated {
    /// The folder was complete already.
    Kept,
    /// This many frames were written.
    Written(u32),
}

#[derive(Serialize, Deserialize, PartialEq)]
struct Marker {
    version: u32,
    sample: SampleSpec,
}

impl SampleSpec {
    /// From the YAML's mapping (or null for the defaults).
    ///
    /// # Errors
    /// The reason, naming the key.
    pub fn from_value(value: &Value) -> Result<Self, String> {
        const KEYS: [&str; 10] = ["seed", "train", "val", "width", "height", "quality", "difficulty", "object_scale", "empty", "objects"];
        let map = match value {
            Value::Null => return Ok(Self::default()),
            Value::Object(map) => map,
            _ => return Err("`sample` must be a map of settings".into()),
        };
        if let Some(key) = map.keys().find(|k| !KEYS.contains(&k.as_str())) {
            return Err(format!("sample: {}", super::yaml::unknown_key(key, &KEYS)));
        }
        let spec: Self = serde_json::from_value(value.clone()).map_err(|e| format!("sample: {e}"))?;
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
        match rules.iter().find(|(_, good, _)| !good) {
            Some((key, _, range)) => Err(format!("sample: `{key}` must be {range}")),
            None => Ok(spec),
        }
    }

    /// The class names of generated data.
    pub fn names() -> [&'static str; 4] {
        thermal::NAMES
    }
}

/// Makes `root` hold the images and labels of `spec`. `progress(done, total)` is called from many threads.
///
/// # Errors
/// [`DataError::Io`], or [`DataError::Invalid`] when the folder holds files that were not generated.
pub fn generate(spec: &SampleSpec, root: &Path, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<Generated, DataError> {
    let marker = Marker { version: VERSION, sample: spec.clone() };
    let (done, partial) = (root.join(DONE), root.join(PARTIAL));
    if std::fs::read(&done).ok().and_then(|b| serde_json::from_slice::<Marker>(&b).ok()).is_some_and(|m| m == marker) {
        return Ok(Generated::Kept);
    }
    let ours = done.exists() || partial.exists();
    let occupied = std::fs::read_dir(root).is_ok_and(|mut d| d.next().is_some());
    if occupied && !ours {
        let reason = format!("{}: not empty and not generated by this program; name another folder in `path`", root.display());
        return Err(DataError::Invalid(reason));
    }
    std::fs::create_dir_all(root).map_err(DataError::io(root))?;
    let text = serde_json::to_vec_pretty(&marker).map_err(|e| DataError::Invalid(format!("{}: {e}", done.display())))?;
    std::fs::write(&partial, text).map_err(DataError::io(&partial))?;
    for old in [done.clone(), root.join("images"), root.join("labels")] {
        remove(&old)?;
    }
    let frames: Vec<(&str, u32)> =
        [("train", spec.train), ("val", spec.val)].iter().flat_map(|&(s, n)| (0..n).map(move |i| (s, i))).collect();
    for (folder, split) in [("images", "train"), ("images", "val"), ("labels", "train"), ("labels", "val")] {
        let path = root.join(folder).join(split);
        std::fs::create_dir_all(&path).map_err(DataError::io(path))?;
    }
    let count = AtomicU64::new(0);
    frames.par_iter().try_for_each(|&(split, index)| {
        write_frame(spec, root, split, index)?;
        progress(count.fetch_add(1, Ordering::Relaxed) + 1, frames.len() as u64);
        Ok::<_, DataError>(())
    })?;
    std::fs::rename(&partial, &done).map_err(DataError::io(&done))?;
    Ok(Generated::Written(frames.len() as u32))
}

fn remove(path: &PathBuf) -> Result<(), DataError> {
    let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match removed {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(DataError::Io { path: path.clone(), source: e }),
        _ => Ok(()),
    }
}

fn write_frame(spec: &SampleSpec, root: &Path, split: &str, index: u32) -> Result<(), DataError> {
    let (pixels, boxes) = thermal::frame(spec, split, u64::from(index));
    let image = root.join(format!("images/{split}/{split}_{index:05}.jpg"));
    let mut jpeg = Vec::new();
    let mut encoder = image::codecs::jpeg::JpegEncoder::new_with_quality(&mut jpeg, spec.quality);
    let encoded = encoder.encode(&pixels, spec.width, spec.height, image::ExtendedColorType::L8);
    encoded.map_err(|e| DataError::Image { name: image.display().to_string(), reason: e.to_string() })?;
    std::fs::write(&image, jpeg).map_err(DataError::io(&image))?;
    let (w, h) = (spec.width as f32, spec.height as f32);
    let line = |&(class, [x1, y1, x2, y2]): &(u32, [f32; 4])| {
        let [x, y, w, h] = xyxy_to_xywh([x1 / w, y1 / h, x2 / w, y2 / h]);
        format!("{class} {x:.6} {y:.6} {w:.6} {h:.6}\n")
    };
    let label = root.join(format!("labels/{split}/{split}_{index:05}.txt"));
    std::fs::write(&label, boxes.iter().map(line).collect::<String>()).map_err(DataError::io(&label))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> SampleSpec {
        SampleSpec { train: 24, val: 8, ..SampleSpec::default() }
    }

    #[test]
    fn a_frame_depends_on_its_index_and_nothing_else() {
        let spec = SampleSpec::default();
        let a = thermal::frame(&spec, "train", 3);
        assert_eq!(a, thermal::frame(&SampleSpec { train: 9, ..spec.clone() }, "train", 3));
        for other in [
            thermal::frame(&spec, "train", 4),
            thermal::frame(&spec, "val", 3),
            thermal::frame(&SampleSpec { seed: 1, ..spec }, "train", 3),
        ] {
            assert_ne!(a.0, other.0);
        }
    }

    #[test]
    fn labels_are_plausible() {
        let spec = SampleSpec::default();
        let frames: Vec<_> = (0..96).into_par_iter().map(|i| thermal::frame(&spec, "train", i)).collect();
        let boxes: Vec<_> = frames.iter().flat_map(|f| &f.1).collect();
        let count = |class| boxes.iter().filter(|b| b.0 == class).count();
        assert!((0..4).all(|c| count(c) > 25), "{:?}", [0, 1, 2, 3].map(count));
        let empty = frames.iter().filter(|f| f.1.is_empty()).count();
        assert!((3..24).contains(&empty), "{empty} empty frames");
        for (class, [x1, y1, x2, y2]) in &boxes {
            let (w, h) = (x2 - x1, y2 - y1);
            assert!(
                *x1 >= 0.0 && *y1 >= 0.0 && *x2 <= 384.0 && *y2 <= 288.0 && w >= 2.0 && h > 8.0 && h < 90.0 && w < 140.0,
                "{class} {w}x{h}"
            );
        }
        // Neither flat nor burnt out.
        let (contrast, means): (Vec<f32>, Vec<f32>) = frames
            .iter()
            .map(|(p, _)| {
                let mean = p.iter().map(|&v| f32::from(v)).sum::<f32>() / p.len() as f32;
                ((p.iter().map(|&v| (f32::from(v) - mean).powi(2)).sum::<f32>() / p.len() as f32).sqrt(), mean)
            })
            .unzip();
        assert!(contrast.iter().all(|&c| c > 10.0) && means.iter().all(|&m| (50.0..200.0).contains(&m)), "{contrast:?} {means:?}");
        let saturated = frames.iter().flat_map(|f| &f.0).filter(|&&p| p == 255).count() as f32 / (96.0 * 384.0 * 288.0);
        assert!(saturated < 0.02, "{saturated}");
    }

    #[test]
    fn generated_once_and_again_after_an_interruption() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("set");
        let spec = small();
        assert_eq!(generate(&spec, &root, &|_, _| {}).unwrap(), Generated::Written(32));
        assert_eq!(generate(&spec, &root, &|_, _| {}).unwrap(), Generated::Kept);
        let first = std::fs::read(root.join("images/train/train_00007.jpg")).unwrap();
        // Interrupted: the marker is still partial and a file is missing.
        std::fs::rename(root.join(DONE), root.join(PARTIAL)).unwrap();
        std::fs::remove_file(root.join("images/train/train_00007.jpg")).unwrap();
        assert_eq!(generate(&spec, &root, &|_, _| {}).unwrap(), Generated::Written(32));
        assert_eq!(std::fs::read(root.join("images/train/train_00007.jpg")).unwrap(), first);
        let fewer = SampleSpec { val: 2, ..spec };
        assert_eq!(generate(&fewer, &root, &|_, _| {}).unwrap(), Generated::Written(26));
        assert!(!root.join("images/val/val_00005.jpg").exists());
        let foreign = dir.path().join("mine");
        std::fs::create_dir(&foreign).unwrap();
        std::fs::write(foreign.join("thesis.tex"), "x").unwrap();
        assert!(generate(&fewer, &foreign, &|_, _| {}).is_err() && foreign.join("thesis.tex").exists());
    }
}
