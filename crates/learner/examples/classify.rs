//! A classifier of small pictures made in code: discs, squares and crosses in noise. Convolutions, batch normalisation, SGD by epochs.
//!
//! `cargo run --release -p bellows-learner --example classify [RUNS_DIR] [EPOCHS]`; the same again goes on where it was stopped.
#![allow(clippy::print_stdout, reason = "an example is a program")]

use std::path::Path;

use bellows_learner::{
    Draw, EpochReport, EpochSchedule, EvalContext, Evaluation, Group, Identity, Learner, LearnerConfig, Observer, OptimizerKind, Rng, Role,
    Schedule, StepOutput, Task, TaskError,
};
use bellows_runs::RunDir;
use burn::data::dataset::{Dataset, InMemDataset};
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::activation::{log_softmax, relu};
use burn::tensor::{Device, Int, Tensor, TensorData};

const SIDE: usize = 16;
const CLASSES: usize = 3;
/// Pictures to learn from, and to judge by.
const TRAIN: u64 = 600;
const JUDGED: u64 = 60;

/// Picture `i` and its class; `flip` mirrors it.
fn picture(i: u64, flip: bool) -> (Vec<f32>, i32) {
    let mut rng = Rng::new(0, "picture", 0, i);
    let (class, radius) = ((i % CLASSES as u64) as i32, rng.uniform(3.0, 6.0));
    let centre = [rng.uniform(6.0, 10.0), rng.uniform(6.0, 10.0)];
    let mut pixel = |at: usize| {
        let (x, y) = (at % SIDE, at / SIDE);
        let x = if flip { SIDE - 1 - x } else { x };
        let [dx, dy] = [x as f64 - centre[0], y as f64 - centre[1]].map(f64::abs);
        let inside = match class {
            0 => dx.hypot(dy) < radius,
            1 => dx.max(dy) < radius * 0.8,
            _ => dx.min(dy) < 1.5 && dx.max(dy) < radius,
        };
        (f64::from(u8::from(inside)) + 0.2 * rng.normal()) as f32
    };
    ((0..SIDE * SIDE).map(&mut pixel).collect(), class)
}

#[derive(Module, Debug)]
pub(crate) struct Net {
    conv1: Conv2d,
    norm: BatchNorm,
    conv2: Conv2d,
    head: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        device.seed(0);
        let conv = |from, to| Conv2dConfig::new([from, to], [3, 3]).with_stride([2, 2]).init(device);
        Self {
            conv1: conv(1, 8),
            norm: BatchNormConfig::new(8).init(device),
            conv2: conv(8, 16),
            head: LinearConfig::new(16 * 9, CLASSES).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = relu(self.norm.forward(self.conv1.forward(x)));
        self.head.forward(relu(self.conv2.forward(x)).flatten::<2>(1, 3))
    }
}

pub(crate) struct Pictures {
    pixels: Vec<f32>,
    classes: Vec<i32>,
    numbers: Vec<u64>,
}

pub(crate) struct Shapes;

impl Shapes {
    fn stack(numbers: Vec<u64>, flip: impl Fn(u64) -> bool) -> Pictures {
        let (pixels, classes): (Vec<_>, Vec<_>) = numbers.iter().map(|&i| picture(i, flip(i))).unzip();
        Pictures { pixels: pixels.concat(), classes, numbers }
    }

    fn log_p(model: &Net, batch: &Pictures, device: &Device) -> (Tensor<2>, Tensor<2, Int>) {
        let n = batch.classes.len();
        let x = Tensor::from_data(TensorData::new(batch.pixels.clone(), [n, 1, SIDE, SIDE]), device);
        (log_softmax(model.forward(x), 1), Tensor::from_data(TensorData::new(batch.classes.clone(), [n, 1]), device))
    }
}

impl Task for Shapes {
    type Model = Net;
    type Item = u64;
    type Batch = Pictures;
    type Output = ();

    fn item_names(&self) -> &[&'static str] {
        &["cross_entropy"]
    }
    fn metric_names(&self) -> Vec<String> {
        vec!["val/accuracy".into()]
    }
    fn groups(&self) -> Vec<Group> {
        [(false, 5e-4), (true, 0.0)].map(|(bias, weight_decay)| Group { lr_scale: 1.0, weight_decay, bias }).to_vec()
    }
    fn role_of(&self, name: &str) -> Role {
        Role::Trained(usize::from(name.ends_with("bias")))
    }
    fn batch(&self, data: &dyn Dataset<u64>, draw: Draw, indices: &[usize]) -> Result<Pictures, TaskError> {
        let numbers = indices.iter().map(|&i| data.get(i)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::stack(numbers, |i| Rng::new(draw.seed, "flip", draw.epoch as u64, i).chance(0.5)))
    }
    fn sample_names(&self, batch: &Pictures) -> Vec<String> {
        batch.numbers.iter().map(|i| format!("picture {i}")).collect()
    }
    fn unit(&self) -> &'static str {
        "pictures"
    }
    fn loss(&self, model: &Net, batch: &Pictures, _: Draw, device: &Device) -> StepOutput<()> {
        let (log_p, classes) = Self::log_p(model, batch, device);
        let (loss, count) = (log_p.gather(1, classes).sum().neg(), batch.classes.len());
        StepOutput { items: loss.clone().detach().div_scalar(count as f64), loss, count, output: () }
    }
    fn evaluate(&self, model: &Net, context: &mut EvalContext<'_>) -> Result<Evaluation, TaskError> {
        let (log_p, classes) = Self::log_p(model, &Self::stack((TRAIN..TRAIN + JUDGED).collect(), |_| false), context.device);
        let right = log_p.argmax(1).equal(classes).int().sum().try_into_scalar::<i64>()?;
        let accuracy = right as f64 / JUDGED as f64;
        Ok(Evaluation {
            fitness: accuracy,
            metrics: vec![("val/accuracy".into(), accuracy)],
            samples: JUDGED as usize,
            ..Evaluation::default()
        })
    }
}

struct Console;

impl Observer for Console {
    fn on_epoch_end(&mut self, report: &EpochReport) {
        let accuracy = report.evaluation.as_ref().and_then(|e| e.get("val/accuracy")).unwrap_or(f64::NAN);
        println!("epoch {}: cross entropy {:.3}, accuracy {accuracy:.3}", report.epoch + 1, report.means[0]);
    }
}

pub(crate) fn data() -> InMemDataset<u64> {
    InMemDataset::new((0..TRAIN).collect())
}

/// A run in `dir`, from its newest checkpoint if it has one.
pub(crate) fn learner(dir: RunDir, epochs: usize) -> Result<Learner<Shapes>, Box<dyn std::error::Error>> {
    let (lr0, lrf, cos_lr, momentum, warmup_epochs, warmup_momentum, warmup_bias_lr) = (0.01, 0.05, true, 0.9, 1.0, 0.5, 0.01);
    let schedule = EpochSchedule { lr0, lrf, cos_lr, momentum, warmup_epochs, warmup_momentum, warmup_bias_lr, nbs: 24, batch: 12 };
    let config = LearnerConfig {
        optimizer: OptimizerKind::Sgd,
        ema_decay: 0.99,
        ema_tau: 20.0,
        ..LearnerConfig::new(epochs, Schedule::Epochs(schedule))
    };
    let (device, identity) = (Device::flex(), Identity::default().with("number of epochs", epochs));
    let mut learner = Learner::new(Shapes, Net::new(&device), &device, config, dir, identity)?;
    learner.resume()?;
    Ok(learner)
}

#[allow(dead_code, reason = "a test takes the rest of this file")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let runs = words.next().unwrap_or_else(|| "runs/examples".into());
    let dir = RunDir::create(Path::new(&runs), "classify", true)?;
    let _lock = dir.lock()?;
    let mut learner = learner(dir, words.next().map_or(Ok(10), |n| n.parse())?)?;
    let outcome = learner.observe(Console).fit(&data())?;
    println!("{outcome:?}: {}", learner.dir().path().display());
    Ok(())
}
