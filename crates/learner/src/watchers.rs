//! Who looks at a run and who may stop it. They see everything and decide nothing but that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::train::Interrupter;
use serde_json::Value;

use crate::metrics::ErasedMetric;
use crate::observe::{Gauge, Notice, Observer};
use crate::phase::Phase;
use crate::task::{RunFile, StepOutput};

/// Observers, metrics, gauges and the two ways to stop a run.
pub(crate) struct Watchers<O> {
    observers: Vec<Box<dyn Observer>>,
    metrics: Vec<Box<dyn ErasedMetric<O>>>,
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
        Self { observers, metrics, gauges, stop: Arc::default(), quit: Interrupter::new(), incomplete: Arc::default() }
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

    /// Feeds the metrics with a batch's parts.
    pub(crate) fn update(&mut self, outputs: &[StepOutput<O>], position: usize, batches: usize) {
        for metric in &mut self.metrics {
            outputs.iter().for_each(|output| metric.update(output, position, batches));
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
