//! A run on the console: a bar with loss, rate, gradient norm and speed while it runs, a line an evaluation.

use std::time::Instant;

use bellows_cli::{Foot, columns, fit, memory, rate};
use bellows_learner::{BatchReport, EpochReport, Notice, Observer, RunInfo};

/// The norm of the newest update's gradient; there is none before the first.
fn grad(norm: Option<f64>) -> String {
    norm.map_or_else(|| "grad -".into(), |norm| format!("grad {norm:.3}"))
}

/// Prints a training run.
pub(crate) struct Console {
    info: Option<RunInfo>,
    foot: Foot,
    clock: Instant,
    tokens: usize,
    examples: usize,
    grad_norm: Option<f64>,
}

impl Console {
    pub(crate) fn new() -> Self {
        Self { info: None, foot: Foot::default(), clock: Instant::now(), tokens: 0, examples: 0, grad_norm: None }
    }
}

impl Observer for Console {
    fn on_start(&mut self, info: &RunInfo) {
        self.info = Some(info.clone());
    }

    fn on_epoch(&mut self, _: usize, _: usize) {
        let Some(info) = &self.info else { return };
        self.foot.begin("batch ", info.batches);
        (self.clock, self.tokens, self.examples) = (Instant::now(), 0, 0);
    }

    fn on_batch(&mut self, report: &BatchReport) {
        let Some(info) = &self.info else { return };
        (self.tokens, self.examples) = (self.tokens + report.units, self.examples + report.samples);
        self.grad_norm = report.grad_norm.or(self.grad_norm);
        let seconds = self.clock.elapsed().as_secs_f64().max(1e-9);
        let value = |values: &[f64]| values.first().copied().unwrap_or(f64::NAN);
        let mut fields = vec![
            format!("epoch {}/{}", report.epoch + 1, report.epochs),
            format!("loss {:.4}", value(&report.items)),
            format!("lr {:.2e}", value(&report.lr)),
            format!("{} tok/s", rate(self.tokens as f64 / seconds)),
            grad(self.grad_norm),
            format!("{} examples/s", rate(self.examples as f64 / seconds)),
            memory(),
        ];
        fields.extend(report.gauges.iter().map(|(_, _, text)| text.clone()));
        fields.push(format!("mean {:.4}", value(&report.means)));
        self.foot.show("batch ", |room| fit(&fields, "  ", room), report.position + 1, info.batches);
        if report.position + 1 == info.batches {
            self.foot.close(&fit(&fields, "  ", columns()));
        }
    }

    fn on_evaluating(&mut self, done: usize, total: usize) {
        self.foot.show("judging ", |_| "validation".into(), done, total);
    }

    fn on_epoch_end(&mut self, report: &EpochReport) {
        self.foot.close("");
        let Some(e) = &report.evaluation else { return };
        let value = |name: &str| e.get(name).unwrap_or(f64::NAN);
        let best = if report.best { "  (best so far)" } else { "" };
        let beside = match e.get("val/accuracy") {
            Some(accuracy) => format!("{:.0} % of pairs in order  margin {:.3}", 100.0 * accuracy, value("val/margin")),
            None => format!("perplexity {:.3}", value("val/perplexity")),
        };
        self.foot.say(&format!("validation: loss {:.4}  {beside}{best}", value("val/loss")));
    }

    fn on_notice(&mut self, notice: &Notice) {
        self.foot.say(&format!("{}: {}", notice.kind, notice.message));
    }

    fn on_end(&mut self) {
        self.foot.close("");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_the_first_update_there_is_no_gradient() {
        assert_eq!((grad(None).as_str(), grad(Some(0.12345)).as_str()), ("grad -", "grad 0.123"));
    }
}
