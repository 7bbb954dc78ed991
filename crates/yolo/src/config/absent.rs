//! Arguments of Ultralytics that are no settings here. One that asks for what is done anyway is taken, so that an `args.yaml` from there
//! works as `--config`; any other value is refused with the reason.

use serde_json::Value;

/// An argument that is not a setting.
pub struct Absent {
    /// Its name.
    pub name: &'static str,
    /// The values that change nothing, as JSON; empty: any.
    pub accepted: &'static [&'static str],
    /// Why it is no setting.
    pub reason: &'static str,
}

const OFF: &[&str] = &["false", "null"];
const F32: &str = "training and validation are f32; half precision is not proven on the devices this is for";
const NOT_DETECTION: &str = "belongs to segmentation, pose or classification";
const NOT_TRAINING: &str = "belongs to prediction or export, which are not programs of their own yet";

/// Every argument of Ultralytics' training that is not in [`super::SETTINGS`].
pub const ABSENT: &[Absent] = &[
    Absent { name: "task", accepted: &["\"detect\""], reason: "this program trains detectors" },
    Absent { name: "mode", accepted: &["\"train\""], reason: "this program trains" },
    Absent { name: "amp", accepted: OFF, reason: F32 },
    Absent { name: "half", accepted: OFF, reason: F32 },
    Absent { name: "compile", accepted: OFF, reason: "belongs to PyTorch" },
    Absent { name: "dnn", accepted: OFF, reason: "belongs to OpenCV" },
    Absent { name: "deterministic", accepted: &[], reason: "every draw is a hash of (seed, stream, epoch, index)" },
    Absent { name: "verbose", accepted: &[], reason: "the console has one form; BELLOWS_LOG sets the level of the log" },
    Absent { name: "split", accepted: &["\"val\""], reason: "a run is judged on its validation split" },
    Absent { name: "resume", accepted: OFF, reason: "is --resume [RUN_DIR] on the command line" },
    Absent { name: "cfg", accepted: &["null"], reason: "is --config FILE" },
    Absent { name: "save_dir", accepted: &[], reason: "follows from project and name" },
    Absent { name: "overlap_mask", accepted: &[], reason: NOT_DETECTION },
    Absent { name: "mask_ratio", accepted: &[], reason: NOT_DETECTION },
    Absent { name: "pose", accepted: &[], reason: NOT_DETECTION },
    Absent { name: "kobj", accepted: &[], reason: NOT_DETECTION },
    Absent { name: "dropout", accepted: &[], reason: NOT_DETECTION },
    Absent { name: "auto_augment", accepted: &[], reason: NOT_DETECTION },
    Absent { name: "erasing", accepted: &[], reason: NOT_DETECTION },
    Absent { name: "copy_paste_mode", accepted: &[], reason: "pasting needs polygons, which detection labels have not" },
    Absent { name: "augment", accepted: OFF, reason: NOT_TRAINING },
    Absent { name: "retina_masks", accepted: OFF, reason: NOT_TRAINING },
    Absent { name: "save_txt", accepted: OFF, reason: NOT_TRAINING },
    Absent { name: "save_conf", accepted: OFF, reason: NOT_TRAINING },
    Absent { name: "save_crop", accepted: OFF, reason: NOT_TRAINING },
    Absent { name: "save_frames", accepted: OFF, reason: NOT_TRAINING },
    Absent { name: "show", accepted: OFF, reason: NOT_TRAINING },
    Absent { name: "visualize", accepted: OFF, reason: NOT_TRAINING },
    Absent { name: "embed", accepted: OFF, reason: NOT_TRAINING },
    Absent { name: "source", accepted: &["null"], reason: NOT_TRAINING },
    Absent { name: "stream_buffer", accepted: OFF, reason: NOT_TRAINING },
    Absent { name: "vid_stride", accepted: &[], reason: NOT_TRAINING },
    Absent { name: "show_boxes", accepted: &[], reason: NOT_TRAINING },
    Absent { name: "show_labels", accepted: &[], reason: NOT_TRAINING },
    Absent { name: "show_conf", accepted: &[], reason: NOT_TRAINING },
    Absent { name: "line_width", accepted: &[], reason: NOT_TRAINING },
    Absent { name: "format", accepted: &[], reason: NOT_TRAINING },
    Absent { name: "keras", accepted: OFF, reason: NOT_TRAINING },
    Absent { name: "optimize", accepted: OFF, reason: NOT_TRAINING },
    Absent { name: "int8", accepted: OFF, reason: NOT_TRAINING },
    Absent { name: "dynamic", accepted: OFF, reason: NOT_TRAINING },
    Absent { name: "simplify", accepted: &[], reason: NOT_TRAINING },
    Absent { name: "opset", accepted: &["null"], reason: NOT_TRAINING },
    Absent { name: "workspace", accepted: &[], reason: NOT_TRAINING },
    Absent { name: "nms", accepted: OFF, reason: NOT_TRAINING },
    Absent { name: "tracker", accepted: &[], reason: NOT_TRAINING },
];

impl Absent {
    /// # Errors
    /// For a value that would change something, with the reason why that cannot be had.
    pub(super) fn check(&self, value: &Value) -> Result<(), String> {
        let text = value.to_string();
        let accepted = self.accepted.is_empty() || self.accepted.contains(&text.to_lowercase().as_str());
        if accepted { Ok(()) } else { Err(format!("`{}` cannot be {text}: {}", self.name, self.reason)) }
    }
}
