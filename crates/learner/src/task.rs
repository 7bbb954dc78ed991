//! The one trait a model joins the Learner by.
//!
//! A task says how samples become a batch, how a batch becomes a loss, how a model is judged and how it is exported. It holds no
//! training state: whatever must survive a crash is in [`RunState`](crate::RunState), and every random draw a task makes is a pure
//! function of [`Draw`] and the sample index, so that batches can be made on any thread, in any order, again after a resume.

use std::collections::BTreeMap;

use burn::data::dataset::Dataset;
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::error::TaskError;
use crate::layout::{Layout, Role};
use crate::profile::{Stage, Stopwatch};
use crate::shared::Shared;

/// What a batch may depend on besides its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// The run's seed.
    pub seed: u64,
    /// Epoch, from 0.
    pub epoch: usize,
    /// Epochs the run is planned for. With a time limit they are an estimate that every epoch makes anew, until [`Task::is_closing`] in the second half of
    /// the time.
    pub epochs: usize,
    /// Which batch of the run it is, from 0, however often it was repeated; 0 where a whole epoch is planned.
    pub step: u64,
    /// The first sample of that batch, of the whole of it and not of the part that a rank or little memory makes of it; 0 where a whole epoch is planned.
    pub first: usize,
}

/// A group of parameters that share a learning rate and a weight decay.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Factor on the schedule's learning rate.
    pub lr_scale: f64,
    /// Weight decay: L2 for SGD and Adam, decoupled for the others.
    pub weight_decay: f64,
    /// Whether warm-up brings this group's learning rate down from `warmup_bias_lr` instead of up from 0.
    pub bias: bool,
}

impl Default for Group {
    /// The schedule's rate, no weight decay, no biases.
    fn default() -> Self {
        Self { lr_scale: 1.0, weight_decay: 0.0, bias: false }
    }
}

/// The result of one forward pass over a batch.
pub struct StepOutput<O> {
    /// The scalar to minimise, `[1]`, on the autodiff graph. Summed, not averaged, over an accumulation window.
    pub loss: Tensor<1>,
    /// The parts a user watches, `[n]` in the order of [`Task::item_names`], detached.
    pub items: Tensor<1>,
    /// Objects, tokens or whatever this task counts, in this batch.
    pub count: usize,
    /// Whatever the metrics registered for this task want to see: held until the batch is told of, with those of the few that are read together.
    pub output: O,
}

impl StepOutput<()> {
    /// Of a loss that is a sum over `count` things: watched is its mean.
    pub fn sum(loss: Tensor<1>, count: usize) -> Self {
        Self { items: loss.clone().detach().div_scalar(count.max(1) as f64), loss, count, output: () }
    }
}

/// A file for the run directory, in it or in one of its folders: its path within it, and its contents. The journal writes it, warns if it cannot, and
/// tries again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFile {
    /// `results.png`, `weights/best.safetensors`.
    pub path: String,
    /// All of it.
    pub bytes: Vec<u8>,
}

/// How good a model is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Higher is better: decides the best checkpoint and early stopping.
    pub fitness: f64,
    /// Named values in the order they are logged: these are columns of `results.csv`.
    pub metrics: Vec<(String, f64)>,
    /// Samples and objects it was measured on.
    pub samples: usize,
    /// Objects (boxes, tokens) among them.
    pub objects: usize,
    /// Samples left out because they cannot be read, each with the reason. A task that finds too many returns an error instead.
    pub unreadable: Vec<String>,
}

impl Evaluation {
    /// By one metric, the higher the better.
    pub fn of(name: &str, fitness: f64, samples: usize) -> Self {
        Self { fitness, metrics: vec![(name.into(), fitness)], samples, ..Self::default() }
    }

    /// A metric by its name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|(n, _)| n == name).map(|(_, v)| *v)
    }
}

/// What an evaluation is told and may report.
pub struct EvalContext<'a> {
    /// Where the model lives.
    pub device: &'a Device,
    /// Worker threads for reading data.
    pub workers: usize,
    /// Epoch just trained, from 0.
    pub epoch: usize,
    /// Called with (done, total) samples.
    pub progress: &'a mut dyn FnMut(usize, usize),
    /// True once the run should stop: the evaluation may give up and return [`Interrupted`].
    pub interrupted: &'a dyn Fn() -> bool,
    /// Who else judges: a task that looks at its pieces' shares ([`Shared`]) is done sooner, one that does not judges everything on every rank.
    pub shared: &'a Shared<'a>,
}

/// The error an evaluation returns when it gave up because the run should stop.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// The error of a batch of which no sample can be read: it is skipped and counted, and the run goes on.
#[derive(Debug, thiserror::Error)]
#[error("no sample of it can be read: {0}")]
pub struct Unreadable(pub String);

/// A model, its data and its measure, as the Learner sees them.
pub trait Task: Send + Sync {
    /// The network.
    type Model: Module;
    /// What the dataset yields.
    type Item: Send;
    /// Samples put together on the host.
    type Batch: Send + 'static;
    /// Extra output of a training step, for metrics; `()` if none.
    type Output: Send;

    /// Names of [`StepOutput::items`], as they appear in logs and, behind `train/`, in `results.csv`.
    fn item_names(&self) -> &[&'static str];

    /// Names of the values of [`Evaluation::metrics`]; none if nothing is judged.
    fn metric_names(&self) -> Vec<String> {
        Vec::new()
    }

    /// The parameter groups, in the order of the `lr/pgN` columns: one, without weight decay, unless told otherwise.
    fn groups(&self) -> Vec<Group> {
        vec![Group::default()]
    }

    /// What becomes of a float tensor, by its name in the checkpoint: it is learned, in the first group, unless told otherwise. What asks for no
    /// gradient (a running statistic) is not learned whatever this says.
    fn role_of(&self, _name: &str) -> Role {
        Role::Trained(0)
    }

    /// Whether a loss is a sum over the things [`StepOutput::count`] counts. Then the gradient of an update is divided by the count of its
    /// whole accumulation window, so that the split into batches does not matter, and means of loss items are weighed by it.
    fn per_count(&self) -> bool {
        false
    }

    /// The batches of an epoch, as sample indices (numbers that [`batch`](Self::batch) knows the meaning of); `None` leaves it to the Learner, which shuffles
    /// and cuts. The number of batches must be the same in every epoch.
    fn plan(&self, _draw: Draw) -> Option<Vec<Vec<usize>>> {
        None
    }

    /// Whether an epoch of so many is of the last ones, which the task makes in another way (without an augmentation). Of a run that a time limit ends they are
    /// not to become others again where the estimate of its epochs rises or falls: later draws are told that of the first such epoch
    /// that ends after half of the time, before which there is too little to estimate from.
    fn is_closing(&self, _draw: Draw) -> bool {
        false
    }

    /// Makes one batch, or a part of one: a pure function of `draw` and `indices`, which are all of a batch's indices or some that follow each
    /// other in it. A batch is cut where the device's memory is too small for all of it.
    ///
    /// # Errors
    /// [`Unreadable`] if no sample can be read, and that may be so of these samples alone; anything else ends the run.
    fn batch(&self, data: &dyn Dataset<Self::Item>, draw: Draw, indices: &[usize]) -> Result<Self::Batch, TaskError>;

    /// The class of size of a batch, or of a part of one: those of a class need about as much memory a sample, those of a higher class more. A batch that the
    /// device has no memory for is cut, and with it those of its class and of higher ones from there on; 0 for all where sizes are alike.
    fn size_class(&self, _draw: Draw, _indices: &[usize]) -> usize {
        0
    }

    /// What a user calls the samples of a batch (file names), for the log.
    fn sample_names(&self, batch: &Self::Batch) -> Vec<String>;

    /// What the speed of training is told in, in the plural.
    fn unit(&self) -> &'static str {
        "samples"
    }

    /// How many of them a batch holds; of tokens also those that no loss is taken of.
    fn units(&self, batch: &Self::Batch) -> usize {
        self.sample_names(batch).len()
    }

    /// Looks at a batch (its first part, if it is cut) before it is told of, for files of it (sample pictures).
    fn inspect(&self, _batch: &Self::Batch, _draw: Draw, _position: usize) -> Vec<RunFile> {
        Vec::new()
    }

    /// What is odd about the model after so many updates, in a sentence: a warning.
    fn oddity(&self, _model: &Self::Model, _updates: u64) -> Option<String> {
        None
    }

    /// Told before every step of a run that scales its loss: gradients are to be computed of the loss times this, and divided by it again before
    /// they are handed back.
    fn scale_loss(&self, _scale: f64) {}

    /// Where in the model is the first number that is not finite, when this batch is trained on. Asked after some batches in a row that were skipped.
    fn first_not_finite(&self, _model: &Self::Model, _batch: &Self::Batch, _draw: Draw, _device: &Device) -> Option<String> {
        None
    }

    /// Lets go of memory that costs no number, if there is any that was not let go of yet, and says what is different from here on. Asked where memory ran out, before
    /// a batch is cut; of several ranks all have to answer alike.
    fn hold_less(&self) -> Option<String> {
        None
    }

    /// What needs less memory, for a user whose device has none for a single sample: the first half of a sentence.
    fn less_memory(&self) -> String {
        "a smaller model needs less".into()
    }

    /// Threads' seconds spent in [`Task::batch`] by stage since this was last asked, for a profile; empty if not measured.
    fn batch_times(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// Forward pass and loss of one batch, on the model's device. That something cannot be read in the middle of it is told by a panic with a
    /// [`LearnError`](crate::LearnError), which ends the step as that error does.
    fn loss(&self, model: &Self::Model, batch: &Self::Batch, draw: Draw, device: &Device) -> StepOutput<Self::Output>;

    /// The same with the gradients, in the order of `layout`'s entries; the loss that is returned is off the graph. A task whose graph would
    /// not fit into memory as a whole makes its gradients piece by piece here.
    fn gradients(
        &self,
        model: &Self::Model,
        batch: &Self::Batch,
        draw: Draw,
        device: &Device,
        layout: &Layout,
        watch: &mut Stopwatch<'_>,
    ) -> (StepOutput<Self::Output>, Vec<Option<Tensor<1>>>) {
        let output = self.loss(model, batch, draw, device);
        watch.lap(Stage::Forward);
        let mut grads = output.loss.backward();
        let grads = layout.take_gradients(model, &mut grads);
        (StepOutput { loss: output.loss.inner(), items: output.items.inner(), ..output }, grads)
    }

    /// Whether there is anything to judge by; without, no model is better than another.
    fn judges(&self) -> bool {
        !self.metric_names().is_empty()
    }

    /// Judges a model (the EMA weights, without autodiff).
    ///
    /// # Errors
    /// [`Interrupted`], or whatever keeps the validation data from being read.
    fn evaluate(&self, _model: &Self::Model, _context: &mut EvalContext<'_>) -> Result<Evaluation, TaskError> {
        Ok(Evaluation::default())
    }

    /// The weights as a safetensors file other tools read: every float tensor under its name, unless told otherwise.
    ///
    /// # Errors
    /// When a tensor cannot be read back from the device.
    fn export(&self, model: &Self::Model, _epoch: usize) -> Result<Vec<u8>, TaskError> {
        let layout = Layout::of(model, |_| Role::Kept);
        let tensors = layout.read(&layout.values(model))?.into_iter();
        let tensors = tensors.map(|(name, shape, values)| (name, bellows_weights::Tensor::from_f32(shape, &values)));
        Ok(bellows_weights::to_safetensors(&tensors.collect(), &BTreeMap::new())?)
    }
}
