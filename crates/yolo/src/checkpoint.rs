//! Weight files as detectors: to train from, to go on judging with, to use.
//!
//! What a file is, [`mod@crate::recognise`] says. Here its tensors are compared with the model it claims to be, one by one: a file that
//! lacks any, or has others, is no YOLOv8 detector, whatever its name. Only where a training begins may the class branches differ, since its
//! classes are others.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bellows_exit::{Coded, Exit};
use bellows_weights::Weights;
use burn::tensor::Device;
use serde_json::Value;

use crate::data::Stack;
use crate::data::header::MAX_SIDE;
use crate::model::names::{LoadReport, NamedTensors, load_tensors};
use crate::model::summary::layer_index;
use crate::model::{COMMON, Fused, Scale, Yolo, YoloConfig};
use crate::preprocessing::Preprocessing;
use crate::recognise::{Form, recognise};
use crate::stem::spread;

/// Weights that do not fit, or cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct Misfit {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

impl Coded for Misfit {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}

/// A detector from a file, as it is there.
pub struct Detector {
    /// The model; of an exported ONNX file with its batch normalisation already folded in.
    pub model: Yolo,
    /// What it was built from.
    pub config: YoloConfig,
    /// Whether the batch normalisation is folded in: then it can be used, and not trained.
    pub folded: bool,
    /// Class names by index; `class_0`, `class_1`, ... where the file has none.
    pub names: Vec<String>,
    /// The side of the images it was trained with, where the file says so.
    pub imgsz: Option<u32>,
    /// What becomes of image files before it sees them.
    pub preprocessing: Preprocessing,
    /// What the file says beside the tensors: see [`Weights::metadata`].
    pub metadata: BTreeMap<String, String>,
}

impl Detector {
    /// Reads a `.pt`, `.safetensors` or `.onnx` file, recognised by content.
    ///
    /// # Errors
    /// A file that cannot be read, holds numbers that are not finite, is not the weights of a YOLOv8 detector, or looks at something else than it says.
    pub fn open(path: &Path, device: &Device) -> Result<Self, Misfit> {
        WeightFile::read(path)?.detector(device)
    }

    /// Its form for inference.
    pub fn fuse(&self, device: &Device) -> Fused {
        self.model.fuse(device)
    }
}

/// A file that was read and recognised, and stands on no device yet.
pub struct WeightFile {
    path: PathBuf,
    weights: Weights,
    form: Form,
    names: Vec<String>,
    preprocessing: Preprocessing,
}

impl WeightFile {
    /// As [`Detector::open`], which does the rest.
    ///
    /// # Errors
    /// As there.
    pub fn read(path: &Path) -> Result<Self, Misfit> {
        let misfit = |reason: String| Misfit { path: path.into(), reason };
        // The error has the path as well: only what it says of the file is wanted.
        let weights = bellows_weights::read(path).map_err(|e| misfit(e.fault.to_string()))?;
        bellows_weights::check_finite(&weights.tensors).map_err(|e| misfit(e.to_string()))?;
        let form = recognise(&weights).map_err(misfit)?;
        let names = names(&weights.metadata, form.config.nc).map_err(misfit)?;
        let preprocessing = Preprocessing::read(&weights.metadata, form.config.channels).map_err(misfit)?;
        Ok(Self { path: path.into(), weights, form, names, preprocessing })
    }

    /// The model on a device.
    ///
    /// # Errors
    /// A file that is not whole.
    pub fn detector(&self, device: &Device) -> Result<Detector, Misfit> {
        let Form { config, folded } = self.form;
        let (model, report) = self.load(self.blank(config, device), &self.tensors()?)?;
        self.must_be_whole(&report)?;
        let (names, imgsz, metadata) = (self.names.clone(), self.imgsz(), self.weights.metadata.clone());
        Ok(Detector { model, config, folded, names, imgsz, preprocessing: self.preprocessing, metadata })
    }

    /// Class names by index; `class_0`, `class_1`, ... where the file has none.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The side of the images it was trained with, where the file says so.
    pub fn imgsz(&self) -> Option<u32> {
        imgsz(&self.weights.metadata)
    }

    /// What becomes of image files before it sees them.
    pub fn preprocessing(&self) -> Preprocessing {
        self.preprocessing
    }

    /// The licence of the weights, where the file states one.
    pub(crate) fn license(&self) -> Option<&str> {
        self.weights.metadata.get("license").map(String::as_str)
    }

    /// What its model is built from.
    pub fn config(&self) -> YoloConfig {
        self.form.config
    }

    fn misfit(&self, reason: String) -> Misfit {
        Misfit { path: self.path.clone(), reason }
    }

    /// A model of this form without values.
    fn blank(&self, config: YoloConfig, device: &Device) -> Yolo {
        let model = config.build(device);
        if self.form.folded { model.fuse(device).into_inner() } else { model }
    }

    fn tensors(&self) -> Result<NamedTensors, Misfit> {
        let values = self.weights.tensors.iter().map(|(name, tensor)| {
            let values = tensor.to_f32().map_err(|e| self.misfit(e.to_string()))?;
            Ok((name.clone(), (tensor.shape.clone(), values)))
        });
        values.collect()
    }

    fn load(&self, model: Yolo, tensors: &NamedTensors) -> Result<(Yolo, LoadReport), Misfit> {
        let (model, report) = load_tensors(model, tensors).map_err(|e| self.misfit(e.to_string()))?;
        let absent = report.missing.iter().find(|name| !is_optional(name));
        if let Some(name) = absent {
            return Err(self.misfit(format!("not whole: it has no tensor `{name}`")));
        }
        if let Some(name) = report.foreign.iter().find(|name| name.starts_with("model.") && !is_derived(name)) {
            return Err(self.misfit(format!("not the weights of a YOLOv8 detector: it has a tensor `{name}`")));
        }
        Ok((model, report))
    }

    /// That every tensor was taken over.
    fn must_be_whole(&self, report: &LoadReport) -> Result<(), Misfit> {
        match report.mismatched.first() {
            None => Ok(()),
            Some((name, ours, theirs)) => {
                Err(self.misfit(format!("`{name}` has shape {theirs:?} where a YOLOv8 of this size has {ours:?}")))
            }
        }
    }

    /// `model`, which looks at `stack`, with what it has in common with this file, and what to tell about it.
    ///
    /// # Errors
    /// Folded weights, those of a stack for single images, or tensors outside the class branches that differ.
    pub(crate) fn transfer(&self, model: Yolo, nc: usize, stack: Stack) -> Result<(Yolo, Vec<String>), Misfit> {
        if self.form.folded {
            let reason =
                "its batch normalisation is folded in, so it can be used and not trained: start from the .pt or .safetensors it came from";
            return Err(self.misfit(reason.into()));
        }
        let mut tensors = self.tensors()?;
        let own = self.preprocessing.stack;
        if own.is_on() && !stack.is_on() {
            let Stack { frames, stride, background } = own;
            let flags = format!("--frames {frames} --frame-stride {stride} --background {background}");
            return Err(self.misfit(format!("it looks at {} of a clip, and not at single images: train with {flags}", own.told())));
        }
        let planes = |stack: Stack| (stack.frames, stack.background > 0);
        let spreads = stack.is_on() && planes(stack) != planes(own);
        if spreads {
            spread(&mut tensors, &own, &stack);
        }
        if model.p2() != self.form.config.p2 {
            return self.transfer_common(model, tensors);
        }
        let classes = format!("model.{}.cv3.", model.head());
        let (model, report) = self.load(model, &tensors)?;
        let (classes, others): (Vec<_>, Vec<_>) = report.mismatched.iter().partition(|(name, ..)| name.starts_with(&classes));
        let rest = LoadReport { mismatched: others.into_iter().cloned().collect(), ..report.clone() };
        self.must_be_whole(&rest)?;
        let mut lines = vec![format!("Transferred {}/{} items from {}", report.transferred, report.total, self.path.display())];
        if spreads {
            lines.push(format!("The first convolution's weights are spread over {} frames", stack.frames));
        }
        if !classes.is_empty() {
            let (nc_there, count) = (self.form.config.nc, classes.len());
            lines.push(format!("Not transferred: {count} tensors of the class branches, made for {nc_there} classes; here are {nc}"));
        }
        Ok((model, lines))
    }

    /// `model`, which has other levels than this file's, with the layers that are the same.
    fn transfer_common(&self, model: Yolo, mut tensors: NamedTensors) -> Result<(Yolo, Vec<String>), Misfit> {
        tensors.retain(|name, _| layer_index(name).is_some_and(|layer| layer < COMMON));
        let (model, report) = load_tensors(model, &tensors).map_err(|e| self.misfit(e.to_string()))?;
        self.must_be_whole(&report)?;
        let (count, total, path) = (report.transferred, report.total, self.path.display());
        let line =
            format!("Transferred {count}/{total} items from {path}: the layers before {COMMON}, for the levels behind them are others");
        Ok((model, vec![line]))
    }

    /// `like` with the values of this file, which has them all.
    pub(crate) fn exactly(&self, like: Yolo) -> Result<Yolo, Misfit> {
        let (model, report) = self.load(like, &self.tensors()?)?;
        self.must_be_whole(&report)?;
        Ok(model)
    }
}

/// What a file may lack: constants, and counters that nothing is computed from.
fn is_optional(name: &str) -> bool {
    name.ends_with(".num_batches_tracked") || name.ends_with(".dfl.conv.weight")
}

/// What a head keeps beside its weights and can be computed.
fn is_derived(name: &str) -> bool {
    [".anchors", ".strides", ".stride"].iter().any(|end| name.ends_with(end))
}

/// Class names from JSON (`{"0":"person"}` or a list) or from the text that Python prints of a dictionary (`{0: 'person'}`).
fn names(metadata: &BTreeMap<String, String>, nc: usize) -> Result<Vec<String>, String> {
    let Some(text) = metadata.get("names") else {
        return Ok((0..nc).map(|i| format!("class_{i}")).collect());
    };
    let names = match serde_json::from_str::<BTreeMap<usize, String>>(text) {
        Ok(map) if map.keys().copied().eq(0..map.len()) => Some(map.into_values().collect()),
        Ok(_) => None,
        Err(_) => serde_json::from_str(text).ok().or_else(|| python_names(text)),
    };
    let names: Vec<String> = names.ok_or_else(|| "the class names in it cannot be read".to_string())?;
    if names.len() == nc { Ok(names) } else { Err(format!("it has {} class names and a head for {nc}", names.len())) }
}

/// `{0: 'person', 1: "driver's cab"}`; the keys must count from 0.
fn python_names(text: &str) -> Option<Vec<String>> {
    let mut rest = text.trim().strip_prefix('{')?.trim_start();
    let mut names = Vec::new();
    while !rest.starts_with('}') {
        let (key, value) = rest.split_once(':')?;
        if key.trim().parse() != Ok(names.len()) {
            return None;
        }
        let value = value.trim_start();
        let quote = value.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let (mut name, mut escaped, mut end) = (String::new(), false, None);
        for (at, c) in value.char_indices().skip(1) {
            match c {
                _ if escaped => {
                    name.push(c);
                    escaped = false;
                }
                '\\' => escaped = true,
                c if c == quote => {
                    end = Some(at + 1);
                    break;
                }
                c => name.push(c),
            }
        }
        names.push(name);
        rest = value[end?..].trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    Some(names)
}

/// One number, or the longer of two (`[480, 640]`); a `.pt` has it among the settings of its training. What no image can have is not said.
fn imgsz(metadata: &BTreeMap<String, String>) -> Option<u32> {
    let settings = || Some(serde_json::from_str::<Value>(metadata.get("train_args")?).ok()?.get("imgsz")?.to_string());
    let text = metadata.get("imgsz").cloned().or_else(settings)?;
    let sides = text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<u32>().ok());
    sides.filter(|side| (1..=MAX_SIDE).contains(side)).max()
}

/// `yolov8n`, `yolov8n.yaml` or `yolov8n-p2` to its scale, and whether it has a level of stride 4.
pub(crate) fn scale_of(name: &str) -> Option<(Scale, bool)> {
    let size = name.strip_suffix(".yaml").unwrap_or(name).strip_prefix("yolov8")?;
    let (letter, p2) = size.strip_suffix("-p2").map_or((size, false), |letter| (letter, true));
    Some((Scale::ALL.into_iter().find(|scale| scale.letter() == letter)?, p2))
}

/// The weight file that a path means.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The file.
    pub path: PathBuf,
    /// What was passed over for it, in a line.
    pub note: Option<String>,
}

/// The one weight file that a path means: a file itself, or what a folder has if it has only one. Of files that differ in their suffix alone (a
/// detector and what was exported of it) it is the safetensors.
///
/// # Errors
/// A folder with none, or with several: which ones.
pub fn weight_file(path: &Path) -> Result<Chosen, Misfit> {
    if !path.is_dir() {
        return Ok(Chosen { path: path.into(), note: None });
    }
    let misfit = |reason: String| Misfit { path: path.into(), reason };
    let (mut found, folders) = (Vec::new(), [path.to_path_buf(), path.join("weights")]);
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        let entries = std::fs::read_dir(folder).map_err(|e| misfit(e.to_string()))?;
        let files = entries.filter_map(Result::ok).map(|entry| entry.path());
        found.extend(files.filter(|f| f.extension().is_some_and(|e| ["pt", "safetensors", "onnx"].iter().any(|known| e == *known))));
    }
    found.sort();
    if let Some(chosen) = own_among_exports(&found) {
        return Ok(chosen);
    }
    match found.as_slice() {
        [] => Err(misfit("no .safetensors, .pt or .onnx file in this folder".into())),
        [one] => Ok(Chosen { path: one.clone(), note: None }),
        several => {
            let list: Vec<String> = several.iter().map(|f| f.display().to_string()).collect();
            Err(misfit(format!("a folder with {} weight files; say which: {}", several.len(), list.join(", "))))
        }
    }
}

/// The safetensors among several files of one folder and one name.
fn own_among_exports(found: &[PathBuf]) -> Option<Chosen> {
    let (own, others): (Vec<_>, Vec<_>) = found.iter().partition(|f| f.extension().is_some_and(|e| e == "safetensors"));
    let ([own], false) = (own.as_slice(), others.is_empty()) else { return None };
    if others.iter().any(|other| other.with_extension("") != own.with_extension("")) {
        return None;
    }
    let names = others.iter().filter_map(|f| f.file_name()).map(|name| name.to_string_lossy()).collect::<Vec<_>>().join(" and ");
    Some(Chosen { path: own.to_path_buf(), note: Some(format!("weights: {} is used; {names} beside it has its name", own.display())) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("names".to_string(), text.to_string()), ("imgsz".to_string(), "[480, 640]".to_string())])
    }

    #[test]
    fn names_are_read_in_every_form() {
        let expected = Ok(vec!["a".to_string(), "b's".to_string()]);
        for text in [r#"{"0":"a","1":"b's"}"#, r#"["a","b's"]"#, r#"{0: 'a', 1: "b's"}"#, r"{0: 'a', 1: 'b\'s'}"] {
            assert_eq!(names(&told(text), 2), expected, "{text}");
        }
        assert_eq!(names(&BTreeMap::new(), 2).unwrap(), ["class_0", "class_1"]);
        for text in ["{1: 'a', 2: 'b'}", "{0: 'a', 1: 'b'", "{0: a}", "", r#"{"0":"a","2":"b"}"#, "{0: 'a'} "] {
            assert!(names(&told(text), 2).is_err(), "{text}");
        }
        assert_eq!(imgsz(&told("")), Some(640));
        for (text, side) in [("16384", Some(16_384)), ("[64, 16385]", Some(64)), ("4294967264", None), ("0", None)] {
            assert_eq!(imgsz(&BTreeMap::from([("imgsz".to_string(), text.to_string())])), side, "{text}");
        }
    }

    #[test]
    fn a_folder_is_no_guess() {
        let dir = tempfile::tempdir().unwrap();
        let weights = dir.path().join("weights");
        std::fs::create_dir(&weights).unwrap();
        assert!(weight_file(dir.path()).unwrap_err().to_string().contains("no .safetensors"));
        std::fs::write(weights.join("best.safetensors"), "").unwrap();
        let best = weights.join("best.safetensors");
        assert_eq!(weight_file(dir.path()).unwrap(), Chosen { path: best.clone(), note: None });
        // What was exported of it is no second detector.
        for export in ["best.onnx", "best.pt"] {
            std::fs::write(weights.join(export), "").unwrap();
            let chosen = weight_file(dir.path()).unwrap();
            let note = chosen.note.unwrap();
            assert!(chosen.path == best && note.contains("best.safetensors is used") && note.contains(export), "{note}");
        }
        std::fs::remove_file(&best).unwrap();
        assert!(weight_file(dir.path()).unwrap_err().to_string().contains("say which"), "which export is meant nobody knows");
        std::fs::write(&best, "").unwrap();
        std::fs::write(weights.join("last.safetensors"), "").unwrap();
        let refusal = weight_file(dir.path()).unwrap_err().to_string();
        assert!(refusal.contains("say which") && refusal.contains("best.safetensors") && refusal.contains("last.safetensors"), "{refusal}");
        assert_eq!(weight_file(Path::new("gone.pt")).unwrap().path, Path::new("gone.pt"));
    }
}
