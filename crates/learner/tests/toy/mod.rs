//! A task small enough to train in milliseconds and awkward enough to catch a careless resume: batch-norm statistics, a noise draw per
//! sample and epoch, a batch that does not divide the set, batches that can be poisoned.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bellows_kernels::tell;
use bellows_learner::rng::Rng;
use bellows_learner::{
    BatchReport, Draw, EpochSchedule, EvalContext, Evaluation, Group, Identity, Layout, Learner, LearnerConfig, Observer, OptimizerKind,
    Role, Schedule, StepOutput, Stopwatch, Task, TaskError, Unreadable,
};
use bellows_runs::RunDir;
use burn::data::dataset::{Dataset, InMemDataset};
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};

pub const SAMPLES: usize = 45;
pub const BATCH: usize = 4;
pub const BATCHES: usize = SAMPLES.div_ceil(BATCH);
pub const EPOCHS: usize = 4;

#[derive(Module, Debug)]
pub struct Net {
    hidden: Linear,
    norm: BatchNorm,
    out: Linear,
}

impl Net {
    /// With one parameter in two places, as a clone of a layer leaves it.
    pub fn with_a_clone(mut self) -> Self {
        self.norm.beta = self.norm.gamma.clone();
        self
    }
}

/// When a batch must turn out NaN: (epoch, position).
pub type Poison = fn(usize, usize) -> bool;

/// What a device says that has no memory for this batch of this epoch: its samples.
pub type Shortage = fn(usize, &[usize]) -> Option<&'static str>;

pub struct Toy {
    pub poison: Poison,
    /// Batches of which no sample can be read.
    pub unreadable: Poison,
    /// Batches that make a running statistic infinite, and neither loss nor gradient.
    pub overflow: Poison,
    /// Batches one of whose loss items is no number, beside a finite loss.
    pub bad_item: Poison,
    /// Epochs whose evaluation cannot read its data.
    pub bad_evaluation: Poison,
    pub eval_flag: Option<Arc<AtomicBool>>,
    /// The first evaluation has so many pieces, each of which takes so long.
    pub slow_evaluation: Option<(usize, Duration)>,
    /// Weights cannot be exported.
    pub bad_export: bool,
    /// A loss that is a sum over samples, without batch statistics.
    pub per_count: bool,
    pub shortage: Shortage,
    /// The class of size of a batch of these samples.
    pub size: fn(&[usize]) -> usize,
    /// What a sample is called.
    pub name: fn(usize) -> String,
    /// What is told of each number of a gradient in the middle of the backward pass, if anything is.
    pub told: Option<fn(f32) -> f32>,
    /// There is memory that can be let go of, until it is.
    pub spare: AtomicBool,
    /// So many swaps the exchange of this rank has made: all of a gradient is told, and the pass waits for its sum.
    pub swaps: Option<Arc<AtomicUsize>>,
    /// The samples of every batch and part that was made.
    pub made: Mutex<Vec<Vec<usize>>>,
    /// A sample: if one more than it is in its batch, the memory runs out in the update that the batch completes.
    pub update_shortage: Option<usize>,
    /// Every epoch is of the last ones.
    pub closing: bool,
    /// The epochs that draws of an epoch's plan were told of.
    pub planned: Mutex<Vec<usize>>,
    /// So long it takes until a pass begins.
    pub pause: Duration,
    /// Calls of `per_count` until then: the second after the gradients is made in the update.
    pub calls_left: AtomicUsize,
}

impl Default for Toy {
    fn default() -> Self {
        Self {
            poison: no_poison,
            unreadable: no_poison,
            overflow: no_poison,
            bad_item: no_poison,
            bad_evaluation: no_poison,
            eval_flag: None,
            slow_evaluation: None,
            bad_export: false,
            per_count: false,
            shortage: |_, _| None,
            size: |_| 0,
            name: |i| format!("sample-{i}"),
            told: None,
            swaps: None,
            made: Mutex::default(),
            update_shortage: None,
            spare: AtomicBool::new(false),
            closing: false,
            planned: Mutex::default(),
            pause: Duration::ZERO,
            calls_left: AtomicUsize::new(0),
        }
    }
}

pub struct ToyBatch {
    x: Vec<f32>,
    y: Vec<f32>,
    indices: Vec<usize>,
    overflow: bool,
    bad_item: bool,
}

impl Task for Toy {
    type Model = Net;
    type Item = usize;
    type Batch = ToyBatch;
    type Output = ();

    fn item_names(&self) -> &[&'static str] {
        &["mse", "mae"]
    }

    fn metric_names(&self) -> Vec<String> {
        vec!["val/mse".into()]
    }

    fn groups(&self) -> Vec<Group> {
        [(true, 0.0), (false, 0.01)].map(|(bias, weight_decay)| Group { lr_scale: 1.0, weight_decay, bias }).to_vec()
    }

    fn role_of(&self, name: &str) -> Role {
        Role::Trained(usize::from(!name.ends_with("bias")))
    }

    fn plan(&self, draw: Draw) -> Option<Vec<Vec<usize>>> {
        self.planned.lock().unwrap().push(draw.epochs);
        None
    }

    fn hold_less(&self) -> Option<String> {
        self.spare.swap(false, Ordering::SeqCst).then(|| "the toy is made again".into())
    }

    fn is_closing(&self, _draw: Draw) -> bool {
        self.closing
    }

    fn batch(&self, data: &dyn Dataset<usize>, draw: Draw, indices: &[usize]) -> Result<ToyBatch, TaskError> {
        self.made.lock().unwrap().push(indices.to_vec());
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for &i in indices {
            let item = data.get(i)? as u64;
            let mut rng = Rng::new(1, "data", 0, item);
            let point: Vec<f64> = (0..3).map(|_| rng.uniform(-1.0, 1.0)).collect();
            let noise = Rng::new(draw.seed, "noise", draw.epoch as u64, item).uniform(-0.05, 0.05);
            y.push((point[0] * point[1] - point[2] + noise) as f32);
            x.extend(point.iter().map(|&p| p as f32));
        }
        let order = bellows_learner::epoch_order(data.len(), draw.seed, draw.epoch, true);
        let position = order.iter().position(|i| i == &indices[0]).unwrap() / BATCH;
        if (self.unreadable)(draw.epoch, position) {
            return Err(Unreadable("the disk is scratched".into()).into());
        }
        if (self.poison)(draw.epoch, position) {
            x[0] = f32::NAN;
        }
        let (overflow, bad_item) = ((self.overflow)(draw.epoch, position), (self.bad_item)(draw.epoch, position));
        Ok(ToyBatch { x, y, indices: indices.to_vec(), overflow, bad_item })
    }

    fn size_class(&self, _draw: Draw, indices: &[usize]) -> usize {
        (self.size)(indices)
    }

    fn sample_names(&self, batch: &ToyBatch) -> Vec<String> {
        batch.indices.iter().map(|&i| (self.name)(i)).collect()
    }

    fn loss(&self, model: &Net, batch: &ToyBatch, _draw: Draw, device: &Device) -> StepOutput<()> {
        let n = batch.y.len();
        let x = Tensor::<2>::from_data(TensorData::new(batch.x.clone(), [n, 3]), device);
        let y = Tensor::<2>::from_data(TensorData::new(batch.y.clone(), [n, 1]), device);
        let hidden = model.hidden.forward(x);
        if batch.overflow {
            model.norm.forward(hidden.clone().detach().mul_scalar(1e30));
        }
        let hidden = if self.per_count { hidden } else { model.norm.forward(hidden) }.tanh();
        let error = model.out.forward(hidden) - y;
        let mse = error.clone().powi_scalar(2).mean();
        let mae = error.abs().mean();
        let mae = if batch.bad_item { mae.mul_scalar(f32::NAN) } else { mae };
        let items = Tensor::cat(vec![mse.clone(), mae], 0).detach();
        StepOutput { loss: mse.mul_scalar(n as f64), items, count: n, output: () }
    }

    fn per_count(&self) -> bool {
        let left = self.calls_left.load(Ordering::SeqCst);
        self.calls_left.store(left.saturating_sub(1), Ordering::SeqCst);
        assert!(left != 1, "wgpu error: Out of Memory");
        self.per_count
    }

    /// A shortage shows when the forward pass has moved the running statistics.
    fn gradients(
        &self,
        model: &Net,
        batch: &ToyBatch,
        draw: Draw,
        device: &Device,
        layout: &Layout,
        _: &mut Stopwatch<'_>,
    ) -> (StepOutput<()>, Vec<Option<Tensor<1>>>) {
        std::thread::sleep(self.pause);
        let output = self.loss(model, batch, draw, device);
        let mut grads = output.loss.backward();
        if let Some(told) = self.told {
            for weight in [model.out.weight.val(), model.hidden.weight.val()] {
                let values = weight.grad(&grads).unwrap().into_data().try_into_vec_as::<f32>().unwrap();
                let values: Vec<f32> = values.into_iter().map(told).collect();
                tell(weight, &Tensor::<1>::from_data(TensorData::from(&values[..]), &Device::flex()));
            }
        }
        if let Some(swaps) = &self.swaps {
            let before = swaps.load(Ordering::SeqCst);
            for weight in [model.out.weight.val(), model.hidden.weight.val()] {
                let grad = weight.grad(&grads).unwrap();
                tell(weight, &grad);
            }
            let biases = [&model.out.bias, &model.hidden.bias].into_iter().flatten();
            for weight in [&model.norm.gamma, &model.norm.beta].into_iter().chain(biases) {
                let grad = weight.val().grad(&grads).unwrap();
                tell(weight.val(), &grad);
            }
            // A sum is two swaps.
            let until = Instant::now() + Duration::from_secs(20);
            while swaps.load(Ordering::SeqCst) < before + 2 {
                assert!(Instant::now() < until, "the sum waits for the end of the pass");
                std::thread::yield_now();
            }
        }
        let mut grads = layout.take_gradients(model, &mut grads);
        if self.update_shortage.is_some_and(|sample| batch.indices.len() > 1 && batch.indices.contains(&sample)) {
            self.calls_left.store(2, Ordering::SeqCst);
        }
        match (self.shortage)(draw.epoch, &batch.indices) {
            Some(REALLY) => {
                let large = Tensor::<1>::empty([TOO_MUCH / 4], &device.clone().without_autodiff());
                grads.iter_mut().flatten().take(1).for_each(|grad| grad.inplace(|grad| grad + large.clone().narrow(0, 0, 1)));
            }
            Some(words) => panic!("{words}"),
            None => {}
        }
        (StepOutput { loss: output.loss.inner(), items: output.items.inner(), ..output }, grads)
    }

    fn evaluate(&self, model: &Net, context: &mut EvalContext<'_>) -> Result<Evaluation, TaskError> {
        if let Some(flag) = &self.eval_flag {
            flag.store(true, Ordering::SeqCst);
        }
        if let Some((pieces, each)) = self.slow_evaluation.filter(|_| context.epoch == 0) {
            for piece in 0..pieces {
                std::thread::sleep(each);
                (context.progress)(piece + 1, pieces);
            }
        }
        if let Some(words) = (self.shortage)(context.epoch, &[EVALUATION]) {
            return Err(words.into());
        }
        if (self.bad_evaluation)(context.epoch, EVALUATION) {
            return Err("the validation data is gone".into());
        }
        if (context.interrupted)() {
            return Err(Box::new(bellows_learner::Interrupted));
        }
        let data = InMemDataset::new((1000..1040).collect());
        let batch = self.batch(&data, Draw { seed: 9, epoch: 0, epochs: 1, step: 0, first: 0 }, &(0..40).collect::<Vec<_>>())?;
        let clean = ToyBatch { x: batch.x.iter().map(|x| if x.is_nan() { 0.0 } else { *x }).collect(), ..batch };
        let output = self.loss(model, &clean, Draw { seed: 0, epoch: 0, epochs: 1, step: 0, first: 0 }, context.device);
        let mse = f64::from(output.items.try_into_vec_as::<f32>()?[0]);
        let mse = if (self.poison)(context.epoch, EVALUATION) { f64::NAN } else { mse };
        (context.progress)(40, 40);
        Ok(Evaluation { fitness: -mse, metrics: vec![("val/mse".into(), mse)], samples: 40, objects: 40, unreadable: Vec::new() })
    }

    fn export(&self, model: &Net, epoch: usize) -> Result<Vec<u8>, TaskError> {
        if self.bad_export {
            return Err("the device has no answer".into());
        }
        Ok(format!("{epoch} {:?}", model.out.weight.val().to_data()).into_bytes())
    }
}

/// Instead of words: one gradient waits for [`TOO_MUCH`].
pub const REALLY: &str = "really";

/// Bytes: whose elements can be counted in 32 bits, which is all that SwiftShader can.
pub const TOO_MUCH: usize = 12 << 30;

/// The position that tells a poisoned evaluation from a poisoned batch, and the only sample of one that does not fit.
pub const EVALUATION: usize = usize::MAX;

pub fn config() -> LearnerConfig {
    let schedule = Schedule::Epochs(EpochSchedule {
        lr0: 0.02,
        lrf: 0.1,
        cos_lr: true,
        momentum: 0.9,
        warmup_epochs: 0.5,
        warmup_momentum: 0.5,
        warmup_bias_lr: 0.05,
        nbs: 12,
        batch: BATCH,
    });
    LearnerConfig {
        optimizer: OptimizerKind::Sgd,
        max_grad_norm: 10.0,
        ema_decay: 0.99,
        ema_tau: 10.0,
        seed: 3,
        checkpoint_minutes: 1e9,
        ..LearnerConfig::new(EPOCHS, schedule)
    }
}

/// The same in batches of [`BATCH`] for each of so many ranks.
pub fn of_ranks(ranks: usize) -> LearnerConfig {
    let Schedule::Epochs(schedule) = config().schedule else { unreachable!() };
    LearnerConfig { schedule: Schedule::Epochs(EpochSchedule { batch: BATCH * ranks, ..schedule }), ranks, ..config() }
}

fn linear(from: usize, to: usize, stream: &str, device: &Device) -> Linear {
    let mut layer = LinearConfig::new(from, to).init(device);
    let mut rng = Rng::new(0, stream, 0, 0);
    let weights: Vec<f32> = (0..from * to).map(|_| rng.uniform(-0.7, 0.7) as f32).collect();
    layer.weight = layer.weight.map(|_| Tensor::from_data(TensorData::new(weights, [from, to]), device).require_grad());
    layer.bias = layer.bias.map(|b| b.map(|b| b.zeros_like().require_grad()));
    layer
}

pub fn net(device: &Device) -> Net {
    let device = &device.clone().autodiff();
    Net { hidden: linear(3, 8, "hidden", device), norm: BatchNormConfig::new(8).init(device), out: linear(8, 1, "out", device) }
}

/// The same with other weights.
pub fn moved(net: Net) -> Net {
    Net { out: Linear { weight: net.out.weight.clone().map(|w| w.add_scalar(0.5).detach().require_grad()), ..net.out }, ..net }
}

pub fn identity() -> Identity {
    Identity::default().with("model", "toy")
}

pub fn no_poison(_: usize, _: usize) -> bool {
    false
}

pub fn learner(dir: &Path, config: LearnerConfig, poison: Poison) -> Learner<Toy> {
    learner_of(Toy { poison, ..Toy::default() }, dir, config, &Device::flex())
}

pub fn learner_of(toy: Toy, dir: &Path, config: LearnerConfig, device: &Device) -> Learner<Toy> {
    let run = RunDir::create(dir, "run", true).unwrap();
    Learner::new(toy, net(device), device, config, run, identity()).unwrap()
}

pub fn data() -> InMemDataset<usize> {
    InMemDataset::new((0..SAMPLES).collect())
}

/// Sets a flag once `after` batches were seen by this process.
pub struct StopAfter {
    pub after: usize,
    pub seen: usize,
    pub flag: Arc<AtomicBool>,
}

impl Observer for StopAfter {
    fn on_batch(&mut self, _: &BatchReport) {
        self.seen += 1;
        if self.seen == self.after {
            self.flag.store(true, Ordering::SeqCst);
        }
    }
}

/// Files by name, rows, exported weights.
pub type Ending = (Vec<(String, Vec<u8>)>, String, Vec<u8>);

/// The newest checkpoint's files (what was set aside is none: its name goes on behind a dot), `results.csv` without its time
/// column, and the exported weights.
pub fn ending(dir: &Path) -> Ending {
    let run = RunDir::open(dir.join("run")).unwrap();
    let newest = std::fs::read_dir(run.checkpoints())
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_none() && p.join("manifest.json").exists())
        .max()
        .unwrap();
    let mut members: Vec<(String, Vec<u8>)> = std::fs::read_dir(&newest)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "safetensors"))
        .map(|p| (p.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&p).unwrap()))
        .collect();
    members.sort();
    let state: serde_json::Value = serde_json::from_slice(&std::fs::read(newest.join("state.json")).unwrap()).unwrap();
    let mut state = state.as_object().unwrap().clone();
    state.remove("elapsed_s").unwrap();
    members.push(("state".into(), serde_json::to_vec(&state).unwrap()));
    let csv = std::fs::read_to_string(run.results()).unwrap();
    let without_time = csv.lines().map(|l| l.split(',').enumerate().filter(|(i, _)| *i != 1).map(|(_, c)| c).collect::<Vec<_>>().join(","));
    (members, without_time.collect::<Vec<_>>().join("\n"), std::fs::read(run.weights().join("last.safetensors")).unwrap())
}
