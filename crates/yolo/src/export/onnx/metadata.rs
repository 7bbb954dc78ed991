//! The text beside the graph: the keys that Ultralytics writes, in its order, with values as Python prints them. Programs that read exported
//! models find stride, size and class names there, and some evaluate them as Python.

use bellows_weights::onnx::Entry;

use super::options::{OPSET, OnnxOptions};
use crate::export::about::{About, HOME, VERSION, python_bool, python_dict};

/// The entries of a file.
pub(super) fn metadata(about: &About, options: &OnnxOptions) -> Vec<Entry> {
    let [h, w] = options.size;
    let args = format!(
        "{{'batch': {}, 'half': False, 'dynamic': {}, 'simplify': True, 'opset': {OPSET}, 'nms': {}}}",
        options.batch,
        python_bool(options.dynamic),
        python_bool(options.nms.is_some()),
    );
    let mut entries = vec![
        ("description", format!("{} detector, exported by Bellows", about.size().replace("yolo", "YOLO"))),
        ("author", "Bellows".into()),
        ("date", about.date.clone()),
        ("version", VERSION.into()),
        ("license", about.license.clone().unwrap_or_else(|| "not stated".into())),
        ("docs", HOME.into()),
        ("stride", "32".into()),
        ("task", "detect".into()),
        ("batch", options.batch.to_string()),
        ("imgsz", format!("[{h}, {w}]")),
        ("names", python_dict(&about.names)),
        ("args", args),
        ("channels", about.config.channels.to_string()),
    ];
    if !about.config.sppf_act {
        // Told by the graph as well; here for who reads the weights only.
        entries.push(("sppf_act", "false".into()));
    }
    let entries = entries.into_iter().map(|(key, value)| (key.to_string(), value));
    entries.chain(about.preprocessing.facts()).map(|(key, value)| Entry { key, value }).collect()
}
