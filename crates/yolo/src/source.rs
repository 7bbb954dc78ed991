//! Where a run's data and its first weights come from: files, or nothing but a seed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bellows_learner::TaskError;
use bellows_weights::Weights;
use burn::data::dataset::Dataset;
use burn::tensor::Device;
use sha2::{Digest, Sha256};

use crate::boxes::Label;
use crate::config::{Cache, Toggle, TrainConfig};
use crate::data::cache::default_dir;
use crate::data::sample::{Generated, generate};
use crate::data::{DataConfig, DataError, DiskCache, Item, RamCache, Scan, ScanOptions, Size, Split, YoloDataset, scan};
use crate::model::names::{NamedTensors, load_tensors};
use crate::model::{Scale, Yolo, YoloConfig};
use crate::validate::ValSet;

/// Tells (what, done, total); called from many threads.
pub type Progress<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// What a model is trained and judged on.
pub struct TrainingData {
    /// Training samples.
    pub train: Arc<dyn Dataset<Item>>,
    /// Sizes of the training images, for `rect`; may be empty: then `rect` reads every item once.
    pub train_sizes: Vec<Size>,
    /// Validation samples.
    pub val: ValSet,
    /// Class names by index.
    pub names: Vec<String>,
    /// Input channels of the network, 3 or 1.
    pub channels: usize,
    /// All training labels, for `labels.jpg`; may be empty.
    pub labels: Vec<Label>,
    /// Changes when the data does: a run is resumed only on the data it began with.
    pub fingerprint: String,
    /// What a person wants to know about the data.
    pub lines: Vec<String>,
}

impl TrainingData {
    /// Data defined in code. Every validation item is read once for its size.
    ///
    /// # Errors
    /// When a validation item cannot be read.
    pub fn new(train: Arc<dyn Dataset<Item>>, val: Arc<dyn Dataset<Item>>, names: &[&str]) -> Result<Self, TaskError> {
        let fingerprint = format!("{} + {} items", train.len(), val.len());
        let val = ValSet::new(val)?;
        let names = names.iter().map(ToString::to_string).collect();
        Ok(Self { train, train_sizes: Vec::new(), val, names, channels: 3, labels: Vec::new(), fingerprint, lines: Vec::new() })
    }

    /// The data a `data.yaml` describes: generated if it says so, then scanned. `progress` gets (what, done, total).
    ///
    /// # Errors
    /// Whatever [`crate::data`] refuses, with file and line.
    pub fn open(config: &TrainConfig, progress: Progress<'_>) -> Result<Self, DataError> {
        let data = DataConfig::load(Path::new(&config.data), config.allow_outside.as_deref().unwrap_or_default())?;
        let mut lines = Vec::new();
        let drawn = |done, total| progress("drawing sample frames", done, total);
        if let Some(Generated::Written(n)) = data.generator.as_ref().map(|spec| generate(spec, &data.root, &drawn)).transpose()? {
            lines.push(format!("sample: drew {n} frames in {}", data.root.display()));
        }
        let options = ScanOptions {
            single_cls: config.single_cls,
            classes: config.classes.clone(),
            allow_bad: config.allow_bad,
            ..ScanOptions::default()
        };
        let mut scanned = |split: Split, fraction: f64| -> Result<Scan, DataError> {
            let options = ScanOptions { fraction, ..options.clone() };
            let scan = scan(&data, split, &options, &|done, total| progress(&format!("{}: scanning", split.key()), done, total))?;
            lines.push(scan_line(split, &scan));
            lines.extend(scan.bad.iter().take(20).map(|bad| format!("{}: ignored {bad}", split.key())));
            if scan.all_labels().is_empty() {
                lines.push(format!("{}: warning: no labels at all, nothing can be learnt from these images", split.key()));
            }
            Ok(scan)
        };
        let (train, val) = (scanned(Split::Train, config.fraction)?, scanned(Split::Val, 1.0)?);
        let fingerprint = fingerprint(&[&train, &val]);
        let labels = train.all_labels().to_vec();
        let (train, val) = (YoloDataset::new(train, data.channels), YoloDataset::new(val, data.channels));
        let (train_sizes, sizes) = (train.sizes(), val.sizes());
        let imgsz = config.imgsz as u32;
        let caching = |done, total| progress("caching images", done, total);
        let cached = |set: YoloDataset| -> Result<Arc<dyn Dataset<Item>>, DataError> {
            Ok(match config.cache {
                Cache::Off => Arc::new(set),
                Cache::Ram => Arc::new(RamCache::new(&set, imgsz, &caching)?),
                Cache::Disk => {
                    let dir = default_dir()
                        .ok_or_else(|| DataError::Invalid("cache=disk: this user has no cache folder (is HOME set?)".into()))?;
                    Arc::new(DiskCache::new(set, &dir.join("images"), imgsz, &caching)?)
                }
            })
        };
        let names = if config.single_cls { vec!["item".into()] } else { data.names.clone() };
        let (train, val) = (cached(train)?, ValSet::with_sizes(cached(val)?, sizes));
        Ok(Self { train, train_sizes, val, names, channels: data.channels as usize, labels, fingerprint, lines })
    }
}

/// Weights to start from that do not fit, or cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct Misfit {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

fn scan_line(split: Split, scan: &Scan) -> String {
    let mut line = format!(
        "{}: {} images, {} backgrounds, {} corrupt, {} objects",
        split.key(),
        scan.len(),
        scan.missing + scan.empty,
        scan.bad.len(),
        scan.all_labels().len()
    );
    for (count, what) in [(scan.duplicates, "duplicate labels removed"), (scan.zero_size, "boxes without size removed")] {
        if count > 0 {
            line.push_str(&format!(", {count} {what}"));
        }
    }
    line
}

/// Changes with the list of images or any label: what a resumed run must find unchanged.
fn fingerprint(scans: &[&Scan]) -> String {
    let mut hash = Sha256::new();
    for scan in scans {
        for i in 0..scan.len() {
            hash.update(scan.path(i).file_name().map(|n| n.as_encoded_bytes().to_vec()).unwrap_or_default());
            for label in scan.labels(i) {
                hash.update(label.class.to_le_bytes());
                label.xywh.iter().for_each(|v| hash.update(v.to_le_bytes()));
            }
        }
    }
    hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect()
}

/// A model to start from and what to tell about it.
pub(crate) struct Start {
    pub(crate) model: Yolo,
    pub(crate) header: Vec<String>,
}

/// Builds the model that `config.model` and `config.pretrained` ask for; frozen layers are frozen.
pub(crate) fn model(config: &TrainConfig, nc: usize, channels: usize, device: &Device) -> Result<Start, Misfit> {
    let named = scale_of(&config.model);
    let file = match (&config.pretrained, &named) {
        (Toggle::Path(path), _) => Some(path.clone()),
        (Toggle::On(true), None) => Some(config.model.clone()),
        _ => None,
    };
    let weights = file.as_deref().map(|path| Ok::<_, Misfit>((path, read(Path::new(path))?))).transpose()?;
    let fits = |reason: String| Misfit { path: file.as_deref().unwrap_or(&config.model).into(), reason };
    let scale = match (named, &weights) {
        (Some(scale), _) => scale,
        (None, Some((_, weights))) => scale_in(weights).ok_or_else(|| fits("not the weights of a YOLOv8 detector".into()))?,
        (None, None) => return Err(fits("`model` must be yolov8n, s, m, l or x, or a weight file".into())),
    };
    let sppf_act = weights.as_ref().is_none_or(|(_, w)| sppf_has_activation(w));
    let mut model = YoloConfig { scale, nc, channels, sppf_act }.init(config.seed, device);
    let mut header = Vec::new();
    if let Some((path, weights)) = &weights {
        let (loaded, report) = load_tensors(model, &named_tensors(weights).map_err(&fits)?).map_err(|e| fits(e.to_string()))?;
        if report.transferred == 0 {
            return Err(fits("no tensor fits this model".into()));
        }
        model = loaded;
        header.push(format!("Transferred {}/{} items from {path}", report.transferred, report.total));
    }
    if weights.is_none() {
        header.push(format!(
            "Starting from random weights, for `{}` is a size; --model FILE.pt (or .safetensors) starts from a file",
            config.model
        ));
    }
    let summary = model.summary(config.imgsz, config.imgsz);
    let figures = [summary.layers, summary.parameters, summary.gradients].map(thousands);
    header.insert(
        0,
        format!(
            "YOLOv8{} summary: {} layers, {} parameters, {} gradients, {:.1} GFLOPs",
            format!("{scale:?}").to_lowercase(),
            figures[0],
            figures[1],
            figures[2],
            summary.gflops
        ),
    );
    let frozen: Vec<usize> = (0..model.model.len()).filter(|&i| config.freeze.covers(i)).collect();
    if !frozen.is_empty() {
        model = model.freeze_layers(&frozen);
        header.push(format!("Freezing layers {frozen:?}"));
    }
    Ok(Start { model, header })
}

/// The model of an exported file: every tensor must be there.
pub(crate) fn load_exactly(path: &Path, like: Yolo) -> Result<Yolo, Misfit> {
    let fits = |reason: String| Misfit { path: path.into(), reason };
    let weights = read(path)?;
    let (model, report) = load_tensors(like, &named_tensors(&weights).map_err(fits)?).map_err(|e| fits(e.to_string()))?;
    if report.transferred != report.total {
        return Err(fits(format!("only {} of {} tensors fit this model", report.transferred, report.total)));
    }
    Ok(model)
}

fn read(path: &Path) -> Result<Weights, Misfit> {
    let weights = bellows_weights::read(path).map_err(|e| Misfit { path: path.into(), reason: e.to_string() })?;
    bellows_weights::check_finite(&weights.tensors).map_err(|e| Misfit { path: path.into(), reason: e.to_string() })?;
    Ok(weights)
}

fn named_tensors(weights: &Weights) -> Result<NamedTensors, String> {
    let tensors = weights.tensors.iter();
    tensors
        .map(|(name, t)| Ok((name.clone(), (t.shape.clone(), t.to_f32().map_err(|e| e.to_string())?))))
        .collect::<Result<BTreeMap<_, _>, _>>()
}

/// `yolov8n` or `yolov8n.yaml` to its scale.
fn scale_of(name: &str) -> Option<Scale> {
    match name.strip_suffix(".yaml").unwrap_or(name).strip_prefix("yolov8")? {
        "n" => Some(Scale::N),
        "s" => Some(Scale::S),
        "m" => Some(Scale::M),
        "l" => Some(Scale::L),
        "x" => Some(Scale::X),
        _ => None,
    }
}

/// The scale whose first convolution and deepest block have the file's widths and depth.
fn scale_in(weights: &Weights) -> Option<Scale> {
    let width = weights.tensors.get("model.0.conv.weight")?.shape.first().copied()?;
    match width {
        16 => Some(Scale::N),
        32 => Some(Scale::S),
        48 => Some(Scale::M),
        64 => Some(Scale::L),
        80 => Some(Scale::X),
        _ => None,
    }
}

/// Release 8.4 leaves the activation of the first convolution of the pooling pyramid out.
fn sppf_has_activation(weights: &Weights) -> bool {
    let exported_without = weights.metadata.get("sppf_act").is_some_and(|v| v == "false");
    !exported_without && !weights.classes.get("model.9.cv1.act").is_some_and(|class| class.ends_with(".Identity"))
}

fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(|c| String::from_utf8_lossy(c).into_owned());
    groups.collect::<Vec<_>>().join(",")
}
