//! burn-train's renderers (its terminal dashboard, or one of your own) as an observer of a run.

use std::sync::Arc;

use burn::train::metric::{MetricDefinition, MetricEntry, MetricId, NumericAttributes, NumericEntry, SerializedEntry};
use burn::train::renderer::{MetricState, MetricsRenderer};

use crate::log::format_g;
use crate::observe::{BatchReport, EpochReport, Notice, Observer, RunInfo};

/// Feeds a [`MetricsRenderer`] with loss items, learning rate, gradient norm and speed of every batch and the metrics of every evaluation.
pub struct Dashboard {
    renderer: Box<dyn MetricsRenderer>,
    info: Option<RunInfo>,
    samples: usize,
    evaluating: bool,
}

impl Dashboard {
    /// Wraps a renderer.
    pub fn new(renderer: Box<dyn MetricsRenderer>) -> Self {
        Self { renderer, info: None, samples: 0, evaluating: false }
    }

    fn start_split(&mut self, split: &str, total: usize) {
        self.renderer.end_split();
        self.renderer.start_split(split, total);
    }
}

/// What is shown of a batch besides its loss items and speed.
const BESIDE: [&str; 2] = ["lr", "grad_norm"];

/// Evaluation metrics of which less is better have one of these in their names.
const LOWER: [&str; 2] = ["loss", "perplexity"];

fn speed(info: &RunInfo) -> String {
    format!("{}/s", info.unit)
}

fn numeric(name: &str, value: f64) -> MetricState {
    let entry = MetricEntry::new(MetricId::new(Arc::new(name.into())), SerializedEntry::new(format_g(value, 5), value.to_string()));
    MetricState::Numeric(entry, Some(NumericEntry::Value(value)))
}

fn definition(name: &str, higher_is_better: bool) -> MetricDefinition {
    let name = Arc::new(name.to_string());
    let attributes = NumericAttributes { unit: None, higher_is_better }.into();
    MetricDefinition { metric_id: MetricId::new(name.clone()), name, description: None, attributes }
}

impl Observer for Dashboard {
    fn on_start(&mut self, info: &RunInfo) {
        info.item_names.iter().chain(&BESIDE).for_each(|name| self.renderer.register_metric(definition(name, false)));
        self.renderer.register_metric(definition(&speed(info), true));
        info.metric_names.iter().for_each(|name| self.renderer.register_metric(definition(name, !LOWER.iter().any(|l| name.contains(l)))));
        self.renderer.start(info.epochs, info.epoch + 1, None, Some("training"));
        self.info = Some(info.clone());
    }

    fn on_epoch(&mut self, _epoch: usize, _position: usize) {
        let batches = self.info.as_ref().map_or(0, |info| info.batches);
        self.samples = 0;
        self.evaluating = false;
        self.renderer.start_split("train", batches);
    }

    fn on_batch(&mut self, report: &BatchReport) {
        let Some(info) = &self.info else { return };
        for (name, &item) in info.item_names.iter().zip(&report.items) {
            self.renderer.update_train(numeric(name, item));
        }
        for (name, value) in BESIDE.iter().zip([report.lr.first().copied(), report.grad_norm]) {
            value.into_iter().for_each(|value| self.renderer.update_train(numeric(name, value)));
        }
        self.renderer.update_train(numeric(&speed(info), report.rate()));
        self.renderer.update_split(report.position + 1);
    }

    fn on_evaluating(&mut self, done: usize, total: usize) {
        if !self.evaluating {
            self.evaluating = true;
            self.start_split("valid", total);
        }
        self.renderer.update_split(done);
    }

    fn on_epoch_end(&mut self, report: &EpochReport) {
        for (name, value) in report.evaluation.iter().flat_map(|e| &e.metrics) {
            self.renderer.update_valid(numeric(name, *value));
        }
        self.renderer.end_split();
        self.renderer.update_epoch(report.epoch + 1);
    }

    fn on_notice(&mut self, notice: &Notice) {
        // Nobody sees it once the renderer has ended; the program tells what is missing then.
        if self.info.is_none() {
            return;
        }
        self.renderer.log_event_training(format!("{}: {}", notice.kind, notice.message));
    }

    fn on_end(&mut self) {
        // A run that was over before has not begun here.
        if self.info.take().is_none() {
            return;
        }
        self.renderer.end();
        if let Err(error) = self.renderer.on_train_end(None) {
            tracing::warn!("dashboard: {error}");
        }
    }
}
