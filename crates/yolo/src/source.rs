//! Where a run's data and its first weights come from: files, or nothing but a seed.

use std::path::Path;
use std::sync::Arc;

use bellows_learner::TaskError;
use burn::data::dataset::Dataset;
use burn::tensor::Device;
use sha2::{Digest, Sha256};

use crate::boxes::Label;
use crate::checkpoint::{Misfit, WeightFile, scale_of, weight_file};
use crate::config::{Cache, Toggle, TrainConfig};
use crate::data::cache::default_dir;
use crate::data::sample::{Generated, generate};
use crate::data::{DataConfig, DataError, DiskCache, Item, RamCache, Scan, ScanOptions, Size, Split, YoloDataset, scan};
use crate::model::{Yolo, YoloConfig};
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
        let mut source = Source::open(config, progress)?;
        let (train, val) = (source.scan(Split::Train, config.fraction)?, source.scan(Split::Val, 1.0)?);
        let fingerprint = fingerprint(&[&train, &val]);
        let labels = train.all_labels().to_vec();
        let channels = source.data.channels;
        let (train, val) = (YoloDataset::new(train, channels), YoloDataset::new(val, channels));
        let (train_sizes, sizes) = (train.sizes(), val.sizes());
        let (train, val) = (source.cached(train)?, ValSet::with_sizes(source.cached(val)?, sizes));
        let (names, lines) = (source.names(), source.lines);
        Ok(Self { train, train_sizes, val, names, channels: channels as usize, labels, fingerprint, lines })
    }
}

/// One split, to judge a model on.
pub struct JudgedData {
    /// Its samples.
    pub set: ValSet,
    /// Class names by index.
    pub names: Vec<String>,
    /// What a person wants to know about the data.
    pub lines: Vec<String>,
}

impl JudgedData {
    /// A split of what a `data.yaml` describes, for a network with `channels` input channels.
    ///
    /// # Errors
    /// As [`TrainingData::open`].
    pub fn open(config: &TrainConfig, split: Split, channels: usize, progress: Progress<'_>) -> Result<Self, DataError> {
        let mut source = Source::open(config, progress)?;
        let set = YoloDataset::new(source.scan(split, 1.0)?, channels as u32);
        let sizes = set.sizes();
        Ok(Self { set: ValSet::with_sizes(source.cached(set)?, sizes), names: source.names(), lines: source.lines })
    }
}

/// A description of data that is being opened.
struct Source<'a> {
    config: &'a TrainConfig,
    data: DataConfig,
    progress: Progress<'a>,
    lines: Vec<String>,
}

impl<'a> Source<'a> {
    fn open(config: &'a TrainConfig, progress: Progress<'a>) -> Result<Self, DataError> {
        let data = DataConfig::load(Path::new(&config.data), config.allow_outside.as_deref().unwrap_or_default())?;
        let mut lines = Vec::new();
        let drawn = |done, total| progress("drawing sample frames", done, total);
        if let Some(Generated::Written(n)) = data.generator.as_ref().map(|spec| generate(spec, &data.root, &drawn)).transpose()? {
            lines.push(format!("sample: drew {n} frames in {}", data.root.display()));
        }
        Ok(Self { config, data, progress, lines })
    }

    fn names(&self) -> Vec<String> {
        if self.config.single_cls { vec!["item".into()] } else { self.data.names.clone() }
    }

    fn scan(&mut self, split: Split, fraction: f64) -> Result<Scan, DataError> {
        let options = ScanOptions {
            fraction,
            single_cls: self.config.single_cls,
            classes: self.config.classes.clone(),
            allow_bad: self.config.allow_bad,
            ..ScanOptions::default()
        };
        let scan = scan(&self.data, split, &options, &|done, total| (self.progress)(&format!("{}: scanning", split.key()), done, total))?;
        self.lines.push(scan_line(split, &scan));
        self.lines.extend(scan.bad.iter().take(20).map(|bad| format!("{}: ignored {bad}", split.key())));
        if scan.all_labels().is_empty() {
            self.lines.push(format!("{}: warning: no labels at all, nothing can be learnt from these images", split.key()));
        }
        Ok(scan)
    }

    /// The images where `cache` wants them.
    fn cached(&self, set: YoloDataset) -> Result<Arc<dyn Dataset<Item>>, DataError> {
        let imgsz = self.config.imgsz as u32;
        let caching = |done, total| (self.progress)("caching images", done, total);
        Ok(match self.config.cache {
            Cache::Off => Arc::new(set),
            Cache::Ram => Arc::new(RamCache::new(&set, imgsz, &caching)?),
            Cache::Disk => {
                let none = || DataError::Invalid("cache=disk: this user has no cache folder (is HOME set?)".into());
                Arc::new(DiskCache::new(set, &default_dir().ok_or_else(none)?.join("images"), imgsz, &caching)?)
            }
        })
    }
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
        (Toggle::Path(path), _) => Some(path.as_str()),
        (Toggle::On(true), None) => Some(config.model.as_str()),
        _ => None,
    };
    let file = file.map(|path| WeightFile::read(&weight_file(Path::new(path))?)).transpose()?;
    let scale = named.or_else(|| Some(file.as_ref()?.config().scale)).ok_or_else(|| Misfit {
        path: config.model.clone().into(),
        reason: "`model` must be yolov8n, s, m, l or x, or a weight file".into(),
    })?;
    let sppf_act = file.as_ref().is_none_or(|file| file.config().sppf_act);
    let mut model = YoloConfig { scale, nc, channels, sppf_act }.init(config.seed, device);
    let mut header = Vec::new();
    match &file {
        Some(file) => (model, header) = file.transfer(model, nc)?,
        None => header.push("Random first weights: to start from a trained model, give its file (--model FILE.pt or .safetensors)".into()),
    }
    let summary = model.summary(config.imgsz, config.imgsz);
    let [layers, parameters, gradients] = [summary.layers, summary.parameters, summary.gradients].map(thousands);
    let size = scale.letter();
    header.insert(
        0,
        format!("YOLOv8{size} summary: {layers} layers, {parameters} parameters, {gradients} gradients, {:.1} GFLOPs", summary.gflops),
    );
    let frozen: Vec<usize> = (0..model.model.len()).filter(|&i| config.freeze.covers(i)).collect();
    if !frozen.is_empty() {
        model = model.freeze_layers(&frozen);
        header.push(format!("Freezing layers {frozen:?}"));
    }
    Ok(Start { model, header })
}

fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(|c| String::from_utf8_lossy(c).into_owned());
    groups.collect::<Vec<_>>().join(",")
}
