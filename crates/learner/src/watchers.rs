//! Who looks at a run and who may stop it. They see everything and decide nothing but that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::train::Interrupter;
use serde_json::Value;

use crate::counters::Place;
use crate::metrics::ErasedMetric;
use crate::observe::{Gauge, Notice, Observer};
use crate::phase::Phase;
use crate::task::{RunFile, StepOutput};

/// Observers, metrics, gauges and the two ways to stop a run.
pub(crate) struct Watchers<O> {
    observers: Vec<Box<dyn Observer>>,
    metrics: Vec<Box<dyn ErasedMetric<O>>>,
    /// The batch that they were fed with last.
    measured: Option<Place>,
    pub(crate) gauges: Box<dyn Fn() -> Vec<Gauge>>,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) quit: Interrupter,
    /// Set while a file of the run that could be written is not.
    pub(crate) incomplete: Arc<AtomicBool>,
}

impl<O> Watchers<O> {
    /// Nobody.
    pub(crate) fn none() -> Self {
        let (observers, metrics, gauges) = (Vec::new(), Vec::new(), Box::new(Vec::new));
        Self { observers, metrics, measured: None, gauges, stop: Arc::default(), quit: Interrupter::new(), incomplete: Arc::default() }
    }

    pub(crate) fn observe(&mut self, observer: Box<dyn Observer>) {
        self.observers.push(observer);
    }

    pub(crate) fn measure(&mut self, metric: Box<dyn ErasedMetric<O>>) {
        self.metrics.push(metric);
    }

    /// Calls every observer.
    pub(crate) fn all(&mut self, tell: impl FnMut(&mut Box<dyn Observer>)) {
        self.observers.iter_mut().for_each(tell);
    }

    /// What the run is busy with from here on.
    pub(crate) fn turn_to(&mut self, phase: Phase) {
        self.all(|o| o.on_phase(phase));
    }

    /// Something worth a line.
    pub(crate) fn notify(&mut self, kind: &'static str, message: String) {
        tracing::info!(kind, "{message}");
        let notice = Notice { kind, message };
        self.all(|o| o.on_notice(&notice));
    }

    /// Feeds the metrics with the parts of the batch at `place`, of so many in its epoch.
    pub(crate) fn update(&mut self, outputs: &[StepOutput<O>], place: Place, batches: usize) {
        // A new epoch, whichever of its batches is the first that was trained on, or one that a roll-back has gone back in.
        let anew = self.measured.replace(place).is_none_or(|last| last.epoch != place.epoch || last.position >= place.position);
        for metric in &mut self.metrics {
            if anew {
                metric.clear();
            }
            outputs.iter().for_each(|output| metric.update(&output.output, place.position, batches));
        }
    }

    /// The metrics' values so far in this epoch.
    pub(crate) fn values(&self) -> Value {
        self.metrics.iter().map(|m| m.value()).collect()
    }

    /// What the observers want written.
    pub(crate) fn files(&mut self) -> Vec<RunFile> {
        self.observers.iter_mut().flat_map(|o| o.files()).collect()
    }

    /// Tells the observers that the run has ended, and asks for the last files.
    pub(crate) fn last_files(&mut self) -> Vec<RunFile> {
        self.all(|o| o.on_end());
        self.files()
    }

    /// No more words for the observers: a dashboard gives the terminal back when it is dropped.
    pub(crate) fn let_go(&mut self) {
        self.observers.clear();
    }

    /// Whether somebody wants the run to stop.
    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.quit.should_stop()
    }
}
