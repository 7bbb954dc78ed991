//! A run on the console: a bar with loss, rate, gradient norm and speed while it runs, a line an evaluation.

use std::time::Instant;

use bellows_cli::{Bar, memory, say};
use bellows_learner::{BatchReport, EpochReport, Notice, Observer, RunInfo};

/// As many of `fields`, the most important of which come first, as fit into `columns`.
fn fit(fields: &[String], columns: usize) -> String {
    let mut line = String::new();
    for field in fields {
        let gap = if line.is_empty() { "" } else { "  " };
        if line.chars().count() + gap.len() + field.chars().count() <= columns {
            line = line + gap + field;
        }
    }
    line
}

/// The norm of the newest update's gradient; there is none before the first.
fn grad(norm: Option<f64>) -> String {
    norm.map_or_else(|| "grad -".into(), |norm| format!("grad {norm:.3}"))
}

/// Prints a training run.
pub(crate) struct Console {
    info: Option<RunInfo>,
    bar: Option<Bar>,
    clock: Instant,
    tokens: usize,
    examples: usize,
    grad_norm: Option<f64>,
}

impl Console {
    pub(crate) fn new() -> Self {
        Self { info: None, bar: None, clock: Instant::now(), tokens: 0, examples: 0, grad_norm: None }
    }

    fn close_bar(&mut self, line: &str) {
        match self.bar.take() {
            Some(bar) => bar.finish(line),
            None if !line.is_empty() => say(line),
            None => {}
        }
    }
}

impl Observer for Console {
    fn on_start(&mut self, info: &RunInfo) {
        self.info = Some(info.clone());
    }

    fn on_epoch(&mut self, _: usize, _: usize) {
        let Some(info) = &self.info else { return };
        self.bar = Some(Bar::new("batch ", info.batches));
        (self.clock, self.tokens, self.examples) = (Instant::now(), 0, 0);
    }

    fn on_batch(&mut self, report: &BatchReport) {
        let Some(info) = &self.info else { return };
        (self.tokens, self.examples) = (self.tokens + report.units, self.examples + report.samples);
        self.grad_norm = report.grad_norm.or(self.grad_norm);
        let seconds = self.clock.elapsed().as_secs_f64().max(1e-9);
        let value = |values: &[f64]| values.first().copied().unwrap_or(f64::NAN);
        let mut fields = vec![
            format!("epoch {}/{}", report.epoch + 1, info.epochs),
            format!("loss {:.4}", value(&report.items)),
            format!("lr {:.2e}", value(&report.lr)),
            format!("{:.0} tok/s", self.tokens as f64 / seconds),
            grad(self.grad_norm),
            format!("{:.1} examples/s", self.examples as f64 / seconds),
            memory(),
        ];
        fields.extend(report.gauges.iter().map(|(_, _, text)| text.clone()));
        fields.push(format!("mean {:.4}", value(&report.means)));
        if let Some(bar) = &mut self.bar {
            bar.set(fit(&fields, bar.room()), report.position + 1, info.batches);
        }
        if report.position + 1 == info.batches {
            self.close_bar(&fields.join("  "));
        }
    }

    fn on_evaluating(&mut self, done: usize, total: usize) {
        self.bar.get_or_insert_with(|| Bar::new("judging ", total)).set("validation".into(), done, total);
    }

    fn on_epoch_end(&mut self, report: &EpochReport) {
        self.close_bar("");
        let Some(e) = &report.evaluation else { return };
        let value = |name: &str| e.get(name).unwrap_or(f64::NAN);
        let best = if report.best { "  (best so far)" } else { "" };
        say(&format!("validation: loss {:.4}  perplexity {:.3}{best}", value("val/loss"), value("val/perplexity")));
    }

    fn on_notice(&mut self, notice: &Notice) {
        let line = format!("{}: {}", notice.kind, notice.message);
        match &self.bar {
            Some(bar) => bar.interject(&line),
            None => say(&line),
        }
    }

    fn on_end(&mut self) {
        self.close_bar("");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_holds_what_fits_the_most_important_first() {
        let fields = ["epoch 1/3", "loss 0.1234", "5.1/16.0G", "x"].map(String::from);
        assert_eq!(fit(&fields, 100), "epoch 1/3  loss 0.1234  5.1/16.0G  x");
        assert_eq!(fit(&fields, 25), "epoch 1/3  loss 0.1234  x");
        assert_eq!(fit(&fields, 8), "x");
    }

    #[test]
    fn before_the_first_update_there_is_no_gradient() {
        assert_eq!((grad(None).as_str(), grad(Some(0.12345)).as_str()), ("grad -", "grad 0.123"));
    }
}
