//! Training settings: one table that is at once the struct, its defaults, the command line's flags and the keys of a YAML file.
//!
//! Names and defaults are the ones detector users know. Layers are merged as plain maps, weakest first (defaults, the dataset's
//! `settings:`, `--config FILE`, flags); a key that does not exist is an error that names the closest one that does.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use bellows_kernels::{HALF_GRADIENTS, Lowering, Precision};
use bellows_learner::{EpochSchedule, LearnerConfig, Limits, LossScaling, OptimizerKind, Schedule, Wire};
use bellows_settings::{Layer, SettingsError, merge, settings, with_text};

mod absent;
mod auto;
mod sampler;
mod values;

pub use absent::{ABSENT, Absent, Taken};
pub use auto::OF_AUTO;
pub use sampler::Sampler;
pub use values::{BatchSize, Cache, Checkpointing, Freeze, OptimizerChoice, Toggle};

use auto::{left_to_auto, taken_back};

use crate::data::header::MAX_SIDE;
use crate::data::{AugmentConfig, Levels, SensorConfig, Stack, TileConfig};

/// Settings that a run may be resumed with another value of: they change nothing of what it computes, or (`device`, `conv`, `precision`) compute the
/// same in other digits, or (`data`, `model`) say where something lies: what it is is compared, of a model its form, for the weights are the checkpoint's.
pub const MAY_CHANGE: [&str; 23] = [
    "data",
    "model",
    "supervise",
    "fallback",
    "elastic",
    "heartbeat",
    "save_pt",
    "device",
    "workers",
    "plots",
    "tensorboard",
    "save_period",
    "checkpoint_minutes",
    "keep_checkpoints",
    "allow_bad",
    "allow_outside",
    "cache",
    "profile",
    "conv",
    "conv_workspace_mb",
    "precision",
    "memory_limit",
    "gradient_checkpointing",
];

/// What `precision` calls images in half precision.
pub const HALF: &str = "f16";

/// How the loss of such a run is scaled, on top of how large gradients of these images are held: not at all until one overflows, and ten overflows in a row undo
/// what they are held by.
const SCALING: LossScaling = LossScaling::Dynamic { first: 1.0, least: 1.0 / HALF_GRADIENTS as f64 };

/// The network's coarsest stride: sides of its input are multiples of it.
pub const STRIDE: usize = 32;

settings! {
    /// All settings of a training run; see [`SETTINGS`] for the same as a table.
    TrainConfig;
    "Model and data" {
        /// Dataset description: a data.yaml
        /// must be given
        data: String = String::new();
        /// yolov8n, s, m, l or x (from scratch; yolov8n-p2 has a finer level for small objects), or weights to start from: a .pt or .safetensors file
        model: String = "yolov8n".into();
        /// Use the weights of `model` when it is a file; false takes its size alone, a path starts from that file instead
        pretrained: Toggle = Toggle::On(true);
        /// Longer side of training images in pixels, rounded up to a multiple of 32
        imgsz: usize = 640;
        /// Images per batch; -1 fills 0.6 of the device's memory, a fraction that much of it
        /// planned (`plan` says how), and no more than memory_limit has room for; 16 where there is no limit and the memory is not known, or that of a CPU, which has other uses
        batch: BatchSize as f64 = BatchSize::Images(16);
        /// Rectangular training batches of images of similar aspect, without mosaic, mixup and cutmix
        /// their order, and that of images of one aspect, is shuffled
        rect: bool = false;
        /// Side in pixels of the tiles that training images are cut to, anywhere in them; 0 for whole images
        /// as `val --tile` and `predict --tile` look at images; each is enlarged to imgsz
        tile: usize = 0;
        /// With tile, the part of the images that stay whole
        tile_whole: f64 = 0.2;
        /// Fraction of the training set to use, spread evenly over its list
        /// whole clips, where a COCO file tells when frames were taken, and with frames or background; of a single clip they take its beginning
        fraction: f64 = 1.0;
        /// Which images an epoch has: clips=balanced, classes=balanced, empty=X (share without objects), epoch=X (its length, a part of all)
        /// every image once if not given; frames of a clip are taken spread over its time
        sampler: Option<Sampler> = None;
        /// Of images in shards, how many are read ahead and trained on in a random order, mosaic's partners among them; 0 or 1 for the order they were written in
        /// shards take turns at random; a set of at most so many images is shuffled as a whole, as images in a folder always are
        shuffle_buffer: usize = 4096;
        /// Treat all classes as one
        single_cls: bool = false;
        /// Train on these class indices only, as a list
        classes: Option<Vec<u32>> = None;
        /// Keep decoded images: false, ram, or disk (in the user's cache folder)
        /// `$XDG_CACHE_HOME/bellows/images`, never beside the data
        cache: Cache = Cache::Off;
        /// Frames of a clip that make one input, the last of them the one that is labelled
        /// each is a gray channel; clips are the folders of files, or what a COCO file calls `clip`
        frames: usize = 1;
        /// Frames from one of them to the next
        frame_stride: usize = 1;
        /// One more channel: the difference to the median of so many frames before (of an even number the upper of the two in the middle); 0 for none
        background: usize = 0;
        /// Counts of 16-bit images that become black and white, as low,high
        /// measured if not given
        range: Option<Vec<f64>> = None;
        /// Percentiles of the counts of 16-bit images that do, as low,high
        percentile: Vec<f64> = vec![0.5, 99.5];
        /// Whose percentiles: data (one range for all images, from a sample of the training set) or frame (of each image by itself)
        percentile_of: String = "data".into();
        /// Go on although more than 1 % of the images or labels are bad
        allow_bad: bool = false;
        /// Directories outside the dataset's own that it may read from, as a list
        allow_outside: Option<Vec<PathBuf>> = None;
    }
    "Run" {
        /// Epochs to train for
        epochs: usize = 100;
        /// Hours to train for, in place of epochs
        time: Option<f64> = None;
        /// Epochs without improvement before stopping; 0 never stops
        patience: usize = 100;
        /// Seed of every random draw
        seed: u64 = 0;
        /// auto, cpu, vulkan, cuda, rocm (each with :N for the N-th card), metal, webgpu, or a number: 0 is the strongest card
        device: String = "auto".into();
        /// How convolutions are computed: auto, direct (Burn's own), gemm (no convolution kernel of a GPU runs), winograd, implicit, bf16
        /// the last three are for the CPU: a GPU takes auto for them and says so
        conv: String = "auto".into();
        /// Megabytes that `conv: gemm` may use for the parts of a weight gradient on a GPU, which are an eighth as many numbers as it reads at most
        conv_workspace_mb: usize = 16;
        /// f32; bf16: factors of convolutions, where the processor multiplies it (an error of 0.2 %); f16: images between layers, on a GPU
        /// bf16 is conv: bf16, f16 takes conv: gemm; sums, weights, their gradients and validation stay f32
        precision: String = Precision::F32.name().into();
        /// Most memory in GB (10^9 bytes) that a run (each of its processes) may take; one that is planned to take more is refused before it begins
        memory_limit: Option<f64> = None;
        /// Make again in the backward pass what normalisations, SiLU and sums wrote, instead of keeping it: auto (unless a card has plenty of memory), true or false
        /// the numbers are the same; a step that keeps it is some 5 % shorter and holds about 40 % more: auto keeps it where all that is planned is 0.6 of a card's memory at most
        gradient_checkpointing: Checkpointing = Checkpointing::Auto;
        /// Threads that decode and augment; 0 uses the training thread
        workers: usize = 8;
        /// Processes that train together, each on batches of `batch` images: an update sees as many times as many
        /// on this machine, unless WORLD_SIZE and RANK are in the environment; docs/cluster.md tells more
        ranks: usize = 1;
        /// With ranks: batch normalisation by the statistics of all ranks' images, as of one large batch; the loss is divided as that one's is
        /// every such layer then waits for the other ranks twice a step
        sync_bn: bool = false;
        /// With ranks: what the numbers of gradients travel as: f32, bf16 or f16 (half the bytes, rounded on the way; sums are f32)
        /// f16 holds nothing above 65504: an update with more is skipped
        wire: Wire as String = Wire::F32;
        /// Directory that runs are kept in
        project: String = "runs/detect".into();
        /// Name of the run; a number is added if it is taken
        name: String = "train".into();
        /// Write into an existing run directory of that name
        exist_ok: bool = false;
        /// Save weights and a checkpoint after every epoch
        save: bool = true;
        /// Also keep the weights of every n-th epoch; -1 keeps none
        save_period: i64 = -1;
        /// Also write the best weights as best.pt, which Ultralytics loads
        /// at the end, beside best.safetensors
        save_pt: bool = false;
        /// Minutes between checkpoints inside an epoch
        /// fractions allowed
        checkpoint_minutes: f64 = 10.0;
        /// Checkpoints to keep besides the best
        /// at least 2, for the newest may be damaged
        keep_checkpoints: usize = 2;
        /// Validate after every epoch
        /// the last one is always validated
        val: bool = true;
        /// With val, validate after every n-th epoch only, and after the last
        /// the best weights are the best of the epochs that were validated, and there are none before the first of these; patience counts all epochs
        val_interval: usize = 1;
        /// Draw curves, matrices and sample batches
        plots: bool = true;
        /// Write event files for TensorBoard into the run directory
        /// in `tensorboard/`
        tensorboard: bool = false;
        /// Tell after every epoch where its time went
        /// waiting for data, forward, backward, exchange (with several ranks), update; and what the workers did meanwhile
        profile: bool = false;
        /// A process that computes nothing watches the one that trains: it is started again when it crashes, hangs, runs out of memory or loses the device
        supervise: bool = false;
        /// With supervise, when the device has failed twice without a new checkpoint: none, or cpu (goes on there, and says so)
        fallback: String = "none".into();
        /// With supervise and ranks of this machine: a rank that is lost is left out when the run is started again
        /// batches stay what they were, so the ranks that are left have more to do
        elastic: bool = false;
        /// Seconds without a sign of life after which a supervised run is taken for hung, by phase: start, first (step), step, evaluation, save, export
        /// usually 3600, 600, 300, 600, 300, 3600; a step may take ten times the median of the last ones if that is more
        heartbeat: BTreeMap<String, f64> = BTreeMap::new();
    }
    "Optimizer" {
        /// auto, SGD, Adam, AdamW, NAdam, RAdam, Adamax or RMSProp
        optimizer: OptimizerChoice as String = OptimizerChoice::Auto;
        /// Initial learning rate
        /// not used with `optimizer: auto`, which sets its own
        lr0: f64 = 0.01;
        /// Final learning rate as a fraction of lr0
        lrf: f64 = 0.01;
        /// Momentum of SGD and RMSProp, beta1 of the others
        /// not used with `optimizer: auto` where that takes AdamW, which then has 0.9
        momentum: f64 = 0.937;
        /// Weight decay at the nominal batch size
        weight_decay: f64 = 0.0005;
        /// Warm-up length in epochs, fractions allowed
        /// at least 100 batches unless 0
        warmup_epochs: f64 = 3.0;
        /// Momentum at the start of warm-up
        warmup_momentum: f64 = 0.8;
        /// Learning rate of biases at the start of warm-up
        /// not used with `optimizer: auto`, which makes it 0
        warmup_bias_lr: f64 = 0.1;
        /// Cosine learning rate
        /// instead of a linear one
        cos_lr: bool = false;
        /// Nominal batch size that gradients are accumulated to
        nbs: usize = 64;
        /// Freeze the first n layers, or the layers of a list, which of one layer is `[N]`
        freeze: Freeze = Freeze::First(0);
        /// Limit of the decay of the averaged weights (EMA)
        ema_decay: f64 = 0.9999;
        /// Updates over which that decay is reached
        ema_tau: f64 = 2000.0;
    }
    "Loss" {
        /// Box loss gain
        box_: f64 = 7.5;
        /// Class loss gain
        cls: f64 = 0.5;
        /// Distribution focal loss gain
        dfl: f64 = 1.5;
    }
    "Augmentation" {
        /// Hue shift, as a fraction
        /// nothing on gray images
        hsv_h: f64 = 0.015;
        /// Saturation gain
        /// nothing on gray images
        hsv_s: f64 = 0.7;
        /// Value (brightness) gain
        /// nothing with `channels: 1`, with frames or with background
        hsv_v: f64 = 0.4;
        /// Thermal cameras: gain about middle gray, 1 +/- this
        thermal_gain: f64 = 0.0;
        /// Thermal cameras: offset, +/- a part of all levels
        thermal_offset: f64 = 0.0;
        /// Thermal cameras: gamma between exp(-x) and exp(x)
        thermal_gamma: f64 = 0.0;
        /// Thermal cameras: probability of the other polarity, white-hot or black-hot
        thermal_invert: f64 = 0.0;
        /// Thermal cameras: low-frequency drift over the picture, up to this standard deviation, a part of all levels
        thermal_drift: f64 = 0.0;
        /// Thermal cameras: fixed-pattern noise of columns, rows and pixels, up to this standard deviation, a part of all levels
        thermal_pattern: f64 = 0.0;
        /// Thermal cameras: blur of the optics, up to this standard deviation in pixels
        thermal_blur: f64 = 0.0;
        /// Thermal cameras: dead pixels, up to this part of all
        thermal_dead: f64 = 0.0;
        /// Rotation in degrees
        degrees: f64 = 0.0;
        /// Translation, as a fraction of the image
        translate: f64 = 0.1;
        /// Scale gain
        scale: f64 = 0.5;
        /// Shear in degrees
        shear: f64 = 0.0;
        /// Perspective, 0 to 0.001
        perspective: f64 = 0.0;
        /// Probability of an up-down flip
        flipud: f64 = 0.0;
        /// Probability of a left-right flip
        fliplr: f64 = 0.5;
        /// Probability of swapping RGB to BGR
        bgr: f64 = 0.0;
        /// Probability of a mosaic of four images
        mosaic: f64 = 1.0;
        /// Probability of blending two images
        mixup: f64 = 0.0;
        /// Probability of pasting a rectangle of another image
        cutmix: f64 = 0.0;
        /// Not done: objects are not pasted, whatever this is
        copy_paste: f64 = 0.0;
        /// Last epochs without mosaic, mixup and cutmix; 0 keeps them to the end
        /// as does a run of fewer epochs than that; with `time`, whose epochs are estimated, they stay closed once they are after half of it
        close_mosaic: usize = 10;
        /// Vary the training size between 0.5 and 1.5 imgsz
        multi_scale: bool = false;
    }
    "Validation" {
        /// Confidence a detection must exceed
        conf: f64 = 0.001;
        /// IoU above which NMS suppresses
        iou: f64 = 0.7;
        /// Most detections per image
        max_det: usize = 300;
        /// Suppress across classes
        agnostic_nms: bool = false;
        /// Write the best weights' detections as COCO predictions.json
        save_json: bool = false;
        /// Also judge groups of images, as a list: month, hour, daynight, clip, or a key of a COCO file's meta
        /// after every epoch, as columns of results.csv
        group_by: Option<Vec<String>> = None;
    }
}

pub(crate) fn refuse(reason: String) -> SettingsError {
    SettingsError { origin: "settings".into(), reason }
}

impl TrainConfig {
    /// Defaults overlaid by `layers`, the last one winning.
    ///
    /// # Errors
    /// A key that is no setting (with the closest one), a value of the wrong kind, or an argument of Ultralytics that asks for what cannot
    /// be had, and where it was written; a rule that is broken.
    pub fn from_layers(layers: &[Layer]) -> Result<Self, SettingsError> {
        Self::with_notes(layers).map(|(config, _)| config)
    }

    /// The same, and a line for each thing that was asked for and is done in another way: an argument of Ultralytics that is no setting,
    /// `imgsz` that is no multiple of 32 and is rounded up, a rate beside `optimizer: auto`, which sets its own.
    ///
    /// # Errors
    /// As [`from_layers`](Self::from_layers).
    pub fn with_notes(layers: &[Layer]) -> Result<(Self, Vec<String>), SettingsError> {
        let notes = RefCell::new(Vec::new());
        let of_auto = |config: &Self| [config.lr0, config.momentum, config.warmup_bias_lr];
        let usual = of_auto(&Self::default());
        let read: Vec<Layer> = layers.iter().map(|layer| taken_back(&with_text(layer, &["device"]), usual)).collect();
        let mut config = merge(Self::default(), SETTINGS, &read, |name, value| {
            let Some(argument) = ABSENT.iter().find(|a| a.name == name) else { return Ok(false) };
            notes.borrow_mut().extend(argument.check(value)?);
            Ok(true)
        })?;
        let mut notes = notes.into_inner();
        let imgsz = config.imgsz.checked_next_multiple_of(STRIDE).unwrap_or(config.imgsz);
        if imgsz != config.imgsz {
            notes.push(format!("warning: imgsz {} is no multiple of {STRIDE}: {imgsz} is used", config.imgsz));
            config.imgsz = imgsz;
        }
        if config.optimizer == OptimizerChoice::Auto {
            notes.extend(left_to_auto(of_auto(&config), usual, layers));
        }
        config.validate().map_err(refuse)?;
        Ok((config, notes))
    }

    /// The rules that one setting alone cannot check.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn validate(&self) -> Result<(), String> {
        let fractions = [
            ("fraction", self.fraction),
            ("hsv_h", self.hsv_h),
            ("hsv_s", self.hsv_s),
            ("hsv_v", self.hsv_v),
            ("translate", self.translate),
            ("flipud", self.flipud),
            ("fliplr", self.fliplr),
            ("bgr", self.bgr),
            ("mosaic", self.mosaic),
            ("mixup", self.mixup),
            ("cutmix", self.cutmix),
            ("copy_paste", self.copy_paste),
            ("thermal_gain", self.thermal_gain),
            ("thermal_offset", self.thermal_offset),
            ("thermal_invert", self.thermal_invert),
            ("thermal_drift", self.thermal_drift),
            ("thermal_pattern", self.thermal_pattern),
            ("thermal_dead", self.thermal_dead),
            ("tile_whole", self.tile_whole),
            ("conf", self.conf),
            ("iou", self.iou),
        ];
        if let Some((name, x)) = fractions.iter().find(|(_, x)| !(0.0..=1.0).contains(x)) {
            return Err(format!("{name} {x} is not between 0 and 1"));
        }
        let not_negative = [
            ("lr0", self.lr0),
            ("lrf", self.lrf),
            ("momentum", self.momentum),
            ("weight_decay", self.weight_decay),
            ("warmup_epochs", self.warmup_epochs),
            ("warmup_momentum", self.warmup_momentum),
            ("warmup_bias_lr", self.warmup_bias_lr),
            ("box", self.box_),
            ("cls", self.cls),
            ("dfl", self.dfl),
            ("scale", self.scale),
            ("perspective", self.perspective),
            ("thermal_gamma", self.thermal_gamma),
            ("thermal_blur", self.thermal_blur),
            ("checkpoint_minutes", self.checkpoint_minutes),
            ("ema_tau", self.ema_tau),
            ("time", self.time.unwrap_or(0.0)),
        ];
        if let Some((name, x)) = not_negative.iter().find(|(_, x)| !(x.is_finite() && *x >= 0.0)) {
            return Err(format!("{name} {x} is negative or not a number"));
        }
        if let Some(limit) = self.memory_limit.filter(|limit| !(limit.is_finite() && *limit > 0.0)) {
            return Err(format!("memory_limit {limit} is not above 0"));
        }
        let rules = [
            (self.imgsz == 0 || !self.imgsz.is_multiple_of(STRIDE), format!("imgsz {} is not a positive multiple of {STRIDE}", self.imgsz)),
            (self.imgsz > MAX_SIDE as usize, format!("imgsz {} is more than {MAX_SIDE} pixels", self.imgsz)),
            (self.epochs == 0, "epochs must be at least 1".into()),
            (self.nbs == 0, "nbs must be at least 1".into()),
            (self.ranks == 0, "ranks must be at least 1".into()),
            (!(1..=16).contains(&self.frames), format!("frames {} is not between 1 and 16", self.frames)),
            (!(1..=64).contains(&self.frame_stride), format!("frame_stride {} is not between 1 and 64", self.frame_stride)),
            (self.background > 64, format!("background {} is more than 64 frames", self.background)),
            (self.tile > 0 && self.tile < STRIDE, format!("tile {} is less than {STRIDE} pixels", self.tile)),
            (self.tile > 0 && self.rect, "rect has shapes of whole images: tile cannot be given with it".into()),
            (self.tile > 0 && self.cache != Cache::Off, "cache keeps images at imgsz: tile cannot be given with it".into()),
            (
                self.background > 0 && self.cache != Cache::Off,
                "background is a difference of images as they are: cache, which keeps them at imgsz, cannot be given with it".into(),
            ),
            (self.val_interval == 0, "val_interval must be at least 1: val false is without".into()),
            (self.fraction == 0.0, "fraction 0 leaves nothing to train on".into()),
            (self.keep_checkpoints < 2, "keep_checkpoints must be at least 2: the newest may be damaged".into()),
            (!["none", "cpu"].contains(&self.fallback.as_str()), format!("fallback `{}` is neither none nor cpu", self.fallback)),
            (self.fallback == "cpu" && self.half(), "precision f16 is of GPUs: with it there is no fallback cpu".into()),
            (self.fallback == "cpu" && !self.supervise, "fallback cpu is done by a supervisor: it needs supervise".into()),
            (self.elastic && !self.supervise, "elastic is done by a supervisor: it needs supervise".into()),
        ];
        let rising = |pair: &[f64], most: f64| matches!(pair, [low, high] if *low >= 0.0 && low < high && *high <= most);
        if self.range.as_ref().is_some_and(|range| !rising(range, 65_535.0)) {
            return Err(format!("range {:?} is not two rising counts of 16 bits", self.range.as_deref().unwrap_or_default()));
        }
        if !rising(&self.percentile, 100.0) {
            return Err(format!("percentile {:?} is not two rising numbers from 0 to 100", self.percentile));
        }
        if !["data", "frame"].contains(&self.percentile_of.as_str()) {
            return Err(format!("percentile_of `{}` is neither data nor frame", self.percentile_of));
        }
        self.lowering()?;
        Limits::of(&self.heartbeat)?;
        rules.into_iter().find(|(broken, _)| *broken).map_or(Ok(()), |(_, rule)| Err(rule))
    }

    /// Whether images between the layers of the network that is trained are f16.
    pub fn half(&self) -> bool {
        self.precision == HALF
    }

    /// How convolutions are computed, by `conv` and `precision`.
    ///
    /// # Errors
    /// When one of them is not known, or they contradict each other.
    pub fn lowering(&self) -> Result<Lowering, String> {
        let conv = self.conv.parse::<Lowering>().map_err(|e| e.to_string())?;
        if self.half() {
            return match conv {
                Lowering::Auto | Lowering::Gemm => Ok(Lowering::Gemm),
                conv => Err(format!("precision f16 is computed by conv gemm, not by {conv}")),
            };
        }
        match (self.precision.parse::<Precision>().map_err(|e| e.to_string())?, conv) {
            (Precision::F32, conv) => Ok(conv),
            (Precision::Bf16, Lowering::Auto | Lowering::Bf16) => Ok(Lowering::Bf16),
            (precision @ (Precision::Bf16x2 | Precision::F16 | Precision::PureF16), _) => {
                Err(format!("precision {precision} is a language model's"))
            }
            (Precision::Bf16, conv) => Err(format!("precision bf16 is computed by conv bf16, not by {conv}")),
        }
    }

    /// Replaces `optimizer: auto` by what it stands for: SGD for more than 10,000 iterations, else AdamW with a rate from the classes.
    ///
    /// Effective momentum after warm-up stays [`momentum`](Self::momentum) for SGD; AdamW gets beta1 0.9.
    pub fn resolve_optimizer(&mut self, images: usize, nc: usize) {
        if self.optimizer != OptimizerChoice::Auto {
            return;
        }
        let iterations = images.div_ceil(self.schedule().batch.max(self.nbs)) * self.epochs;
        self.warmup_bias_lr = 0.0;
        if iterations > 10_000 {
            self.optimizer = OptimizerChoice::SGD;
            self.lr0 = 0.01;
        } else {
            self.optimizer = OptimizerChoice::AdamW;
            self.lr0 = (0.002 * 5.0 / (4 + nc) as f64 * 1e6).round() / 1e6;
            self.momentum = 0.9;
        }
    }

    /// Replaces a batch size that is a share of the device's memory (bytes, where known) by a number of images that fits both that share and
    /// `memory_limit`, and tells which. `largest` is the most images whose plan fits so many bytes.
    pub fn resolve_batch(&mut self, memory: Option<f64>, largest: impl FnOnce(f64) -> usize) -> Option<String> {
        let BatchSize::Memory(fraction) = self.batch else { return None };
        let share = memory.map(|bytes| (fraction * bytes, format!("{fraction} of {:.1} GB of memory", bytes / 1e9)));
        let limit = self.memory_limit.map(|gb| (gb * 1e9, format!("the {gb} GB of memory_limit")));
        let (images, why) = match share.into_iter().chain(limit).reduce(|a, b| if b.0 < a.0 { b } else { a }) {
            None => (self.batch.images(), ": the memory to fill is not known; --memory-limit says how much it is".to_owned()),
            Some((bytes, what)) => (largest(bytes).max(1), format!(" for {what} (planned)")),
        };
        self.batch = BatchSize::Images(images);
        Some(format!("batch: {images} images{why}"))
    }

    /// Pixels of the longest side that a batch has: with `multi_scale` half as much again as `imgsz`.
    pub fn largest_side(&self) -> usize {
        if self.multi_scale { (self.imgsz * 3 / 2).next_multiple_of(STRIDE) } else { self.imgsz }
    }

    /// Images that an update really sees, once warm-up is over.
    pub(crate) fn images_per_update(&self) -> usize {
        self.schedule().batch * self.schedule().accumulate()
    }

    /// Where ranks make fewer updates than one would, of more images: what a person should know of it before it begins.
    pub(crate) fn fewer_updates(&self) -> Option<String> {
        let of = |ranks, images| Self { ranks, batch: BatchSize::Images(images), ..self.clone() }.images_per_update();
        let (ranks, images) = (self.ranks, self.batch.images());
        let (all, one) = (of(ranks, images), of(1, images));
        let share = images / ranks;
        let way = (share > 0 && of(ranks, share) == one).then(|| format!("; --batch {share} makes one rank's"));
        (all > one).then(|| {
            format!(
                "updates: of {all} images ({ranks} ranks of {images}), and fewer, where one rank's are of {one}{}",
                way.unwrap_or_default()
            )
        })
    }

    /// Weight decay scaled to the batch that an update really sees.
    pub fn effective_weight_decay(&self) -> f64 {
        self.weight_decay * self.images_per_update() as f64 / self.nbs as f64
    }

    /// The first of `epochs` epochs without mosaic, mixup and cutmix: the last `close_mosaic` have none. A run of fewer keeps them to the end, as
    /// detector users know it: the epoch in which they are closed would be before the first.
    pub fn mosaic_closes(&self, epochs: usize) -> Option<usize> {
        epochs.checked_sub(self.close_mosaic).filter(|_| self.close_mosaic > 0)
    }

    /// The augmentation part of the settings; `open` is false once mosaic, mixup and cutmix are closed. Colours are of networks with three
    /// channels: one with a single channel sees the values its sensor gave.
    pub fn augmentation(&self, open: bool, channels: usize) -> AugmentConfig {
        let [hsv_h, hsv_s, hsv_v] = if channels == 1 { [0.0; 3] } else { [self.hsv_h, self.hsv_s, self.hsv_v] };
        AugmentConfig {
            hsv_h,
            hsv_s,
            hsv_v,
            degrees: self.degrees,
            translate: self.translate,
            scale: self.scale,
            shear: self.shear,
            perspective: self.perspective,
            flipud: self.flipud,
            fliplr: self.fliplr,
            bgr: self.bgr,
            mosaic: self.mosaic,
            mixup: self.mixup,
            cutmix: self.cutmix,
            sensor: SensorConfig {
                gain: self.thermal_gain,
                offset: self.thermal_offset,
                gamma: self.thermal_gamma,
                invert: self.thermal_invert,
                drift: self.thermal_drift,
                pattern: self.thermal_pattern,
                blur: self.thermal_blur,
                dead: self.thermal_dead,
            },
            tile: TileConfig { side: self.tile, whole: self.tile_whole },
            stack: self.stack(),
            mosaic_open: open && !self.rect,
        }
    }

    /// Which frames make an input.
    pub fn stack(&self) -> Stack {
        Stack { frames: self.frames, stride: self.frame_stride, background: self.background }
    }

    /// Which counts of 16-bit images become black and white.
    pub fn levels(&self) -> Levels {
        let pair = |list: &[f64]| <[f64; 2]>::try_from(list).ok();
        let percentile = pair(&self.percentile).unwrap_or(Levels::default().percentile);
        Levels { range: self.range.as_deref().and_then(pair), percentile, per_frame: self.percentile_of == "frame" }
    }

    fn schedule(&self) -> EpochSchedule {
        EpochSchedule {
            lr0: self.lr0,
            lrf: self.lrf,
            cos_lr: self.cos_lr,
            momentum: self.momentum,
            warmup_epochs: self.warmup_epochs,
            warmup_momentum: self.warmup_momentum,
            warmup_bias_lr: self.warmup_bias_lr,
            nbs: self.nbs,
            batch: self.batch.images() * self.ranks,
        }
    }

    /// The Learner's part of the settings. `optimizer: auto` must have been resolved.
    ///
    /// # Errors
    /// When it has not.
    pub fn learner(&self) -> Result<LearnerConfig, SettingsError> {
        let optimizer = match self.optimizer {
            OptimizerChoice::SGD => OptimizerKind::Sgd,
            OptimizerChoice::Adam => OptimizerKind::Adam,
            OptimizerChoice::AdamW => OptimizerKind::AdamW,
            OptimizerChoice::NAdam => OptimizerKind::NAdam,
            OptimizerChoice::RAdam => OptimizerKind::RAdam,
            OptimizerChoice::Adamax => OptimizerKind::Adamax,
            OptimizerChoice::RMSProp => OptimizerKind::RmsProp,
            OptimizerChoice::Auto => return Err(refuse("optimizer auto is not resolved yet".into())),
        };
        Ok(LearnerConfig {
            time: self.time,
            patience: self.patience,
            optimizer,
            max_grad_norm: 10.0,
            ema_decay: self.ema_decay,
            ema_tau: self.ema_tau,
            ranks: self.ranks,
            wire: self.wire,
            sync_bn: self.sync_bn,
            seed: self.seed,
            workers: self.workers,
            val: self.val,
            val_interval: self.val_interval,
            save: self.save,
            save_period: self.save_period,
            checkpoint_minutes: self.checkpoint_minutes,
            keep_checkpoints: self.keep_checkpoints,
            log_every: 10,
            profile: self.profile,
            loss_scaling: self.half().then_some(SCALING),
            ..LearnerConfig::new(self.epochs, Schedule::Epochs(self.schedule()))
        })
    }
}

/// What the settings say before anything is changed.
impl Default for AugmentConfig {
    fn default() -> Self {
        TrainConfig::default().augmentation(true, 3)
    }
}

#[cfg(test)]
mod tests;
