//! Where a run's data and its first weights come from: files, or nothing but a seed.

use std::path::Path;
use std::sync::Arc;

use bellows_learner::TaskError;
use bellows_runs::{RunDir, cache_dir};
use burn::data::dataset::Dataset;
use burn::tensor::Device;
use sha2::{Digest, Sha256};

use crate::boxes::Label;
use crate::checkpoint::{Misfit, WeightFile, scale_of, weight_file};
use crate::config::{Cache, Toggle, TrainConfig};
use crate::data::sample::{Generated, generate};
use crate::data::{
    DataConfig, DataError, DiskCache, Grouping, Item, Normalisation, RamCache, Scan, ScanOptions, Size, Split, Stacked, YoloDataset,
    before, leaks, overlap, report, sampler, scan,
};
use crate::memory::cached_bytes;
use crate::model::{Yolo, YoloConfig};
use crate::validate::ValSet;

const HELD_OUT_STACKS: &str =
    "warning: images are held out one by one, so the frames before them are others than in training: name a val of whole clips";
const LEVELS_OF_STACKS: &str =
    "warning: hsv_v does nothing with frames or background; thermal_gain and thermal_offset vary the brightness of all channels alike";
const ONE_CLIP: &str =
    "warning: sampler: clips=balanced changes nothing, for all images of train are of one clip (`clip` of their meta, or their folder)";

/// A scan is told of by so many images: where all are remembered, threads wait longer to tell than they look.
const TOLD: u64 = 16;

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
    /// Input channels of the network.
    pub channels: usize,
    /// How often each training sample is taken, as its share of all; empty for every one once.
    pub weights: Vec<f64>,
    /// Of training samples in shards, how many each shard has; empty for others.
    pub shards: Vec<usize>,
    /// All training labels, for `labels.jpg`; may be empty.
    pub labels: Vec<Label>,
    /// Counts of 16-bit images that become black and white, where there are such images and one range is for all.
    pub range: Option<[f64; 2]>,
    /// Changes when the data does: a run is resumed only on the data it began with.
    pub fingerprint: String,
    /// Changes with the folders that images are in, and with `group_by` with the clips that intervals are drawn from: a fact of its own, which runs from before it
    /// do not know and go on without.
    pub folders: String,
    /// Changes with where training images end and validation begins, which frame stands before which, how often each is taken, and groups: so do the
    /// numbers of a run.
    pub order: String,
    /// What a person wants to know about the data.
    pub lines: Vec<String>,
    /// Those of each training sample, then of each of validation; where it is silent, 3.
    item_channels: Vec<u8>,
    /// Of data that was found, what is decoded from here on.
    undecoded: Option<Undecoded>,
    /// Nobody has looked at what its items are.
    pub(crate) in_code: bool,
}

/// Images of training and validation that are read from their files, and of each image the one before it where frames are stacked.
struct Undecoded {
    sets: [Arc<YoloDataset>; 2],
    before: [Vec<Option<u32>>; 2],
}

impl TrainingData {
    /// Data defined in code. Every validation item is read once for its size. An item that cannot be used (its class has no name here, its box is not finite, its
    /// pixels do not fill its frame, or the network has other [`channels`](Self::channels)) is left out with a warning, as a file that cannot be read is.
    ///
    /// # Errors
    /// When a validation item cannot be read.
    pub fn new(train: Arc<dyn Dataset<Item>>, val: Arc<dyn Dataset<Item>>, names: &[&str]) -> Result<Self, TaskError> {
        let fingerprint = format!("{} + {} items", train.len(), val.len());
        let order = order([train.len(), val.len()], &[], &[], &[]);
        let val = ValSet::new(val)?;
        let names = names.iter().map(ToString::to_string).collect();
        Ok(Self {
            train,
            train_sizes: Vec::new(),
            val,
            names,
            channels: 3,
            item_channels: Vec::new(),
            weights: Vec::new(),
            shards: Vec::new(),
            labels: Vec::new(),
            range: None,
            fingerprint,
            folders: String::new(),
            order,
            lines: Vec::new(),
            undecoded: None,
            in_code: true,
        })
    }

    /// Bytes that `cache: ram` takes for its images.
    pub fn cache_bytes(&self, imgsz: usize) -> f64 {
        let sizes = self.train_sizes.iter().chain(&self.val.sizes).copied();
        cached_bytes(sizes.zip(self.item_channels.iter().copied().chain(std::iter::repeat(3))), imgsz)
    }

    /// The data a `data.yaml` describes: generated if it says so, scanned, and decoded if `cache` asks for it. `progress` gets (what, done, total).
    ///
    /// # Errors
    /// Whatever [`crate::data`] refuses, with file and line.
    pub fn open(config: &TrainConfig, progress: Progress<'_>) -> Result<Self, DataError> {
        let mut data = Self::find(config, progress)?;
        data.decode(config, progress)?;
        Ok(data)
    }

    /// Keeps decoded images where `cache` says; done again it does nothing.
    ///
    /// # Errors
    /// An image that cannot be read, too little memory or disk.
    pub fn decode(&mut self, config: &TrainConfig, progress: Progress<'_>) -> Result<(), DataError> {
        let Some(Undecoded { sets: [train, val], before }) = self.undecoded.take() else { return Ok(()) };
        self.train = stacked(config, cached(config, train, progress)?, &before[0]);
        self.val.set_data(stacked(config, cached(config, val, progress)?, &before[1]));
        Ok(())
    }

    /// Whether [`decode`](Self::decode) is still to come, with these settings.
    pub(crate) fn is_to_be_decoded(&self, config: &TrainConfig) -> bool {
        self.undecoded.is_some() && config.cache != Cache::Off
    }

    /// The same as [`open`](Self::open) with images that are still in their files: [`decode`](Self::decode) is to follow, once it is known that there is room.
    ///
    /// # Errors
    /// Whatever [`crate::data`] refuses, with file and line.
    pub fn find(config: &TrainConfig, progress: Progress<'_>) -> Result<Self, DataError> {
        let (data, mut lines) = described(config, progress)?;
        if data.train.is_empty() {
            let reason = format!("{}: one COCO file is one split; name those to train and to be judged on in a data.yaml", config.data);
            return Err(DataError::Invalid(reason));
        }
        if data.hold_out {
            lines.push("val: none is named, so every tenth image of train (by a hash of its path) is held out for it".into());
            lines.extend(config.stack().is_on().then(|| HELD_OUT_STACKS.into()));
        }
        lines.extend(not_done(config));
        let asked_for = ![0.0, TrainConfig::default().hsv_v].contains(&config.hsv_v);
        lines.extend((asked_for && config.stack().is_on()).then(|| LEVELS_OF_STACKS.into()));
        let mut scanned = |split: Split, fraction: f64| -> Result<Scan, DataError> {
            let scan = scanned(config, &data, split, fraction, progress)?;
            lines.extend(report(split, &scan));
            Ok(scan)
        };
        let (train, val) = (scanned(Split::Train, config.fraction)?, scanned(Split::Val, 1.0)?);
        let normalisation = config.levels().resolve(&train, cache_dir().as_deref())?;
        let deep = [&train, &val].iter().any(|scan| scan.images.iter().any(|image| image.deep));
        lines.extend(deep.then(|| levels_line(normalisation)));
        lines.extend(overlap((Split::Train, &train), (Split::Val, &val)));
        lines.extend(leaks((Split::Train, &train), (Split::Val, &val)));
        let by_clips = config.sampler.as_ref().is_some_and(|sampler| sampler.clips);
        lines.extend((by_clips && train.meta.clips() < 2).then(|| ONE_CLIP.into()));
        lines.extend(config.sampler.as_ref().and_then(|sampler| sampler::no_choice(&train, sampler)));
        let weights = config.sampler.as_ref().map(|sampler| sampler::weights(&train, sampler, data.names.len())).unwrap_or_default();
        let fingerprint = fingerprint(&[&train, &val], deep.then_some(normalisation));
        let grouped = config.group_by.as_ref().is_some_and(|keys| !keys.is_empty());
        let folders = folders(&[&train, &val], if grouped { val.meta.clip_of() } else { &[] });
        let range = match normalisation {
            Normalisation::Range { low, high } if deep => Some([low, high]),
            _ => None,
        };
        let shards = train.shards();
        let (labels, ids, meta, areas) = (train.all_labels().to_vec(), val.ids().clone(), val.meta.clone(), val.areas().clone());
        let before = [&train, &val].map(|scan| frames_before(config, scan));
        let channels = if config.stack().is_on() { config.stack().channels() } else { data.channels as usize };
        let set = |scan: Scan| YoloDataset::new(scan.bare(), gray_or(config, data.channels), normalisation);
        let sets = [train, val].map(|scan| Arc::new(set(scan)));
        let [train_sizes, sizes] = [0, 1].map(|i: usize| sets[i].sizes());
        let item_channels = sets.iter().flat_map(|set| set.item_channels()).collect();
        let [train, val] = [0, 1].map(|i: usize| stacked(config, sets[i].clone(), &before[i]));
        let val = ValSet::with_sizes(val, sizes).with_ids(ids).with_meta(meta).with_areas(areas);
        let groups = val.groupings(config.group_by.as_deref().unwrap_or_default())?;
        let mut order = order([train.len(), val.len()], &before, &weights, &groups);
        if config.rect {
            // Rectangles have not always been shuffled.
            order.push_str(" shuffled");
        }
        let names = class_names(config, &data);
        Ok(Self {
            train,
            train_sizes,
            val,
            names,
            channels,
            item_channels,
            weights,
            shards,
            labels,
            range,
            fingerprint,
            folders,
            order,
            lines,
            undecoded: Some(Undecoded { sets, before }),
            in_code: false,
        })
    }
}

/// One split of a data set, to judge a model on.
pub struct SplitData {
    /// The images and their labels.
    pub set: ValSet,
    /// Class names by index.
    pub names: Vec<String>,
    /// What a person wants to know about the data.
    pub lines: Vec<String>,
    undecoded: Option<(Arc<YoloDataset>, Vec<Option<u32>>)>,
}

impl SplitData {
    /// The images of `split`, still in their files ([`decode`](Self::decode) is to follow, once it is known what is asked of them), for a network with `channels` input channels. Levels of 16-bit images are `config.range` if that is given (a trained model's is in its weights), else those that
    /// training would take.
    ///
    /// # Errors
    /// Whatever [`crate::data`] refuses, with file and line; a split that is not named.
    pub fn find(config: &TrainConfig, split: Split, channels: usize, progress: Progress<'_>) -> Result<Self, DataError> {
        let (data, mut lines) = described(config, progress)?;
        if data.sources(split).is_empty() {
            return Err(DataError::Invalid(format!("{}: there is no `{}`", config.data, split.key())));
        }
        let scan = scanned(config, &data, split, 1.0, progress)?;
        lines.extend(report(split, &scan));
        let deep = scan.images.iter().any(|image| image.deep);
        let measured = if deep && config.range.is_none() && split != Split::Train && !data.train.is_empty() {
            scanned(config, &data, Split::Train, config.fraction, progress).ok()
        } else {
            None
        };
        let normalisation = config.levels().resolve(measured.as_ref().unwrap_or(&scan), cache_dir().as_deref())?;
        lines.extend(deep.then(|| levels_line(normalisation)));
        let (ids, meta, areas, before) = (scan.ids().clone(), scan.meta.clone(), scan.areas().clone(), frames_before(config, &scan));
        let images = Arc::new(YoloDataset::new(scan.bare(), gray_or(config, channels as u32), normalisation));
        let sizes = images.sizes();
        let names = class_names(config, &data);
        let set = ValSet::with_sizes(stacked(config, images.clone(), &before), sizes).with_ids(ids).with_meta(meta).with_areas(areas);
        set.groupings(config.group_by.as_deref().unwrap_or_default())?;
        Ok(Self { set, names, lines, undecoded: Some((images, before)) })
    }

    /// Keeps decoded images where `cache` says; done again it does nothing.
    ///
    /// # Errors
    /// An image that cannot be read, too little memory or disk.
    pub fn decode(&mut self, config: &TrainConfig, progress: Progress<'_>) -> Result<(), DataError> {
        if let Some((images, before)) = self.undecoded.take() {
            self.set.set_data(stacked(config, cached(config, images, progress)?, &before));
        }
        Ok(())
    }
}

/// That each of the `classes` asked for is one of these.
///
/// # Errors
/// A sentence that names the first which is not.
pub fn known_classes(classes: Option<&[u32]>, names: &[String]) -> Result<(), String> {
    let count = names.len();
    match classes.unwrap_or_default().iter().find(|&&class| class as usize >= count) {
        Some(class) => Err(format!("classes: {class} is not one of the {count} classes (0..{})", count.saturating_sub(1))),
        None => Ok(()),
    }
}

/// The data set that `config.data` names, drawn if it says so, and what there is to say about it.
fn described(config: &TrainConfig, progress: Progress<'_>) -> Result<(DataConfig, Vec<String>), DataError> {
    let data = DataConfig::load(Path::new(&config.data), config.allow_outside.as_deref().unwrap_or_default())?;
    known_classes(config.classes.as_deref(), &data.names).map_err(DataError::Invalid)?;
    let mut lines: Vec<String> = data.notes.iter().map(|note| format!("warning: {note}")).collect();
    let drawn = |done, total| progress("drawing sample frames", done, total);
    if let Some(Generated::Written(n)) = data.generator.as_ref().map(|spec| generate(spec, &data.root, &drawn)).transpose()? {
        lines.push(format!("sample: drew {n} frames in {}", data.root.display()));
    }
    Ok((data, lines))
}

fn scanned(config: &TrainConfig, data: &DataConfig, split: Split, fraction: f64, progress: Progress<'_>) -> Result<Scan, DataError> {
    let options = ScanOptions {
        fraction,
        // Else the step from frame to frame would be another in training than where it is judged.
        whole_clips: config.stack().is_on(),
        single_cls: config.single_cls,
        classes: config.classes.clone(),
        allow_bad: config.allow_bad,
        ..ScanOptions::default()
    };
    let what = format!("{}: scanning", split.key());
    let told = |done: u64, total: u64| {
        if done.is_multiple_of(TOLD) || done == total {
            progress(&what, done, total);
        }
    };
    let found = scan(data, split, &options, &told)?;
    let grouped = config.group_by.iter().flatten().any(|key| key == crate::data::meta::CLIP);
    let of_clips = config.stack().is_on() || grouped || config.sampler.as_ref().is_some_and(|sampler| sampler.clips);
    if of_clips && found.packed().is_some() {
        let reason = "shards do not say which clip an image is of: frames, background, groups by clip and the sampler's clips cannot be used with them";
        return Err(DataError::Invalid(format!("{}: {reason}", split.key())));
    }
    Ok(found)
}

/// Decoded images are kept as `config.cache` says.
fn cached(config: &TrainConfig, set: Arc<YoloDataset>, progress: Progress<'_>) -> Result<Arc<dyn Dataset<Item>>, DataError> {
    let imgsz = config.imgsz as u32;
    let caching = |done, total| progress("caching images", done, total);
    Ok(match config.cache {
        Cache::Off => set,
        Cache::Ram => Arc::new(RamCache::new(&*set, imgsz, &caching)?),
        Cache::Disk => {
            let dir = cache_dir().ok_or_else(|| DataError::Invalid("cache=disk: this user has no cache folder (is HOME set?)".into()))?;
            Arc::new(DiskCache::new(set, &dir.join("images"), imgsz, &caching)?)
        }
    })
}

/// Channels of a single image: those of a network that looks at single images, one where frames are stacked.
fn gray_or(config: &TrainConfig, channels: u32) -> u32 {
    if config.stack().is_on() { 1 } else { channels }
}

/// Of each image the one before it, if the settings ask for it.
fn frames_before(config: &TrainConfig, scan: &Scan) -> Vec<Option<u32>> {
    if config.stack().is_on() { before(&scan.meta, (0..scan.len()).map(|i| scan.path(i))) } else { Vec::new() }
}

/// Items with the frames before them, if the settings ask for it.
fn stacked(config: &TrainConfig, data: Arc<dyn Dataset<Item>>, before: &[Option<u32>]) -> Arc<dyn Dataset<Item>> {
    let stack = config.stack();
    if stack.is_on() { Arc::new(Stacked::new(data, stack, before.to_vec())) } else { data }
}

fn class_names(config: &TrainConfig, data: &DataConfig) -> Vec<String> {
    if config.single_cls { vec!["item".into()] } else { data.names.clone() }
}

/// What the settings ask for that is not done, a line each.
fn not_done(config: &TrainConfig) -> impl Iterator<Item = String> {
    let pasted =
        (config.copy_paste > 0.0).then_some("warning: copy_paste is not done: no object is pasted, whether labels are polygons or boxes");
    let mixed = (config.rect && config.mixup.max(config.cutmix) > 0.0).then_some("warning: mixup and cutmix are not done with rect");
    pasted.into_iter().chain(mixed).map(String::from)
}

fn levels_line(normalisation: Normalisation) -> String {
    match normalisation {
        Normalisation::Range { low, high } => format!("16-bit images: counts {low} to {high} become black to white"),
        Normalisation::Frame { low, high } => format!("16-bit images: percentiles {low} to {high} of each frame become black to white"),
    }
}

/// Changes with the list of images or any label: what a resumed run must find unchanged, wherever the data set lies.
/// So it must the levels of 16-bit images.
fn fingerprint(scans: &[&Scan], levels: Option<Normalisation>) -> String {
    let mut hash = Sha256::new();
    for scan in scans {
        if let Some(packed) = scan.packed() {
            hash.update(packed.mark().to_le_bytes());
        }
        for i in 0..scan.len() {
            hash.update(scan.within(i).file_name().map(|n| n.as_encoded_bytes()).unwrap_or_default());
            for label in scan.labels(i) {
                hash.update(label.class.to_le_bytes());
                label.xywh.iter().for_each(|v| hash.update(v.to_le_bytes()));
            }
            scan.outlines(i).iter().for_each(|outline| outline.as_flattened().iter().for_each(|v| hash.update(v.to_le_bytes())));
        }
    }
    if let Some(levels) = levels {
        hash.update(format!("{levels:?}"));
    }
    hex(hash)
}

/// Changes with the folder that an image is in, and with the clips of validation images, if there are any.
fn folders(scans: &[&Scan], clips: &[u32]) -> String {
    let mut hash = Sha256::new();
    for scan in scans {
        for i in 0..scan.len() {
            hash.update(scan.name(i));
            hash.update([0]);
        }
    }
    clips.iter().for_each(|clip| hash.update(clip.to_le_bytes()));
    hex(hash)
}

/// Changes with what is computed of the same images and labels: `lens` of training and validation, the frame before each of them, weights, groups.
fn order(lens: [usize; 2], before: &[Vec<Option<u32>>], weights: &[f64], groups: &[Grouping]) -> String {
    let mut hash = Sha256::new();
    lens.iter().for_each(|&len| hash.update((len as u64).to_le_bytes()));
    let mut indices = |of: &[Option<u32>]| of.iter().for_each(|i| hash.update(i.map_or(0, |i| i + 1).to_le_bytes()));
    before.iter().for_each(|of| indices(of));
    groups.iter().for_each(|by| indices(&by.of));
    groups.iter().for_each(|by| hash.update(format!("{} {:?}", by.key, by.names)));
    weights.iter().for_each(|weight| hash.update(weight.to_bits().to_le_bytes()));
    if !weights.is_empty() {
        // Takes of one image have not always been told apart.
        hash.update("takes");
    }
    hex(hash)
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect()
}

/// A model to start from and what to tell about it.
pub(crate) struct Start {
    pub(crate) model: Yolo,
    /// What it was built from.
    pub(crate) form: YoloConfig,
    pub(crate) header: Vec<String>,
    /// Of the weights it begins from, where their file states one.
    pub(crate) license: Option<String>,
}

/// What the network that the settings ask for is built from, once it has been: weights that it cannot begin with are refused.
///
/// # Errors
/// A model or a weight file that is none, weights that do not fit.
pub fn network(config: &TrainConfig, nc: usize, channels: usize, device: &Device) -> Result<YoloConfig, Misfit> {
    Ok(model(config, nc, channels, None, device)?.form)
}

/// The same before anything is built.
///
/// # Errors
/// A model or a weight file that is none.
pub(crate) fn form(config: &TrainConfig, nc: usize, channels: usize, resumed: Option<&Path>) -> Result<YoloConfig, Misfit> {
    Ok(origin(config, nc, channels, begun(resumed))?.form)
}

/// The run that is gone on with, if it has a checkpoint.
fn begun(resumed: Option<&Path>) -> Option<&Path> {
    resumed.filter(|&run| RunDir::at(run).newest_step().is_some())
}

/// What a model is made of.
struct Origin {
    /// The file it begins from, if it begins from one, and what there is to say of the choice.
    file: Option<WeightFile>,
    note: Option<String>,
    form: YoloConfig,
}

/// What `config.model` and `config.pretrained` ask for. Of a run that is gone on with the file it began with is asked for its form alone, and where it is gone
/// the weights of the run are.
fn origin(config: &TrainConfig, nc: usize, channels: usize, run: Option<&Path>) -> Result<Origin, Misfit> {
    let named = scale_of(&config.model);
    let file = match (&config.pretrained, &named) {
        (Toggle::Path(path), _) => Some(path.as_str()),
        (Toggle::On(_), None) => Some(config.model.as_str()),
        _ => None,
    };
    let own = |error: Misfit| {
        let weights = run.into_iter().flat_map(|run| ["last", "best"].map(|name| run.join(format!("weights/{name}.safetensors"))));
        weights.into_iter().find_map(|path| WeightFile::read(&path).ok()).ok_or_else(|| with_remedy(error, config))
    };
    let begun_with = |path: &str| weight_file(Path::new(path)).and_then(|chosen| Ok((WeightFile::read(&chosen.path)?, chosen.note)));
    let (file, note) = file.map(|path| begun_with(path).or_else(|error| Ok((own(error)?, None)))).transpose()?.unzip();
    let begun_from = file.as_ref().map(WeightFile::config);
    let (scale, p2) = named.or_else(|| begun_from.map(|form| (form.scale, form.p2))).ok_or_else(|| Misfit {
        path: config.model.clone().into(),
        reason: "`model` must be yolov8n, s, m, l or x, with -p2 for a finer level, or a weight file".into(),
    })?;
    let form = YoloConfig { scale, nc, channels, sppf_act: begun_from.is_none_or(|form| form.sppf_act), p2 };
    // Of a file whose weights are not wanted that was all.
    let (file, note) = match config.pretrained {
        Toggle::On(false) if file.is_some() => {
            (None, run.is_none().then(|| format!("Random first weights, in the form of {} (pretrained false)", config.model)))
        }
        _ => (file, note.flatten()),
    };
    Ok(Origin { file, note, form })
}

/// Of a `model` that is not there and has the name of published weights, what to do about it.
fn with_remedy(error: Misfit, config: &TrainConfig) -> Misfit {
    let published = config.model.strip_suffix(".pt").filter(|name| scale_of(name).is_some());
    let missing = error.path == Path::new(&config.model) && !error.path.exists();
    match published.filter(|_| missing) {
        Some(name) => {
            let remedy = format!("put your own copy of the published weights there, or begin from random ones with --model {name}");
            Misfit { reason: format!("{}; {remedy}", error.reason), path: error.path }
        }
        None => error,
    }
}

/// Builds the model that `config.model` and `config.pretrained` ask for; frozen layers are frozen. Of a run that is gone on with, `resumed`, the values
/// are in its checkpoint.
///
/// # Errors
/// Weights that are no detector's, or do not fit; no layer left to train.
pub(crate) fn model(config: &TrainConfig, nc: usize, channels: usize, resumed: Option<&Path>, device: &Device) -> Result<Start, Misfit> {
    let run = begun(resumed);
    let Origin { file, note, form } = origin(config, nc, channels, run)?;
    let mut model = form.init(config.seed, device);
    let mut header = Vec::new();
    match &file {
        _ if run.is_some() => header.push("The weights are those of the run so far".into()),
        Some(file) => (model, header) = file.transfer(model, nc, config.stack())?,
        None if note.is_some() => {}
        None => header.push("Random first weights: to start from a trained model, give its file (--model FILE.pt or .safetensors)".into()),
    }
    let summary = model.summary(config.imgsz, config.imgsz);
    let [layers, parameters, gradients] = [summary.layers, summary.parameters, summary.gradients].map(thousands);
    let size = format!("{}{}", form.scale.letter(), if form.p2 { "-p2" } else { "" });
    header.insert(
        0,
        format!("YOLOv8{size} summary: {layers} layers, {parameters} parameters, {gradients} gradients, {:.1} GFLOPs", summary.gflops),
    );
    header.extend(note);
    let frozen: Vec<usize> = (0..model.model.len()).filter(|&i| config.freeze.covers(i)).collect();
    if frozen.len() == model.model.len() {
        let (layers, last) = (frozen.len(), frozen.len() - 1);
        let reason = format!("all {layers} layers (0 to {last}) are frozen, so nothing would be trained; leave at least one out");
        return Err(Misfit { path: "freeze".into(), reason });
    }
    if !frozen.is_empty() {
        model = model.freeze_layers(&frozen);
        header.push(format!("Freezing layers {frozen:?}"));
    }
    // A run that goes on has weights of its own, whatever `model` names by now. Those that an older program has written state none.
    let written = run.iter().flat_map(|run| ["last", "best"].map(|name| run.join(format!("weights/{name}.safetensors"))));
    let of_run = written.filter_map(|path| WeightFile::read(&path).ok()).next();
    let license = of_run.as_ref().and_then(WeightFile::license).or_else(|| file.as_ref().and_then(WeightFile::license)).map(String::from);
    Ok(Start { model, form, header, license })
}

fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(|c| String::from_utf8_lossy(c).into_owned());
    groups.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bellows_exit::{Coded, Exit};

    use super::*;
    use crate::config::Freeze;
    use crate::data::SampleSpec;
    use crate::export::to_weights;
    use crate::preprocessing::Preprocessing;

    #[test]
    fn classes_that_are_not_there_are_named() {
        let names = ["cat", "dog"].map(String::from);
        assert_eq!(known_classes(Some(&[1, 2]), &names), Err("classes: 2 is not one of the 2 classes (0..1)".into()));
        assert!(known_classes(Some(&[1, 0]), &names).is_ok() && known_classes(None, &names).is_ok());
    }

    #[test]
    fn what_was_found_is_decoded_once_and_nothing_is_looked_for_again() {
        let dir = tempfile::tempdir().unwrap();
        let spec = SampleSpec { train: 4, val: 2, width: 96, height: 72, ..SampleSpec::default() };
        generate(&spec, dir.path(), &|_, _| {}).unwrap();
        let yaml = "train: images/train\nval: images/val\nnames: [person, bicycle, motorcycle, vehicle]\n";
        let described = DataConfig::parse(yaml, &dir.path().join("d.yaml")).unwrap();
        let config = TrainConfig { cache: Cache::Ram, imgsz: 64, ..TrainConfig::default() };
        let options = ScanOptions { cache_dir: None, ..ScanOptions::default() };
        let sets = [Split::Train, Split::Val].map(|split| {
            let scan = scan(&described, split, &options, &|_, _| {}).unwrap();
            let levels = config.levels().resolve(&scan, None).unwrap();
            Arc::new(YoloDataset::new(scan.bare(), 3, levels))
        });
        let mut data = TrainingData::new(sets[0].clone(), sets[1].clone(), &["person", "bicycle", "motorcycle", "vehicle"]).unwrap();
        data.train_sizes = sets[0].sizes();
        data.item_channels = sets.iter().flat_map(|set| set.item_channels()).collect();
        data.undecoded = Some(Undecoded { sets, before: [Vec::new(), Vec::new()] });
        let widths = |data: &TrainingData| [data.train.get(3).unwrap().frame.width, data.val.item(1).unwrap().frame.width];
        assert_eq!(widths(&data), [96, 96], "as in their files");
        assert!(data.is_to_be_decoded(&config) && !data.is_to_be_decoded(&TrainConfig { cache: Cache::Off, ..config.clone() }));
        let told: Mutex<Vec<String>> = Mutex::default();
        let progress = |what: &str, done: u64, total: u64| told.lock().unwrap().push(format!("{what} {done}/{total}"));
        data.decode(&config, &progress).unwrap();
        let mut lines = std::mem::take(&mut *told.lock().unwrap());
        lines.sort();
        let expected = ["1/2", "1/4", "2/2", "2/4", "3/4", "4/4"].map(|count| format!("caching images {count}"));
        assert_eq!(lines, expected);
        assert_eq!((widths(&data), data.train.len(), data.val.len()), ([64, 64], 4, 2));
        let items = (0..4).map(|i| data.train.get(i).unwrap()).chain((0..2).map(|i| data.val.item(i).unwrap()));
        let held: usize = items.map(|item| item.frame.pixels.len()).sum();
        assert_eq!(data.cache_bytes(64), held as f64, "of gray files one plane, though the network has three channels");
        assert!(!data.is_to_be_decoded(&config));
        data.decode(&config, &progress).unwrap();
        assert!(told.lock().unwrap().is_empty(), "once");
    }

    #[test]
    fn what_is_asked_for_and_not_done_is_told() {
        let told = |config: TrainConfig| not_done(&config).collect::<Vec<String>>();
        let rect = TrainConfig { rect: true, ..TrainConfig::default() };
        for config in [TrainConfig { mixup: 0.1, ..rect.clone() }, TrainConfig { cutmix: 0.1, ..rect.clone() }] {
            assert_eq!(told(TrainConfig { rect: false, ..config.clone() }), Vec::<String>::new());
            assert_eq!(told(config), ["warning: mixup and cutmix are not done with rect"]);
        }
        assert_eq!(told(rect), Vec::<String>::new());
        assert!(told(TrainConfig { copy_paste: 0.1, ..TrainConfig::default() })[0].starts_with("warning: copy_paste is not done"));
    }

    #[test]
    fn a_layer_is_left_to_train() {
        let header = |n| {
            let config = TrainConfig { freeze: Freeze::First(n), ..TrainConfig::default() };
            model(&config, 1, 3, None, &Device::flex()).map(|start| start.header.concat())
        };
        assert!(header(22).unwrap().ends_with("20, 21]"), "the head is trained");
        let error = header(23).unwrap_err();
        let told = "freeze: all 23 layers (0 to 22) are frozen, so nothing would be trained; leave at least one out";
        assert_eq!((error.to_string().as_str(), error.exit()), (told, Exit::Usage));
    }

    #[test]
    fn a_run_that_goes_on_has_the_licence_of_its_weights_or_else_of_those_it_began_with() {
        let (dir, device) = (tempfile::tempdir().unwrap(), Device::flex());
        let (file, run) = (dir.path().join("begun.safetensors"), dir.path().join("run"));
        ["weights", "checkpoints/step-000000005"].iter().for_each(|folder| std::fs::create_dir_all(run.join(folder)).unwrap());
        let config = TrainConfig { model: file.display().to_string(), ..TrainConfig::default() };
        let detector = model(&TrainConfig::default(), 1, 3, None, &device).unwrap().model;
        let put = |path: &Path, license: Option<&str>| {
            let bytes = to_weights(&detector, &["a".to_string()], 64, &Preprocessing::of(&config), None, license).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        put(&file, Some("AGPL-3.0"));
        for (stated, expected) in [(None, "AGPL-3.0"), (Some("CC0"), "CC0")] {
            put(&run.join("weights/last.safetensors"), stated);
            assert_eq!(model(&config, 1, 3, Some(&run), &device).unwrap().license.as_deref(), Some(expected));
        }
    }

    #[test]
    fn what_else_numbers_are_made_of_has_its_fingerprint() {
        let by = |of: &[Option<u32>]| Grouping { key: "month".into(), names: vec!["2020-05".into()], of: of.to_vec() };
        let all = [
            order([3, 1], &[], &[], &[]),
            order([2, 2], &[], &[], &[]),
            order([3, 1], &[vec![None, Some(0), Some(1)]], &[], &[]),
            order([3, 1], &[vec![None, Some(2), Some(0)]], &[], &[]),
            order([3, 1], &[], &[1.0, 1.0, 0.5], &[]),
            order([3, 1], &[], &[1.0, 0.5, 1.0], &[]),
            order([3, 1], &[], &[], &[by(&[Some(0)])]),
            order([3, 1], &[], &[], &[by(&[None])]),
            order([3, 1], &[], &[], &[Grouping { names: vec!["2020-06".into()], ..by(&[Some(0)]) }]),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b), "{i}");
        }
        assert_eq!(all[0], order([3, 1], &[vec![], vec![]], &[], &[]), "of settings that ask for none of it");
        assert_ne!(all[4], "e61f792ff27cf3942146629d92cf9245", "of a program that took an image again as the same sample");
    }
}
