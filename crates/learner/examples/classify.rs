//! A classifier of small pictures made in code: discs, squares and crosses in noise. Convolutions, batch normalisation, SGD by epochs.
//!
//! `cargo run --release -p bellows-learner --example classify [RUNS_DIR] [EPOCHS]`; the same again goes on where it was stopped.
#![allow(clippy::print_stdout, reason = "an example is a program")]

use std::path::Path;

use bellows_learner::{
    Draw, EpochReport, EpochSchedule, EvalContext, Evaluation, Group, Identity, Learner, LearnerConfig, OptimizerKind, Rng, Role, Schedule,
    StepOutput, Task, TaskError,
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

/// A picture, row by row, and what is on it.
pub(crate) struct Picture {
    number: u64,
    class: i32,
    pixels: Vec<f32>,
}

impl Picture {
    fn new(number: u64, noise: &mut Rng) -> Self {
        let mut rng = Rng::new(0, "picture", 0, number);
        let (class, radius) = ((number % CLASSES as u64) as i32, rng.uniform(3.0, 6.0));
        let centre = [rng.uniform(6.0, 10.0), rng.uniform(6.0, 10.0)];
        let mut pixel = |at: usize| {
            let [dx, dy] = [(at % SIDE) as f64 - centre[0], (at / SIDE) as f64 - centre[1]].map(f64::abs);
            let inside = match class {
                0 => dx.hypot(dy) < radius,
                1 => dx.max(dy) < radius * 0.8,
                _ => dx.min(dy) < 1.5 && dx.max(dy) < radius,
            };
            (f64::from(u8::from(inside)) + 0.2 * noise.normal()) as f32
        };
        Self { number, class, pixels: (0..SIDE * SIDE).map(&mut pixel).collect() }
    }
}

/// The numbers of the pictures to learn from.
pub(crate) fn data() -> InMemDataset<u64> {
    InMemDataset::new((0..TRAIN).collect())
}

#[derive(Module, Debug)]
pub(crate) struct Net {
    conv: Conv2d,
    norm: BatchNorm,
    head: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        device.seed(0);
        let conv = Conv2dConfig::new([1, 8], [5, 5]).with_stride([2, 2]).init(device);
        Self { conv, norm: BatchNormConfig::new(8).init(device), head: LinearConfig::new(8 * 6 * 6, CLASSES).init(device) }
    }

    /// The logarithms of the probabilities of each class, and the class that it is.
    fn forward(&self, batch: &[Picture], device: &Device) -> (Tensor<2>, Tensor<2, Int>) {
        let pixels: Vec<f32> = batch.iter().flat_map(|p| p.pixels.iter().copied()).collect();
        let classes: Vec<i32> = batch.iter().map(|p| p.class).collect();
        let x = Tensor::from_data(TensorData::new(pixels, [batch.len(), 1, SIDE, SIDE]), device);
        let x = relu(self.norm.forward(self.conv.forward(x)));
        let x = self.head.forward(x.flatten::<2>(1, 3));
        (log_softmax(x, 1), Tensor::from_data(TensorData::new(classes, [batch.len(), 1]), device))
    }
}

pub(crate) struct Shapes;

impl Task for Shapes {
    type Model = Net;
    type Item = u64;
    type Batch = Vec<Picture>;
    type Output = ();

    fn item_names(&self) -> &[&'static str] {
        &["cross_entropy"]
    }
    fn metric_names(&self) -> Vec<String> {
        vec!["val/accuracy".into()]
    }
    fn groups(&self) -> Vec<Group> {
        vec![Group { weight_decay: 5e-4, ..Group::default() }, Group { bias: true, ..Group::default() }]
    }
    fn role_of(&self, name: &str) -> Role {
        Role::Trained(usize::from(name.ends_with("bias")))
    }
    fn batch(&self, data: &dyn Dataset<u64>, draw: Draw, indices: &[usize]) -> Result<Vec<Picture>, TaskError> {
        let picture = |n| Picture::new(n, &mut Rng::new(draw.seed, "noise", draw.epoch as u64, n));
        Ok(indices.iter().map(|&i| data.get(i).map(picture)).collect::<Result<_, _>>()?)
    }
    fn sample_names(&self, batch: &Vec<Picture>) -> Vec<String> {
        batch.iter().map(|p| format!("picture {}", p.number)).collect()
    }
    fn loss(&self, model: &Net, batch: &Vec<Picture>, _: Draw, device: &Device) -> StepOutput<()> {
        let (log_p, classes) = model.forward(batch, device);
        StepOutput::sum(log_p.gather(1, classes).sum().neg(), batch.len())
    }
    fn evaluate(&self, model: &Net, context: &mut EvalContext<'_>) -> Result<Evaluation, TaskError> {
        let judged: Vec<_> = (TRAIN..TRAIN + JUDGED).map(|n| Picture::new(n, &mut Rng::new(0, "noise", 0, n))).collect();
        let (log_p, classes) = model.forward(&judged, context.device);
        let right = log_p.argmax(1).equal(classes).int().sum().try_into_scalar::<i64>()?;
        Ok(Evaluation::of("val/accuracy", right as f64 / JUDGED as f64, judged.len()))
    }
}

fn tell(report: &EpochReport) {
    println!("epoch {}: cross entropy {:.3}, accuracy {:.3}", report.epoch + 1, report.means[0], report.metric("val/accuracy"));
}

/// A run in `dir`, from its newest checkpoint if it has one.
pub(crate) fn learner(dir: RunDir, epochs: usize) -> Result<Learner<Shapes>, Box<dyn std::error::Error>> {
    let schedule = EpochSchedule { lrf: 0.05, cos_lr: true, warmup_epochs: 1.0, nbs: 24, batch: 12, ..EpochSchedule::default() };
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
    println!("{:?}", learner.on_epoch_end(tell).fit(&data())?);
    Ok(learner.finish()?)
}
