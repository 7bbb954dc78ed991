//! Who watches a run: the console, the dashboard, a test. Observers see everything and decide nothing.

use crate::phase::Phase;
use crate::profile::StepTimes;
use crate::task::{Evaluation, RunFile};

/// What is known when training starts or goes on.
#[derive(Clone, Debug)]
pub struct RunInfo {
    /// Epochs planned at the start; [`BatchReport::epochs`] says how many are later.
    pub epochs: usize,
    /// Epoch (from 0) and batch the run starts at.
    pub epoch: usize,
    /// Batch of that epoch.
    pub position: usize,
    /// Batches an epoch.
    pub batches: usize,
    /// Batches since the run began, those of earlier sessions included.
    pub step: u64,
    /// What [`BatchReport::units`] are.
    pub unit: &'static str,
    /// Names of the loss items.
    pub item_names: Vec<&'static str>,
    /// Names of the evaluation's metrics.
    pub metric_names: Vec<String>,
}

/// A reading of something beside the training (a card's temperature): name, value, and both as a person reads them.
pub type Gauge = (&'static str, f64, String);

/// One batch.
#[derive(Clone, Debug)]
pub struct BatchReport {
    /// Batches since the run began, this one included.
    pub step: u64,
    /// Epoch, from 0.
    pub epoch: usize,
    /// Epochs planned; a time limit changes it from epoch to epoch.
    pub epochs: usize,
    /// Batch of the epoch, from 0.
    pub position: usize,
    /// Loss items of this batch, and their means over the epoch so far.
    pub items: Vec<f64>,
    /// Means over the epoch so far.
    pub means: Vec<f64>,
    /// Objects or trained tokens in the batch.
    pub count: usize,
    /// Samples in the batch.
    pub samples: usize,
    /// What the speed is told in: samples, or all tokens that are not padding.
    pub units: usize,
    /// Seconds since the last batch was done; of batches of a window that were read together, its share of theirs.
    pub seconds: f64,
    /// Learning rate of each group.
    pub lr: Vec<f64>,
    /// Global gradient norm, if an update was made.
    pub grad_norm: Option<f64>,
    /// Seconds by stage.
    pub times: StepTimes,
    /// What the gauges show.
    pub gauges: Vec<Gauge>,
}

impl BatchReport {
    /// Units a second.
    pub fn rate(&self) -> f64 {
        self.units as f64 / self.seconds.max(1e-9)
    }
}

/// One epoch.
#[derive(Clone, Debug)]
pub struct EpochReport {
    /// Batches since the run began.
    pub step: u64,
    /// Epoch, from 0.
    pub epoch: usize,
    /// Mean loss items; none where they were reported before, and the epoch is judged late because the time has run out.
    pub means: Vec<f64>,
    /// The evaluation, if there was one.
    pub evaluation: Option<Evaluation>,
    /// Whether it is the best so far.
    pub best: bool,
    /// Whether nothing more of the epoch is trained: it is complete, or training was over before it was judged.
    pub over: bool,
    /// Seconds spent training, over all sessions.
    pub elapsed_s: f64,
}

impl EpochReport {
    /// A metric of the evaluation by its name; NaN where there was none.
    pub fn metric(&self, name: &str) -> f64 {
        self.evaluation.as_ref().and_then(|e| e.get(name)).unwrap_or(f64::NAN)
    }
}

/// Something out of the ordinary, as it is also written to `events.jsonl`.
#[derive(Clone, Debug)]
pub struct Notice {
    /// `skip`, `rollback`, `checkpoint`, `resume`, `warning`, `stop` ...
    pub kind: &'static str,
    /// A sentence.
    pub message: String,
}

/// Callbacks of a run, in the order they can happen. All default to nothing.
pub trait Observer {
    /// Training starts or goes on.
    fn on_start(&mut self, _info: &RunInfo) {}
    /// The run turns to something, which it is busy with until the next call of any of these.
    fn on_phase(&mut self, _phase: Phase) {}
    /// An epoch starts (or goes on at `position`).
    fn on_epoch(&mut self, _epoch: usize, _position: usize) {}
    /// A batch is done.
    fn on_batch(&mut self, _report: &BatchReport) {}
    /// `done` of `total` samples are evaluated.
    fn on_evaluating(&mut self, _done: usize, _total: usize) {}
    /// The checkpoint of this step (batches since the run began) is made; every rank is told.
    fn on_saved(&mut self, _step: u64) {}
    /// An epoch is done.
    fn on_epoch_end(&mut self, _report: &EpochReport) {}
    /// Something worth a line happened.
    fn on_notice(&mut self, _notice: &Notice) {}
    /// The run ended, with or without success; notices of files that could not be written may still come.
    fn on_end(&mut self) {}
    /// Files to be written (pictures); asked for after [`Observer::on_epoch_end`] and [`Observer::on_end`].
    fn files(&mut self) -> Vec<RunFile> {
        Vec::new()
    }
}

/// A function that watches the ends of epochs.
pub(crate) struct EpochEnds<F>(pub(crate) F);

impl<F: FnMut(&EpochReport)> Observer for EpochEnds<F> {
    fn on_epoch_end(&mut self, report: &EpochReport) {
        self.0(report);
    }
}
