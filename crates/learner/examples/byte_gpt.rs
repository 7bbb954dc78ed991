//! A byte-level GPT, pre-trained on the text of this repository's docs: a model of Burn's own layers joins the Learner.
//!
//! `cargo run --release -p bellows-learner --example byte_gpt [RUNS_DIR] [STEPS]`; the same again goes on where it was stopped.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example is a program")]

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use bellows_exit::Coded;
use bellows_learner::{
    Draw, EpochReport, EvalContext, Evaluation, Identity, Learner, LearnerConfig, Schedule, StepOutput, Task, TaskError, UpdateSchedule,
};
use bellows_runs::RunDir;
use burn::data::dataset::{Dataset, InMemDataset};
use burn::module::Module;
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};

/// Bytes a window, width of the model, windows to judge by.
const S: usize = 64;
const WIDTH: usize = 64;
const HELD_OUT: usize = 16;

/// Where a window lies: in which file, and from which byte on.
type Place = (Arc<Path>, u64);

/// Where the windows of the docs lie: those to learn from, and those to judge by.
pub(crate) fn docs() -> io::Result<(InMemDataset<Place>, Vec<Place>)> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut paths = fs::read_dir(docs)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|e| e == "md"));
    paths.sort();
    let mut places = Vec::new();
    for path in paths.into_iter().map(Arc::<Path>::from) {
        let windows = fs::metadata(&path)?.len() / (S + 1) as u64;
        places.extend((0..windows).map(|i| (Arc::clone(&path), i * (S + 1) as u64)));
    }
    let held_out = places.split_off(places.len().saturating_sub(HELD_OUT));
    Ok((InMemDataset::new(places), held_out))
}

/// Its bytes, read now: no more than a batch of them is in memory.
fn read((path, from): &Place) -> io::Result<Vec<u8>> {
    let (mut file, mut window) = (File::open(path)?, vec![0; S + 1]);
    file.seek(SeekFrom::Start(*from))?;
    file.read_exact(&mut window)?;
    Ok(window)
}

#[derive(Module, Debug)]
pub(crate) struct Gpt {
    tokens: Embedding,
    places: Embedding,
    layers: TransformerEncoder,
    head: Linear,
}

impl Gpt {
    fn new(device: &Device) -> Self {
        device.seed(0);
        let embedding = |n| EmbeddingConfig::new(n, WIDTH).init(device);
        let layers = TransformerEncoderConfig::new(WIDTH, 4 * WIDTH, 4, 2).with_dropout(0.1).with_norm_first(true);
        Self { tokens: embedding(256), places: embedding(S), layers: layers.init(device), head: LinearConfig::new(WIDTH, 256).init(device) }
    }

    /// The sum of the losses of every byte but the first of each window, in nats.
    fn loss(&self, windows: &[Vec<u8>], device: &Device) -> Tensor<1> {
        let bytes = |from: usize| windows.iter().flat_map(|w| w[from..from + S].iter().map(|&b| i32::from(b))).collect::<Vec<_>>();
        let tensor = |from: usize| Tensor::<2, Int>::from_data(TensorData::new(bytes(from), [windows.len(), S]), device);
        let places = Tensor::arange(0..S as i64, device).reshape([1, S]);
        let x = self.tokens.forward(tensor(0)) + self.places.forward(places);
        let x = self.layers.forward(TransformerEncoderInput::new(x).mask_attn(generate_autoregressive_mask(windows.len(), S, device)));
        let log_p = log_softmax(self.head.forward(x), 2);
        log_p.gather(2, tensor(1).unsqueeze_dim(2)).sum().neg()
    }
}

/// Judged by these windows.
pub(crate) struct Bytes(Vec<Place>);

impl Task for Bytes {
    type Model = Gpt;
    type Item = Place;
    type Batch = Vec<Vec<u8>>;
    type Output = ();

    fn item_names(&self) -> &[&'static str] {
        &["nats"]
    }
    fn metric_names(&self) -> Vec<String> {
        vec!["val/bits_per_byte".into()]
    }
    fn per_count(&self) -> bool {
        true
    }
    fn batch(&self, data: &dyn Dataset<Place>, _: Draw, indices: &[usize]) -> Result<Vec<Vec<u8>>, TaskError> {
        indices.iter().map(|&i| Ok(read(&data.get(i)?)?)).collect()
    }
    fn sample_names(&self, batch: &Vec<Vec<u8>>) -> Vec<String> {
        batch.iter().map(|window| String::from_utf8_lossy(&window[..12]).into_owned()).collect()
    }
    fn loss(&self, model: &Gpt, batch: &Vec<Vec<u8>>, _: Draw, device: &Device) -> StepOutput<()> {
        StepOutput::sum(model.loss(batch, device), batch.len() * S)
    }
    fn evaluate(&self, model: &Gpt, context: &mut EvalContext<'_>) -> Result<Evaluation, TaskError> {
        let held_out = self.0.iter().map(read).collect::<io::Result<Vec<_>>>()?;
        let nats = model.loss(&held_out, context.device).try_into_scalar::<f32>()?;
        let bits = f64::from(nats) / (HELD_OUT * S) as f64 / std::f64::consts::LN_2;
        Ok(Evaluation { fitness: -bits, ..Evaluation::of("val/bits_per_byte", bits, HELD_OUT) })
    }
}

fn tell(report: &EpochReport) {
    println!("epoch {}: {:.3} nats a byte, {:.3} bits judged", report.epoch + 1, report.means[0], report.metric("val/bits_per_byte"));
}

/// A run of `steps` updates in `dir`, from its newest checkpoint if it has one.
pub(crate) fn learner(dir: RunDir, steps: u64) -> Result<Learner<Bytes>, Box<dyn Error>> {
    let (windows, held_out) = docs()?;
    let schedule =
        UpdateSchedule { lr: 2e-3, min_lr_ratio: 0.1, warmup_steps: Some(20), batch: 8, accumulate: 2, ..UpdateSchedule::default() };
    let plain = LearnerConfig::new(1000, Schedule::Updates(schedule));
    let config = LearnerConfig { max_steps: Some(steps), beta2: Some(0.95), max_grad_norm: 1.0, workers: 1, ..plain };
    let (device, identity) = (Device::flex(), Identity::default().with("number of steps", steps).with("text", windows.len()));
    let mut learner = Learner::new(Bytes(held_out), Gpt::new(&device), &device, config, dir, identity)?;
    learner.resume()?;
    Ok(learner)
}

#[allow(dead_code, reason = "a test takes the rest of this file")]
fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let runs = words.next().unwrap_or_else(|| "runs/examples".into());
    let dir = RunDir::create(Path::new(&runs), "byte_gpt", true)?;
    let _lock = dir.lock()?;
    let mut learner = learner(dir, words.next().map_or(Ok(300), |n| n.parse())?)?;
    let ended = learner.on_epoch_end(tell).fit(&docs()?.0).and_then(|_| learner.finish());
    println!("{}", learner.dir().path().display());
    let Err(error) = ended else { return Ok(ExitCode::SUCCESS) };
    eprintln!("error: {error}");
    Ok(error.exit().code().into())
}
