//! What a model from outside may bring: layers of Burn's that draw for themselves, tensors of whole numbers and booleans, 16-bit weights.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bellows_learner::{
    BatchReport, Draw, EvalContext, Evaluation, Group, Identity, Learner, LearnerConfig, Observer, Outcome, Role, Schedule, StepOutput,
    Task, TaskError, Unreadable, UpdateSchedule,
};
use bellows_runs::RunDir;
use burn::data::dataset::{Dataset, InMemDataset};
use burn::module::{Module, Param, ParamId};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use burn::train::metric::{AccuracyInput, AccuracyMetric, Adaptor};

/// One test at a time: Burn's dropout draws from a generator that a process has one of.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A layer with Burn's own dropout, a counter and a mask, which no gradient reaches.
#[derive(Module, Debug)]
struct Net {
    layer: Linear,
    dropout: Dropout,
    seen: Param<Tensor<1, Int>>,
    mask: Param<Tensor<1, Bool>>,
}

struct Plain {
    items: &'static [&'static str],
    metrics: &'static [&'static str],
    groups: Vec<Group>,
    role: Role,
    /// The metric that `evaluate` returns.
    returned: &'static str,
}

impl Task for Plain {
    type Model = Net;
    type Item = usize;
    type Batch = Vec<f32>;
    type Output = ();

    fn item_names(&self) -> &[&'static str] {
        self.items
    }
    fn metric_names(&self) -> Vec<String> {
        self.metrics.iter().map(ToString::to_string).collect()
    }
    fn groups(&self) -> Vec<Group> {
        self.groups.clone()
    }
    fn role_of(&self, _: &str) -> Role {
        self.role
    }
    fn batch(&self, data: &dyn Dataset<usize>, draw: Draw, indices: &[usize]) -> Result<Vec<f32>, TaskError> {
        // A function of the step too.
        indices.iter().map(|&i| Ok(data.get(i)? as f32 / 10.0 + draw.step as f32 * 1e-3)).collect()
    }
    fn sample_names(&self, batch: &Vec<f32>) -> Vec<String> {
        batch.iter().map(f32::to_string).collect()
    }
    fn loss(&self, model: &Net, batch: &Vec<f32>, _: Draw, device: &Device) -> StepOutput<()> {
        let x = Tensor::<1>::from_data(TensorData::from(batch.as_slice()), device).reshape([batch.len(), 1]).repeat_dim(1, 8);
        let out = model.layer.forward(model.dropout.forward(x));
        let loss = (out - 1.0).powi_scalar(2).sum();
        StepOutput { items: loss.clone().detach(), loss, count: batch.len(), output: () }
    }
    fn evaluate(&self, model: &Net, _: &mut EvalContext<'_>) -> Result<Evaluation, TaskError> {
        let sum = f64::from(model.layer.weight.val().sum().into_scalar::<f32>());
        Ok(Evaluation { fitness: -sum, metrics: vec![(self.returned.into(), sum)], ..Evaluation::default() })
    }
    fn export(&self, _: &Net, _: usize) -> Result<Vec<u8>, TaskError> {
        Ok(Vec::new())
    }
}

/// What a metric of burn-train's is adapted to.
struct Guess {
    scores: Tensor<2>,
    labels: Tensor<1, Int>,
}

impl Adaptor<AccuracyInput> for Guess {
    fn adapt(&self) -> AccuracyInput {
        AccuracyInput::new(self.scores.clone(), self.labels.clone())
    }
}

/// Guesses all samples but the first one, in two batches, of which the first cannot be read in the second epoch.
struct Guessing;

impl Task for Guessing {
    type Model = Net;
    type Item = usize;
    type Batch = Vec<usize>;
    type Output = Guess;

    fn item_names(&self) -> &[&'static str] {
        &["loss"]
    }
    fn plan(&self, _: Draw) -> Option<Vec<Vec<usize>>> {
        Some(vec![vec![0, 1], vec![2, 3]])
    }
    fn batch(&self, _: &dyn Dataset<usize>, draw: Draw, indices: &[usize]) -> Result<Vec<usize>, TaskError> {
        if draw.epoch == 1 && draw.first == 0 { Err(Unreadable("it is gone".into()).into()) } else { Ok(indices.to_vec()) }
    }
    fn sample_names(&self, batch: &Vec<usize>) -> Vec<String> {
        batch.iter().map(usize::to_string).collect()
    }
    fn loss(&self, model: &Net, batch: &Vec<usize>, _: Draw, device: &Device) -> StepOutput<Guess> {
        let n = batch.len();
        let loss = (model.layer.forward(Tensor::<2>::ones([n, 8], device)) - 1.0).powi_scalar(2).sum();
        let scores: Vec<f32> = batch.iter().flat_map(|&i| if i == 0 { [1.0, 0.0] } else { [0.0, 1.0] }).collect();
        let scores = Tensor::<1>::from_data(TensorData::from(scores.as_slice()), device).reshape([n, 2]);
        let output = Guess { scores, labels: Tensor::ones([n], device) };
        StepOutput { items: loss.clone().detach(), loss, count: n, output }
    }
}

fn net(device: &Device, seen: i64) -> Net {
    let device = &device.clone().autodiff();
    let values: Vec<f32> = (0..8).map(|i| 0.1 * i as f32).collect();
    let mut layer = LinearConfig::new(8, 1).init(device);
    layer.weight = layer.weight.map(|_| Tensor::from_data(TensorData::new(values, [8, 1]), device).require_grad());
    layer.bias = layer.bias.map(|b| b.map(|b| b.zeros_like().require_grad()));
    let seen = Param::initialized(ParamId::new(), Tensor::<1, Int>::from_data(TensorData::from([seen, -7].as_slice()), device));
    let mask = Param::initialized(
        ParamId::new(),
        Tensor::<1, Bool>::from_data(TensorData::from([true, false, seen_is_odd(&seen)].as_slice()), device),
    );
    Net { layer, dropout: DropoutConfig::new(0.5).init(), seen, mask }
}

fn seen_is_odd(seen: &Param<Tensor<1, Int>>) -> bool {
    seen.val().into_data().try_into_vec_as::<i64>().unwrap()[0] % 2 == 1
}

fn config() -> LearnerConfig {
    let schedule = UpdateSchedule { lr: 0.02, warmup_steps: Some(2), batch: 3, accumulate: 2, ..UpdateSchedule::default() };
    LearnerConfig { beta2: Some(0.95), eps: 1e-6, ..LearnerConfig::new(3, Schedule::Updates(schedule)) }
}

fn start(dir: &Path, net: Net, task: Plain) -> Learner<Plain> {
    let run = RunDir::create(dir, "run", true).unwrap();
    Learner::new(task, net, &Device::flex(), config(), run, Identity::default()).unwrap()
}

fn plain() -> Plain {
    Plain { items: &["loss"], metrics: &["val/loss"], groups: vec![Group::default()], role: Role::Trained(0), returned: "val/loss" }
}

fn data() -> InMemDataset<usize> {
    InMemDataset::new((0..14).collect())
}

struct StopAfter(usize, Arc<AtomicBool>);

impl Observer for StopAfter {
    fn on_batch(&mut self, report: &BatchReport) {
        self.1.store(report.step as usize >= self.0, Ordering::SeqCst);
    }
}

fn weights(session: &Learner<Plain>) -> Vec<Vec<f32>> {
    session.layout().read(&session.layout().values(&session.ema_model())).unwrap().into_iter().map(|(_, _, values)| values).collect()
}

#[test]
fn burns_own_dropout_does_not_break_a_resumed_run() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let mut whole = start(dir.path(), net(&Device::flex(), 3), plain());
    whole.fit(&data()).unwrap();
    for after in [1, 4, 9] {
        let dir = tempfile::tempdir().unwrap();
        let flag = Arc::new(AtomicBool::new(false));
        let mut session = start(dir.path(), net(&Device::flex(), 3), plain());
        session.observe(StopAfter(after, flag.clone())).stop_when(flag);
        assert_eq!(session.fit(&data()).unwrap(), Outcome::Interrupted);
        // Whatever this process draws in between.
        Tensor::<1>::random([after], burn::tensor::Distribution::Default, &Device::flex());
        let mut session = start(dir.path(), net(&Device::flex(), 3), plain());
        session.resume().unwrap();
        session.fit(&data()).unwrap();
        assert_eq!(weights(&session), weights(&whole), "after {after}");
    }
}

#[test]
fn whole_numbers_and_booleans_come_back() {
    let _alone = alone();
    let device = Device::flex();
    let dir = tempfile::tempdir().unwrap();
    start(dir.path(), net(&device, 3), plain()).fit(&data()).unwrap();
    // A program that begins with other ones goes on with those of the checkpoint.
    let mut session = start(dir.path(), net(&device, 40), plain());
    session.resume().unwrap();
    let model = session.ema_model();
    assert_eq!(model.seen.val().into_data().try_into_vec_as::<i64>().unwrap(), [3, -7]);
    assert_eq!(model.mask.val().into_data().try_into_vec_as::<bool>().unwrap(), [true, false, true]);
}

#[test]
fn weights_of_16_bits_are_saved_as_such() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    for dtype in [burn::tensor::DType::F16, burn::tensor::DType::BF16] {
        let device = Device::flex();
        let half = || {
            let mut net = net(&device, 1);
            net.layer.weight = net.layer.weight.map(|w| Tensor::from_inner(w.inner().cast(dtype)).require_grad());
            net
        };
        let session = start(dir.path(), half(), plain());
        let members = session.state().encode(session.layout()).unwrap();
        let member = |name: &str| members.iter().find(|(n, _)| *n == name).map(|(_, bytes)| bytes.as_slice());
        let mut back = bellows_learner::RunState {
            model: net(&device, 1).train(),
            ema: session.state().ema.clone(),
            optimizer: session.state().optimizer.clone(),
            grads: session.state().grads.clone(),
            counters: session.state().counters.clone(),
        };
        let other = back.decode(session.layout(), &device, &member).unwrap_err();
        assert!(other.contains("layer.weight is") && other.contains("F32"), "{other}");
        back.model = half().train();
        back.decode(session.layout(), &device, &member).unwrap();
        assert_eq!(back.model.layer.weight.val().dtype(), dtype);
        assert_eq!(back.encode(session.layout()).unwrap(), members);
    }
}

/// All parts of a batch, and nothing of the epoch before, whichever batch is the first that can be trained on.
#[test]
fn a_metric_of_burn_train_is_of_its_epoch() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create(dir.path(), "run", true).unwrap();
    let config = LearnerConfig::new(2, Schedule::Updates(UpdateSchedule { batch: 2, ..UpdateSchedule::default() }));
    let device = Device::flex();
    let mut session = Learner::new(Guessing, net(&device, 1), &device, config, run, Identity::default()).unwrap();
    session.metric(AccuracyMetric::new()).cut_batches("a test");
    session.fit(&data()).unwrap();
    let events = std::fs::read_to_string(dir.path().join("run/events.jsonl")).unwrap();
    let events = events.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let told: Vec<f64> =
        events.filter(|event| event["event"] == "step").map(|event| event["metrics"]["Accuracy"].as_f64().unwrap()).collect();
    assert_eq!(told, [50.0, 75.0, 100.0]);
}

#[test]
fn a_task_that_contradicts_itself_is_told_so() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create(dir.path(), "run", true).unwrap();
    let device = Device::flex();
    let decay = |weight_decay| Group { weight_decay, ..Group::default() };
    for (task, words) in [
        (Plain { role: Role::Trained(1), ..plain() }, ["layer.weight into group 1", "has 1"]),
        (Plain { groups: vec![decay(0.1), decay(f64::NAN)], ..plain() }, ["group 1 of groups()", "no finite number"]),
        (Plain { groups: vec![decay(-0.1)], ..plain() }, ["group 0 of groups()", "from 0 up"]),
        (Plain { role: Role::Kept, ..plain() }, ["no tensor of the model is trained", "role_of"]),
        (Plain { items: &[], ..plain() }, ["item_names() is empty", "a loss"]),
        (Plain { items: &["loss", "box", "loss"], ..plain() }, ["\"loss\"", "given twice"]),
        (Plain { metrics: &["loss"], returned: "loss", ..plain() }, ["\"loss\"", "given twice"]),
        (Plain { metrics: &[""], returned: "", ..plain() }, ["\"\"", "is empty"]),
    ] {
        let refused = Learner::new(task, net(&device, 1), &device, config(), run.clone(), Identity::default()).err().unwrap().to_string();
        assert!(words.iter().all(|word| refused.contains(word)), "{words:?}: {refused}");
    }
    let error = start(dir.path(), net(&device, 1), Plain { returned: "val/other", ..plain() }).fit(&data()).unwrap_err().to_string();
    assert!(error.contains("val/other") && error.contains("val/loss"), "{error}");
}
