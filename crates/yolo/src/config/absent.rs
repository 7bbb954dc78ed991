//! Arguments of Ultralytics that are no settings here, so that an `args.yaml` from there works as `--config`.
//!
//! One that asks for what is done anyway is taken. One that asks for another way to the same end (`amp`) is taken too, with a line that says
//! what is done instead. One that asks for a result that cannot be had is refused with the reason.

use serde_json::Value;

/// An argument that is not a setting.
pub struct Absent {
    /// Its name.
    pub name: &'static str,
    /// What becomes of it.
    pub taken: Taken,
    /// Why it is no setting.
    pub reason: &'static str,
}

/// What becomes of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Any value is taken: nothing depends on it.
    Any,
    /// These values (as JSON) are; any other is taken with a line that gives the reason.
    Told(&'static [&'static str]),
    /// These are; any other is refused.
    Only(&'static [&'static str]),
}

use Taken::{Any, Only, Told};

const OFF: &[&str] = &["false", "null"];
const F32: &str = "training is f32 unless `--precision f16` (images between layers, on a GPU) or bf16 (factors, where the processor can) says \
                   otherwise; validation is f32";
const NOT_DETECTION: &str = "belongs to segmentation, pose or classification";
const NOT_TRAINING: &str = "does nothing in training, here as there";
const OF_OLD: &str = "is of older releases; Ultralytics drops it too";
const OF_RESUMED: &str = "the run that it went on with is not begun from here; `model` is what is started from";
const OF_VERBS: &str = "is not for training, which judges its best weights in one way";

/// Every argument of Ultralytics' training that is not in [`super::SETTINGS`], and what older releases wrote into an `args.yaml`.
pub const ABSENT: &[Absent] = &[
    Absent { name: "task", taken: Only(&["\"detect\""]), reason: "this program trains detectors" },
    Absent { name: "mode", taken: Only(&["\"train\""]), reason: "this program trains" },
    Absent { name: "amp", taken: Told(OFF), reason: F32 },
    Absent { name: "half", taken: Told(OFF), reason: F32 },
    Absent { name: "compile", taken: Told(OFF), reason: "belongs to PyTorch; the kernels here are compiled already" },
    Absent { name: "dnn", taken: Told(OFF), reason: "belongs to OpenCV, which is not used here" },
    Absent { name: "deterministic", taken: Any, reason: "every draw is a hash of (seed, stream, epoch, index)" },
    Absent { name: "verbose", taken: Any, reason: "the console has one form; BELLOWS_LOG sets the level of the log" },
    Absent { name: "split", taken: Only(&["\"val\""]), reason: "a run is judged on its validation split" },
    Absent { name: "resume", taken: Told(OFF), reason: OF_RESUMED },
    Absent { name: "cfg", taken: Only(&["null"]), reason: "is --config FILE" },
    Absent { name: "save_dir", taken: Any, reason: "follows from project and name" },
    Absent { name: "overlap_mask", taken: Any, reason: NOT_DETECTION },
    Absent { name: "mask_ratio", taken: Any, reason: NOT_DETECTION },
    Absent { name: "pose", taken: Any, reason: NOT_DETECTION },
    Absent { name: "kobj", taken: Any, reason: NOT_DETECTION },
    Absent { name: "dropout", taken: Any, reason: NOT_DETECTION },
    Absent { name: "auto_augment", taken: Any, reason: NOT_DETECTION },
    Absent { name: "erasing", taken: Any, reason: NOT_DETECTION },
    Absent { name: "retina_masks", taken: Any, reason: NOT_DETECTION },
    Absent { name: "copy_paste_mode", taken: Any, reason: "objects are not pasted" },
    Absent { name: "augment", taken: Only(OFF), reason: "validation sees each image once, as it is" },
    Absent { name: "save_txt", taken: Only(OFF), reason: OF_VERBS },
    Absent { name: "save_conf", taken: Only(OFF), reason: OF_VERBS },
    Absent { name: "visualize", taken: Only(OFF), reason: OF_VERBS },
    Absent { name: "save_crop", taken: Told(OFF), reason: NOT_TRAINING },
    Absent { name: "save_frames", taken: Told(OFF), reason: NOT_TRAINING },
    Absent { name: "show", taken: Told(OFF), reason: NOT_TRAINING },
    Absent { name: "embed", taken: Told(OFF), reason: NOT_TRAINING },
    Absent { name: "source", taken: Told(&["null"]), reason: NOT_TRAINING },
    Absent { name: "stream_buffer", taken: Told(OFF), reason: NOT_TRAINING },
    Absent { name: "vid_stride", taken: Any, reason: NOT_TRAINING },
    Absent { name: "show_boxes", taken: Any, reason: NOT_TRAINING },
    Absent { name: "show_labels", taken: Any, reason: NOT_TRAINING },
    Absent { name: "show_conf", taken: Any, reason: NOT_TRAINING },
    Absent { name: "line_width", taken: Any, reason: NOT_TRAINING },
    Absent { name: "format", taken: Any, reason: NOT_TRAINING },
    Absent { name: "keras", taken: Told(OFF), reason: NOT_TRAINING },
    Absent { name: "optimize", taken: Told(OFF), reason: NOT_TRAINING },
    Absent { name: "int8", taken: Told(OFF), reason: NOT_TRAINING },
    Absent { name: "dynamic", taken: Told(OFF), reason: NOT_TRAINING },
    Absent { name: "simplify", taken: Any, reason: NOT_TRAINING },
    Absent { name: "opset", taken: Any, reason: NOT_TRAINING },
    Absent { name: "workspace", taken: Any, reason: NOT_TRAINING },
    Absent { name: "nms", taken: Told(OFF), reason: NOT_TRAINING },
    Absent { name: "tracker", taken: Any, reason: NOT_TRAINING },
    Absent { name: "boxes", taken: Any, reason: NOT_TRAINING },
    Absent { name: "hide_labels", taken: Any, reason: NOT_TRAINING },
    Absent { name: "hide_conf", taken: Any, reason: NOT_TRAINING },
    Absent { name: "line_thickness", taken: Any, reason: NOT_TRAINING },
    Absent { name: "label_smoothing", taken: Told(&["0.0", "0"]), reason: OF_OLD },
    Absent { name: "save_hybrid", taken: Told(OFF), reason: OF_OLD },
    Absent { name: "crop_fraction", taken: Told(&["1.0", "1"]), reason: OF_OLD },
];

impl Absent {
    /// The line to tell about a value that is taken, if there is one to tell.
    ///
    /// # Errors
    /// For a value that asks for what cannot be had, with the reason.
    pub fn check(&self, value: &Value) -> Result<Option<String>, String> {
        let text = value.to_string();
        let silent = |values: &[&str]| values.contains(&text.to_lowercase().as_str());
        match self.taken {
            Any => Ok(None),
            Told(values) | Only(values) if silent(values) => Ok(None),
            Told(_) => Ok(Some(format!("{} {}: {}", self.name, plain(value), self.reason))),
            Only(_) => Err(format!("`{}` cannot be {text}: {}", self.name, self.reason)),
        }
    }
}

/// A value as a person writes it.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}
