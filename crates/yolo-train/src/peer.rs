//! The arguments of Ultralytics 8.3.227, and what becomes of those that are no flags of a verb here.
//!
//! Names, defaults and which mode an argument is for are facts of that program; `docs/switching.md` is made from this table, and a test
//! compares it with an installed peer. It knows no command line: [`words`](crate::words) asks it.

/// An argument there.
pub(crate) struct Argument {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its default, as JSON.
    pub(crate) default: &'static str,
    /// The modes it does something in, by their first letters: train, val, predict, export.
    modes: &'static str,
}

impl Argument {
    /// Whether it does something in `mode` there.
    pub(crate) fn is_for(&self, mode: &str) -> bool {
        mode.get(..1).is_some_and(|letter| self.modes.contains(letter))
    }
}

const fn argument(name: &'static str, default: &'static str, modes: &'static str) -> Argument {
    Argument { name, default, modes }
}

/// All of them, in the order of their file of defaults.
pub(crate) const ARGUMENTS: &[Argument] = &[
    argument("task", "\"detect\"", "tvpe"),
    argument("mode", "\"train\"", "tvpe"),
    argument("model", "null", "tvpe"),
    argument("data", "null", "tve"),
    argument("epochs", "100", "t"),
    argument("time", "null", "t"),
    argument("patience", "100", "t"),
    argument("batch", "16", "tvpe"),
    argument("imgsz", "640", "tvpe"),
    argument("save", "true", "tp"),
    argument("save_period", "-1", "t"),
    argument("cache", "false", "t"),
    argument("device", "null", "tvpe"),
    argument("workers", "8", "tv"),
    argument("project", "null", "tvp"),
    argument("name", "null", "tvp"),
    argument("exist_ok", "false", "tvp"),
    argument("pretrained", "true", "t"),
    argument("optimizer", "\"auto\"", "t"),
    argument("verbose", "true", "tvpe"),
    argument("seed", "0", "t"),
    argument("deterministic", "true", "t"),
    argument("single_cls", "false", "tv"),
    argument("rect", "false", "tvp"),
    argument("cos_lr", "false", "t"),
    argument("close_mosaic", "10", "t"),
    argument("resume", "false", "t"),
    argument("amp", "true", "t"),
    argument("fraction", "1.0", "te"),
    argument("profile", "false", "t"),
    argument("freeze", "null", "t"),
    argument("multi_scale", "false", "t"),
    argument("compile", "false", "tvp"),
    argument("overlap_mask", "true", "t"),
    argument("mask_ratio", "4", "t"),
    argument("dropout", "0.0", "t"),
    argument("val", "true", "t"),
    argument("split", "\"val\"", "tv"),
    argument("save_json", "false", "tv"),
    argument("conf", "null", "tvpe"),
    argument("iou", "0.7", "tvpe"),
    argument("max_det", "300", "tvpe"),
    argument("half", "false", "tvpe"),
    argument("dnn", "false", "tvp"),
    argument("plots", "true", "tv"),
    argument("source", "null", "p"),
    argument("vid_stride", "1", "p"),
    argument("stream_buffer", "false", "p"),
    argument("visualize", "false", "tvp"),
    argument("augment", "false", "tvp"),
    argument("agnostic_nms", "false", "tvpe"),
    argument("classes", "null", "tvp"),
    argument("retina_masks", "false", "p"),
    argument("embed", "null", "p"),
    argument("show", "false", "p"),
    argument("save_frames", "false", "p"),
    argument("save_txt", "false", "tvp"),
    argument("save_conf", "false", "tvp"),
    argument("save_crop", "false", "p"),
    argument("show_labels", "true", "p"),
    argument("show_conf", "true", "p"),
    argument("show_boxes", "true", "p"),
    argument("line_width", "null", "p"),
    argument("format", "\"torchscript\"", "e"),
    argument("keras", "false", "e"),
    argument("optimize", "false", "e"),
    argument("int8", "false", "e"),
    argument("dynamic", "false", "e"),
    argument("simplify", "true", "e"),
    argument("opset", "null", "e"),
    argument("workspace", "null", "e"),
    argument("nms", "false", "e"),
    argument("lr0", "0.01", "t"),
    argument("lrf", "0.01", "t"),
    argument("momentum", "0.937", "t"),
    argument("weight_decay", "0.0005", "t"),
    argument("warmup_epochs", "3.0", "t"),
    argument("warmup_momentum", "0.8", "t"),
    argument("warmup_bias_lr", "0.1", "t"),
    argument("box", "7.5", "t"),
    argument("cls", "0.5", "t"),
    argument("dfl", "1.5", "t"),
    argument("pose", "12.0", "t"),
    argument("kobj", "1.0", "t"),
    argument("nbs", "64", "t"),
    argument("hsv_h", "0.015", "t"),
    argument("hsv_s", "0.7", "t"),
    argument("hsv_v", "0.4", "t"),
    argument("degrees", "0.0", "t"),
    argument("translate", "0.1", "t"),
    argument("scale", "0.5", "t"),
    argument("shear", "0.0", "t"),
    argument("perspective", "0.0", "t"),
    argument("flipud", "0.0", "t"),
    argument("fliplr", "0.5", "t"),
    argument("bgr", "0.0", "t"),
    argument("mosaic", "1.0", "t"),
    argument("mixup", "0.0", "t"),
    argument("cutmix", "0.0", "t"),
    argument("copy_paste", "0.0", "t"),
    argument("copy_paste_mode", "\"flip\"", "t"),
    argument("auto_augment", "\"randaugment\"", "t"),
    argument("erasing", "0.4", "t"),
    argument("cfg", "null", "tvpe"),
    argument("tracker", "\"botsort.yaml\"", ""),
];

/// What becomes of an argument that a verb other than `train` has no flag for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instead {
    /// Any value is taken, with this line if it is not the default.
    Told(&'static str),
    /// Any value but the default is refused, for this reason.
    Refused(&'static str),
}

use Instead::{Refused, Told};

const FORMATS: &str = "belongs to export formats that are not there";

/// By name, for val, predict and export alike.
pub(crate) const INSTEAD: &[(&str, Instead)] = &[
    ("half", Told("f32 is computed, or with `--precision bf16` factors where the processor can")),
    ("compile", Told("belongs to PyTorch; the kernels here are compiled already")),
    ("dnn", Told("belongs to OpenCV, which is not used here")),
    ("verbose", Told("the console has one form; BELLOWS_LOG sets the level of the log")),
    ("rect", Told("an image is letterboxed to its own rectangle in any case")),
    ("show", Told("no window is opened: look at the files that are written")),
    ("stream_buffer", Told("every frame of a source is taken in turn")),
    ("retina_masks", Told("belongs to segmentation")),
    ("simplify", Told("the graph is written without anything to simplify")),
    ("workspace", Told(FORMATS)),
    ("device", Told("a file is written by the processor in any case")),
    ("data", Told("is for calibrating int8, which is not there")),
    ("agnostic_nms", Refused("suppression inside a graph is within a class")),
    ("keras", Told(FORMATS)),
    ("optimize", Told(FORMATS)),
    ("fraction", Told("is for calibrating int8, which is not there")),
    ("int8", Refused("quantisation is not there")),
    ("cfg", Refused("a verb that trains nothing reads no file of settings")),
    ("save_txt", Refused("`yolo-train predict` writes labels of what is seen")),
    ("save_conf", Refused("`yolo-train predict` writes labels of what is seen")),
    ("augment", Refused("each image is seen once, as it is")),
    ("visualize", Refused("maps of features are not drawn")),
    ("embed", Refused("features are not given out")),
];

/// What becomes of `argument` in the verb `mode`, which has no flag for it.
pub(crate) fn instead(argument: &Argument, mode: &str) -> Instead {
    if !argument.is_for(mode) {
        return Told("does nothing in this mode");
    }
    INSTEAD.iter().find(|(name, _)| *name == argument.name).map_or(Refused("is not there yet"), |(_, instead)| *instead)
}
