//! Data sets as labelling tools export them, without a data.yaml: what their folders look like, and what that means.
//!
//! | what lies there | who writes it |
//! | --- | --- |
//! | `data.yaml`, `dataset.yaml`, the only `.yaml` | Roboflow (YOLOv8), CVAT (Ultralytics YOLO), FiftyOne (YOLOv5) |
//! | `obj.data` with `obj.names` and lists | CVAT (YOLO 1.1), Darknet |
//! | `train/_annotations.coco.json`, `valid/`, `test/` | Roboflow (COCO) |
//! | `annotations/*.json` | CVAT (COCO), COCO itself |
//! | `labels.json` beside `data/`, `result.json` beside `images/` | FiftyOne (COCO), Label Studio (COCO) |
//! | `classes.txt` beside `images/` and `labels/` | Label Studio (YOLO) |
//! | `Train.json`, `Valid.json`, `TestNoLabels.json`, here or in `data/` | LTDv2 |
//!
//! A tool that exports one set leaves validation to us: a tenth of it is held out (see [`super::listing`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bellows_runs::read_bounded;

use super::description::{DataConfig, Source};
use super::error::DataError;

const MAX_BYTES: u64 = 1 << 20;

/// What the folder at `root` holds. `allow_outside` names folders beyond it that may be used.
///
/// # Errors
/// [`DataError::Invalid`] when it is none of the layouts, or whatever its description is refused for.
pub(crate) fn folder(root: &Path, allow_outside: &[PathBuf]) -> Result<DataConfig, DataError> {
    let usual = ["data.yaml", "data.yml", "dataset.yaml", "dataset.yml"].map(|name| root.join(name)).into_iter().find(|p| p.is_file());
    if let Some(yaml) = usual.or_else(|| only_yaml(root)) {
        return DataConfig::from_yaml(&yaml);
    }
    if root.join("obj.data").is_file() {
        return darknet(&root.join("obj.data"), allow_outside);
    }
    let coco = |name: &str| Some(Source::from(name)).filter(|_| root.join(name).is_file());
    let described = |train, val, test| DataConfig { yaml: root.into(), ..splits(root, train, val, test) };
    if let Some(train) = coco("train/_annotations.coco.json") {
        let val = coco("valid/_annotations.coco.json").or_else(|| coco("val/_annotations.coco.json"));
        return Ok(described(train, val, coco("test/_annotations.coco.json")));
    }
    for folder in ["", "data/"] {
        let named = |name: &str| coco(&format!("{folder}{name}"));
        if let (Some(train), Some(val)) = (named("Train.json"), named("Valid.json")) {
            return Ok(described(train, Some(val), named("TestNoLabels.json")));
        }
    }
    if let Some(splits) = annotations(root)? {
        let [train, val, test] = splits;
        return Ok(described(train.unwrap_or_default(), val, test));
    }
    if let Some(all) = coco("labels.json").or_else(|| coco("result.json")).or_else(|| coco("_annotations.coco.json")) {
        return Ok(described(all, None, None));
    }
    if root.join("classes.txt").is_file() && root.join("images").is_dir() {
        let names = lines(&root.join("classes.txt"))?;
        return Ok(DataConfig { names, ..described("images".into(), None, None) });
    }
    let known = "data.yaml, dataset.yaml, one other .yaml, obj.data, train/_annotations.coco.json, annotations/*.json, labels.json, result.json, Train.json with Valid.json, or classes.txt with images/";
    Err(DataError::Invalid(format!("{}: no data set that is known by its files: {known}", root.display())))
}

/// The YAML of a folder that has one.
fn only_yaml(root: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(root).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut yamls = entries.filter(|path| path.extension().is_some_and(|e| e == "yaml" || e == "yml") && path.is_file());
    yamls.next().filter(|_| yamls.next().is_none())
}

/// One COCO file is one split: to be judged on, not to be trained on.
pub(crate) fn coco_file(json: &Path) -> DataConfig {
    let beside = json.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Absolute, so that `..` means the folder above.
    let beside = beside.canonicalize().unwrap_or_else(|_| beside.into());
    let root = if beside.ends_with("annotations") { beside.parent().unwrap_or(&beside).to_path_buf() } else { beside.clone() };
    let source = Source::from(beside.join(json.file_name().unwrap_or_default()));
    DataConfig { yaml: json.into(), root, val: vec![source.clone()], test: vec![source], channels: 3, ..DataConfig::default() }
}

/// Darknet's `obj.data`: `key = value` lines that name the lists of images and the file of class names, which may lie in a folder of `allow_outside`.
///
/// # Errors
/// [`DataError::Yaml`] for what is missing; whatever the names are refused for.
pub(crate) fn darknet(file: &Path, allow_outside: &[PathBuf]) -> Result<DataConfig, DataError> {
    let root = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let pairs = lines(file)?.into_iter().filter_map(|l| l.split_once('=').map(|(k, v)| (k.trim().to_string(), v.trim().to_string())));
    let values: BTreeMap<String, String> = pairs.collect();
    let source = |key: &str| values.get(key).filter(|v| !v.is_empty()).map(Source::from);
    let missing = |key: &str| DataError::Yaml { path: file.into(), line: None, reason: format!("`{key}` is missing") };
    let train = source("train").ok_or_else(|| missing("train"))?;
    let config = DataConfig { yaml: file.into(), allow_outside: allow_outside.to_vec(), ..splits(root, train, source("valid"), None) };
    let names = values.get("names").ok_or_else(|| missing("names"))?;
    Ok(DataConfig { names: lines(&config.resolve(root, Path::new(names))?)?, ..config })
}

fn splits(root: &Path, train: Source, val: Option<Source>, test: Option<Source>) -> DataConfig {
    let list = |source: Option<Source>| source.into_iter().collect::<Vec<_>>();
    let hold_out = val.is_none();
    DataConfig { root: root.into(), train: vec![train], val: list(val), test: list(test), hold_out, channels: 3, ..DataConfig::default() }
}

/// The COCO files in `annotations/`, by the split that their names say; the only one is training.
fn annotations(root: &Path) -> Result<Option<[Option<Source>; 3]>, DataError> {
    let Ok(entries) = std::fs::read_dir(root.join("annotations")) else { return Ok(None) };
    let mut files: Vec<PathBuf> = entries.filter_map(|e| Some(Path::new("annotations").join(e.ok()?.file_name()))).collect();
    files.retain(|file| Source::from(file).is_coco());
    files.sort_unstable();
    if let [only] = &files[..] {
        return Ok(Some([Some(only.into()), None, None]));
    }
    // Of several kinds (captions, key points) the boxes.
    let boxes =
        files.iter().filter(|f| !["captions", "keypoints", "panoptic", "stuff"].iter().any(|kind| f.to_string_lossy().contains(kind)));
    let boxes: Vec<&PathBuf> = boxes.collect();
    let named = |part: &str| -> Vec<&PathBuf> {
        boxes.iter().copied().filter(|f| f.file_name().is_some_and(|n| n.to_string_lossy().to_lowercase().contains(part))).collect()
    };
    let mut splits = [None, None, None];
    for (slot, part) in splits.iter_mut().zip(["train", "val", "test"]) {
        match named(part)[..] {
            [] => {}
            [one] => *slot = Some(Source::from(one)),
            _ => {
                return Err(DataError::Invalid(format!(
                    "{}: several files for {part}: say which in a data.yaml",
                    root.join("annotations").display()
                )));
            }
        }
    }
    Ok(Some(splits).filter(|s| s[0].is_some()))
}

/// The lines of a small text file that are not empty.
fn lines(path: &Path) -> Result<Vec<String>, DataError> {
    let bytes = read_bounded(path, MAX_BYTES)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().map(|l| l.trim().trim_start_matches('\u{feff}').to_string()).filter(|l| !l.is_empty()).collect())
}
