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
    /// Epoch, batch and fields of the newest row, until it is printed: that of an epoch's last batch, or of the last before it that left one.
    unprinted: Option<((usize, usize), Vec<String>)>,
    clock: Instant,
    tokens: usize,
    examples: usize,
    grad_norm: Option<f64>,
}

impl Console {
    pub(crate) fn new() -> Self {
        let (foot, clock) = (Foot::default(), Instant::now());
        Self { info: None, foot, unprinted: None, clock, tokens: 0, examples: 0, grad_norm: None }
    }

    /// Removes the bar and leaves the row that is not printed yet, if there is one.
    fn close(&mut self) {
        let row = self.unprinted.take().map(|(_, fields)| fit(&fields, "  ", columns()));
        self.foot.close(&row.unwrap_or_default());
    }
}

impl Observer for Console {
    fn on_start(&mut self, info: &RunInfo) {
        self.info = Some(info.clone());
    }

    fn on_epoch(&mut self, epoch: usize, position: usize) {
        let Some(info) = &self.info else { return };
        // What a roll-back has taken out was never trained on.
        self.unprinted.take_if(|((of, at), _)| *of != epoch || *at >= position);
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
        let done = report.position + 1;
        let last = done == info.batches;
        self.foot.show("batch ", |room| fit(&fields, "  ", room), done, info.batches);
        self.unprinted = Some(((report.epoch, report.position), fields));
        if last {
            self.close();
        }
    }

    fn on_evaluating(&mut self, done: usize, total: usize) {
        self.foot.show("judging ", |_| "validation".into(), done, total);
    }

    fn on_epoch_end(&mut self, report: &EpochReport) {
        if report.over {
            self.close();
        } else {
            self.foot.close("");
        }
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
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bellows_learner::StepTimes;

    use super::*;

    fn report(position: usize) -> BatchReport {
        BatchReport {
            step: 1,
            epoch: 0,
            epochs: 3,
            position,
            items: vec![1.0],
            means: vec![1.0],
            count: 7,
            samples: 4,
            units: 4,
            seconds: 0.1,
            lr: vec![0.01],
            grad_norm: None,
            times: StepTimes::default(),
            gauges: Vec::new(),
        }
    }

    #[test]
    fn an_epoch_leaves_one_row_whichever_batch_is_the_last_that_is_reported() {
        static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let tell = |line: &str| TOLD.lock().unwrap().push(line.to_string());
        let rows = || TOLD.lock().unwrap().iter().filter(|line| line.starts_with("epoch 1/3")).count();
        let begun = |batches: usize| {
            TOLD.lock().unwrap().clear();
            let mut console = Console { foot: Foot::default().through(tell), ..Console::new() };
            let (item_names, metric_names) = (vec!["loss"], Vec::new());
            console.on_start(&RunInfo { epochs: 3, epoch: 0, position: 0, batches: 5, step: 0, unit: "tokens", item_names, metric_names });
            console.on_epoch(0, 0);
            (0..batches).for_each(|position| console.on_batch(&report(position)));
            console
        };
        let end = |over| EpochReport { step: 5, epoch: 0, means: vec![1.0], evaluation: None, best: false, over, elapsed_s: 1.0 };
        for batches in [2, 5] {
            let mut console = begun(batches);
            console.on_evaluating(0, 1);
            console.on_epoch_end(&end(true));
            assert_eq!(rows(), 1, "{batches} batches");
            console.on_end();
            assert_eq!(rows(), 1, "{batches} batches, at the end");
        }
        // An evaluation within the epoch is no end of it; what a roll-back takes out leaves nothing.
        for (position, left) in [(2, 1), (0, 0)] {
            let mut console = begun(2);
            console.on_evaluating(0, 1);
            console.on_epoch_end(&end(false));
            console.on_epoch(0, position);
            assert_eq!(rows(), 0, "within the epoch");
            console.on_epoch_end(&end(true));
            assert_eq!(rows(), left, "from {position}");
        }
        begun(2).on_end();
        assert_eq!(rows(), 1, "a run that is stopped");
    }

    #[test]
    fn before_the_first_update_there_is_no_gradient() {
        assert_eq!((grad(None).as_str(), grad(Some(0.12345)).as_str()), ("grad -", "grad 0.123"));
    }
}
