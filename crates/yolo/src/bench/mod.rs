//! Times training steps, the class loss alone and inference passes of YOLOv8 on made-up images: the Learner's own step, with nothing to load.
//!
//! A step is what training does: upload, forward, loss, backward, finite checks, clipping to norm 10, SGD, EMA.

mod layers;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bellows_kernels::cube::Counted;
use bellows_kernels::{Foreground, Precision, detection_terms, images};
use bellows_learner::bench::{Bounds, Others, StepTimer, median, ranks, run_dir};
use bellows_learner::memory::{Place, peak_memory};
use bellows_learner::{
    Draw, EvalContext, Evaluation, Group, Identity, Layout, LearnError, Learner, Limits, Role, StepOutput, StepTimes, Stopwatch, Task,
    TaskError,
};
use burn::data::dataset::{Dataset, InMemDataset};
use burn::module::Module;
use burn::tensor::{Device, Distribution, ExecutionError, Tensor};
use serde::Serialize;

use crate::boxes::Label;
use crate::config::{HALF, OptimizerChoice, TrainConfig};
use crate::data::rng::Draw as Random;
use crate::data::stages::Stages;
use crate::data::{Batch, Target};
use crate::model::head::{Anchors, REG_MAX, strides};
use crate::model::{Fused, Scale, Yolo, YoloConfig};
use crate::task::{DetectionTask, LossFactor, Told};
use crate::train::TrainError;
use crate::validate::ValSet;

pub use layers::LayerTimes;

/// What is timed.
#[derive(Clone, Copy, Debug)]
pub struct Benchmark {
    /// Size of the model.
    pub scale: Scale,
    /// Images per batch.
    pub batch: usize,
    /// Side of the images, pixels.
    pub imgsz: usize,
    /// Classes of the model.
    pub classes: usize,
    /// Steps that count; two more come before them.
    pub steps: usize,
    /// Objects an image.
    pub boxes: usize,
    /// Train in f16.
    pub half: bool,
}

/// Medians over the steps.
#[derive(Clone, Debug, Serialize)]
pub struct BenchmarkReport {
    /// The program: `bellows`.
    pub peer: &'static str,
    /// Images per batch.
    pub batch: usize,
    /// Side of the images, pixels.
    pub imgsz: usize,
    /// Classes of the model.
    pub classes: usize,
    /// Forward pass and loss, seconds.
    pub forward_s: f64,
    /// Backward pass and finite check, seconds.
    pub backward_s: f64,
    /// Clipping, update and EMA, seconds.
    pub update_s: f64,
    /// The whole step, seconds.
    pub step_s: f64,
    /// Cross entropy of all class logits alone, value and gradient, seconds.
    pub class_loss_s: f64,
    /// Images a second while training.
    pub train_images_per_s: f64,
    /// Images a second in inference, decoded boxes included.
    pub infer_images_per_s: f64,
    /// Most memory this process has held while training, as [`peak_memory`] counts it; `None` where the system does not tell.
    pub peak_gb: Option<f64>,
    /// Threads of the CPU that were used.
    pub threads: usize,
    /// What of the exchange with other ranks comes after the backward pass, and waiting for them, seconds.
    pub exchange_s: f64,
    /// What the step is held against: the work of its convolutions alone.
    #[serde(flatten)]
    pub bounds: Bounds,
}

const WARM_UP: usize = 2;
/// Levels of the model that is timed.
const LEVELS: usize = 3;

impl Benchmark {
    /// Runs on `device`, as one of several ranks if there are `others`; `scratch` is a folder for the Learner's files.
    ///
    /// # Errors
    /// When the folder cannot be written, or the device fails; a rank that is gone.
    pub fn run(&self, device: &Device, scratch: &Path, others: Others) -> Result<BenchmarkReport, TrainError> {
        let (learner, timer) = self.train(device, scratch, self.steps + WARM_UP, others)?;
        let peak_gb = peak_memory();
        let (times, threads) = (timer.after(WARM_UP), rayon::current_num_threads());
        let part = |of: fn(&StepTimes) -> f64| median(times.iter().map(of).collect());
        let step_s = part(StepTimes::step);
        let device = device.clone().without_autodiff();
        let model = learner.ema_model();
        let flop = self.batch as f64 * model.summary(self.imgsz, self.imgsz).work();
        let bounds = Bounds {
            flop,
            gflops: flop / step_s / 1e9,
            idle_share: timer.idle_share(WARM_UP, threads).filter(|_| Place::of(&device) == Place::Processor),
        };
        let infer_s = self.infer(&model.valid().fuse(&device), &self.made_up(), &device);
        Ok(BenchmarkReport {
            peer: "bellows",
            batch: self.batch,
            imgsz: self.imgsz,
            classes: self.classes,
            forward_s: part(|t| t.forward),
            backward_s: part(|t| t.backward),
            update_s: part(|t| t.update),
            step_s,
            class_loss_s: self.class_loss(&device)?,
            train_images_per_s: self.batch as f64 / step_s,
            infer_images_per_s: self.batch as f64 / infer_s,
            peak_gb,
            threads,
            exchange_s: part(|t| t.exchange),
            bounds,
        })
    }

    /// What a training step launches on a GPU, by kernel, and what ours move and compute: what two steps do more than one, so that nothing counts that happens once.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn count(&self, device: &Device, scratch: &Path) -> Result<Counted, TrainError> {
        let count = |steps| {
            let (result, counted) = Counted::of(|| self.train(device, scratch, steps, None));
            result.map(|_| counted)
        };
        // What Burn chooses by trying is chosen in the first.
        count(1)?;
        Ok(count(2)?.more_than(&count(1)?))
    }

    /// So many steps on one batch.
    fn train(&self, device: &Device, scratch: &Path, steps: usize, others: Others) -> Result<(Learner<StepTask>, StepTimer), TrainError> {
        let ranks = ranks(&others);
        let config = TrainConfig {
            batch: self.batch.into(),
            imgsz: self.imgsz,
            nbs: self.batch * ranks,
            ranks,
            epochs: 1,
            warmup_epochs: 0.0,
            optimizer: OptimizerChoice::SGD,
            workers: 1,
            profile: true,
            save: false,
            val: false,
            precision: if self.half { HALF } else { Precision::F32.name() }.into(),
            ..TrainConfig::default()
        };
        let batch = self.made_up();
        let model = YoloConfig { scale: self.scale, ..YoloConfig::new(self.classes) }.init(0, &device.clone().autodiff());
        let names = (0..self.classes).map(|c| c.to_string()).collect();
        let nothing: Arc<dyn Dataset<crate::data::Item>> = Arc::new(InMemDataset::new(Vec::new()));
        let val = ValSet::with_sizes(nothing, Vec::new());
        let inner = DetectionTask {
            config: config.clone(),
            names,
            channels: 3,
            license: None,
            stages: Stages::default(),
            told: Told::default(),
            scale: LossFactor::default(),
            rect: None,
            weight_sums: Vec::new(),
            shards: Vec::new(),
            val,
            groupings: Vec::new(),
            pictures: false,
        };
        let task = StepTask { inner, batch };
        let dir = run_dir(scratch, &others)?;
        let mut learner = Learner::new(task, model, device, config.learner()?, dir, Identity::default())?;
        if let Some(others) = others {
            learner.join(others, "bellows", Limits::default())?;
        }
        let times = StepTimer::default();
        learner.observe(times.clone());
        learner.fit(&InMemDataset::new(vec![(); self.batch * ranks * steps]))?;
        Ok((learner, times))
    }

    /// Seconds of the value and the gradient of the class loss where no anchor learns an object: all logits are read and all slopes written, and what a few
    /// hundred anchors add is left out.
    fn class_loss(&self, device: &Device) -> Result<f64, LearnError> {
        let device = device.clone().autodiff();
        let cells = strides(LEVELS).iter().map(|stride| [self.imgsz / stride; 2]).collect::<Vec<_>>();
        let shape = [self.batch, 4 * REG_MAX + self.classes, Anchors::new(&cells).len()];
        let logits = Tensor::<3>::random(shape, Distribution::Uniform(-4.0, 4.0), &device).require_grad();
        let pass = || -> Result<f64, ExecutionError> {
            let nothing = Foreground { positives: Arc::default(), gains: [0.0, 1.0, 0.0], norm: 1.0 };
            let started = Instant::now();
            drop(detection_terms(logits.clone(), nothing).sum().backward());
            device.sync()?;
            Ok(started.elapsed().as_secs_f64())
        };
        // The first warms up.
        let times: Result<Vec<f64>, _> = (0..=self.steps).map(|_| pass()).collect();
        let times = times.map_err(|error| LearnError::Device(error.to_string()))?;
        Ok(median(times[1..].to_vec()))
    }

    /// Seconds of a pass over the batch, boxes decoded and read back.
    fn infer(&self, model: &Fused, batch: &Batch, device: &Device) -> f64 {
        let pass = || {
            let images = images(&batch.images, batch.shape, model.channels(), device);
            let started = Instant::now();
            drop(model.decode(&model.forward(images)).into_data());
            started.elapsed().as_secs_f64()
        };
        pass();
        median((0..self.steps).map(|_| pass()).collect())
    }

    /// Noise, with boxes of 2 to 22 % of the side scattered over it.
    fn made_up(&self) -> Batch {
        let mut draw = Random::new(0, "benchmark", 0, 0);
        let shape = [self.batch, 3, self.imgsz, self.imgsz];
        let images = (0..shape.iter().product()).map(|_| draw.below(256) as u8).collect();
        let targets = (0..self.batch * self.boxes).map(|i| {
            let mut side = |low: f64, span: f64| (low + span * draw.below(1000) as f64 / 1000.0) as f32;
            let xywh = [side(0.1, 0.8), side(0.1, 0.8), side(0.02, 0.2), side(0.02, 0.2)];
            Target { image: (i / self.boxes) as u32, label: Label { class: (i % self.classes) as u32, xywh } }
        });
        Batch {
            images,
            shape,
            targets: targets.collect(),
            names: vec![String::new(); self.batch],
            indices: vec![0; self.batch],
            letterboxes: Vec::new(),
        }
    }
}

/// Detection training on one batch, again and again.
struct StepTask {
    inner: DetectionTask,
    batch: Batch,
}

impl Task for StepTask {
    type Model = Yolo;
    type Item = ();
    type Batch = Batch;
    type Output = ();

    fn item_names(&self) -> &[&'static str] {
        self.inner.item_names()
    }

    fn metric_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn groups(&self) -> Vec<Group> {
        self.inner.groups()
    }

    fn role_of(&self, name: &str) -> Role {
        self.inner.role_of(name)
    }

    fn batch(&self, _: &dyn Dataset<()>, _: Draw, _: &[usize]) -> Result<Batch, TaskError> {
        Ok(self.batch.clone())
    }

    fn sample_names(&self, batch: &Batch) -> Vec<String> {
        batch.names.clone()
    }

    fn loss(&self, model: &Yolo, batch: &Batch, draw: Draw, device: &Device) -> StepOutput<()> {
        self.inner.loss(model, batch, draw, device)
    }

    fn scale_loss(&self, scale: f64) {
        self.inner.scale_loss(scale);
    }

    fn gradients(
        &self,
        model: &Yolo,
        batch: &Batch,
        draw: Draw,
        device: &Device,
        layout: &Layout,
        watch: &mut Stopwatch<'_>,
    ) -> (StepOutput<()>, Vec<Option<Tensor<1>>>) {
        self.inner.gradients(model, batch, draw, device, layout, watch)
    }

    fn evaluate(&self, _: &Yolo, _: &mut EvalContext<'_>) -> Result<Evaluation, TaskError> {
        Ok(Evaluation::default())
    }

    fn export(&self, _: &Yolo, _: usize) -> Result<Vec<u8>, TaskError> {
        Ok(Vec::new())
    }
}
