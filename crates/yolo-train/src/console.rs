//! The console as detector users know it: a table row an epoch with a bar while it runs, a validation row below it.

use std::time::{Duration, Instant};

use bellows_cli::{Foot, columns, fit, memory, rate};
use bellows_learner::{BatchReport, EpochReport, Notice, Observer, RunInfo};
use bellows_yolo::metrics::{table_header, table_row};

/// Prints a training run.
pub(crate) struct Console {
    imgsz: usize,
    info: Option<RunInfo>,
    foot: Foot,
    /// Epoch, batch and cells of the newest row, until it is printed: that of an epoch's last batch, or of the last before it that left one.
    unprinted: Option<((usize, usize), Vec<String>)>,
    samples: usize,
    busy: Duration,
    clock: Instant,
}

impl Console {
    pub(crate) fn new(imgsz: usize) -> Self {
        let (busy, clock) = (Duration::ZERO, Instant::now());
        Self { imgsz, info: None, foot: Foot::default(), unprinted: None, samples: 0, busy, clock }
    }

    /// The cells of the row that this batch leaves.
    fn row(&self, report: &BatchReport) -> Vec<String> {
        let per_second = self.samples as f64 / self.busy.as_secs_f64().max(1e-9);
        let before = [format!("{}/{}", report.epoch + 1, report.epochs), memory()];
        let mut row = row(before, &report.means, [report.count.to_string(), self.imgsz.to_string(), rate(per_second)]);
        row.extend(report.gauges.iter().map(|(_, _, text)| format!("  {text}")));
        row
    }

    /// Removes the bar and leaves the row that is not printed yet, if there is one.
    fn close(&mut self) {
        let row = self.unprinted.take().map(|(_, row)| fit(&row, "", columns()));
        self.foot.close(&row.unwrap_or_default());
    }
}

/// Cells below those of [`header`].
fn row(before: [String; 2], means: &[f64], after: [String; 3]) -> Vec<String> {
    cells(before.into_iter().chain(means.iter().map(|mean| format!("{mean:.4}"))).chain(after))
}

/// What stands above the rows.
fn header(items: &[impl AsRef<str>]) -> Vec<String> {
    let items = items.iter().map(AsRef::as_ref);
    cells(["Epoch", "Memory"].into_iter().chain(items).chain(["Instances", "Size", "img/s"]))
}

fn cells(texts: impl IntoIterator<Item = impl std::fmt::Display>) -> Vec<String> {
    texts.into_iter().map(|text| format!("{:>11}", text.to_string())).collect()
}

/// How much mAP50 varies over the groups of each key of `group_by`, as far as any was found: `CoV(month) 0.121, score(month) 0.433`.
fn stability(metrics: &[(String, f64)]) -> String {
    let known = metrics.iter().filter(|(_, value)| value.is_finite());
    let told = known.filter_map(|(name, value)| Some((name.strip_prefix("metrics/")?, value)));
    let of_keys = told.filter(|(name, _)| ["CoV(", "score("].iter().any(|of| name.starts_with(of)));
    of_keys.map(|(name, value)| format!("{name} {value:.3}")).collect::<Vec<_>>().join(", ")
}

impl Observer for Console {
    fn on_start(&mut self, info: &RunInfo) {
        self.info = Some(info.clone());
    }

    fn on_epoch(&mut self, epoch: usize, position: usize) {
        let Some(info) = &self.info else { return };
        // What a roll-back has taken out was never trained on.
        self.unprinted.take_if(|((of, at), _)| *of != epoch || *at >= position);
        self.foot.say(&format!("\n{}", fit(&header(&info.item_names), "", columns())));
        self.foot.begin("batch ", info.batches);
        (self.samples, self.busy, self.clock) = (0, Duration::ZERO, Instant::now());
    }

    fn on_batch(&mut self, report: &BatchReport) {
        let Some(info) = &self.info else { return };
        self.samples += report.samples;
        self.busy = self.clock.elapsed();
        let row = self.row(report);
        let done = report.position + 1;
        let last = done == info.batches;
        self.foot.show("batch ", |room| fit(&row, "", room), done, info.batches);
        self.unprinted = Some(((report.epoch, report.position), row));
        if last {
            self.close();
        }
    }

    fn on_evaluating(&mut self, done: usize, total: usize) {
        if self.unprinted.is_some() {
            self.close();
        }
        self.foot.show("validating ", table_header, done, total);
    }

    fn on_epoch_end(&mut self, report: &EpochReport) {
        self.close();
        let Some(e) = &report.evaluation else { return };
        let value = |name: &str| e.get(name).unwrap_or(f64::NAN);
        let values = ["metrics/precision(B)", "metrics/recall(B)", "metrics/mAP50(B)", "metrics/mAP50-95(B)"].map(value);
        self.foot.say(&table_header(columns()));
        self.foot.say(&table_row(columns(), "all", e.samples, e.objects, values));
        let groups = stability(&e.metrics);
        if !groups.is_empty() {
            self.foot.say(&groups);
        }
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
    use std::sync::Mutex;

    use bellows_learner::StepTimes;

    use super::*;

    fn report(epoch: usize, epochs: usize, position: usize) -> BatchReport {
        BatchReport {
            step: 1,
            epoch,
            epochs,
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
    fn a_row_counts_the_epochs_that_are_planned_by_then() {
        assert_eq!(Console::new(640).row(&report(100, 103, 0))[0].trim(), "101/103");
    }

    #[test]
    fn an_epoch_leaves_one_row_whichever_batch_is_the_last_that_is_reported() {
        static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let tell = |line: &str| TOLD.lock().unwrap().push(line.to_string());
        let rows = || TOLD.lock().unwrap().iter().filter(|line| line.trim_start().starts_with("1/3 ")).count();
        let begun = |batches: usize| {
            TOLD.lock().unwrap().clear();
            let mut console = Console { foot: Foot::default().through(tell), ..Console::new(640) };
            let (item_names, metric_names) = (vec!["box_loss"], Vec::new());
            console.on_start(&RunInfo { epochs: 3, epoch: 0, position: 0, batches: 5, step: 0, unit: "images", item_names, metric_names });
            console.on_epoch(0, 0);
            (0..batches).for_each(|position| console.on_batch(&report(0, 3, position)));
            console
        };
        let end = EpochReport { step: 5, epoch: 0, means: vec![1.0], evaluation: None, best: false, over: true, elapsed_s: 1.0 };
        for (batches, judged) in [(2, false), (2, true), (5, false), (5, true)] {
            let mut console = begun(batches);
            if judged {
                console.on_evaluating(0, 1);
                assert_eq!(rows(), 1, "{batches} batches, before the table");
            }
            console.on_epoch_end(&end);
            console.on_end();
            assert_eq!(rows(), 1, "{batches} batches");
        }
        // Back to before the batches of the row, or on behind them.
        for (position, left) in [(0, 0), (2, 1)] {
            let mut console = begun(2);
            console.on_epoch(0, position);
            console.on_epoch_end(&end);
            assert_eq!(rows(), left, "from {position}");
        }
    }

    #[test]
    fn groups_are_told_by_how_much_they_vary() {
        let metrics =
            [("metrics/mAP50(B)", 0.5), ("metrics/CoV(month)", 0.1212), ("metrics/score(month)", 0.4333), ("metrics/CoV(hour)", f64::NAN)];
        assert_eq!(stability(&metrics.map(|(name, value)| (name.to_string(), value))), "CoV(month) 0.121, score(month) 0.433");
        assert_eq!(stability(&[("val/box_loss".into(), 1.0)]), "");
    }

    #[test]
    fn header_and_row_lose_the_same_columns() {
        let header = header(&["box_loss", "cls_loss", "dfl_loss"]);
        let text = |text: &str| text.to_string();
        let mut row = row([text("1/100"), text("1.23G")], &[1.0, 2.0, 3.0], [text("7"), text("640"), text("697")]);
        row.push("  GPU 3.22G".into());
        for columns in 60..=140 {
            let [header, row] = [&header, &row].map(|cells| fit(cells, "", columns));
            let kept = row.trim_end_matches("  GPU 3.22G").len();
            assert!(row.len() <= columns && header.len() == kept && kept == (columns / 11).min(8) * 11, "{columns}:\n{header}\n{row}");
        }
        assert_eq!(fit(&header, "", 60), "      Epoch     Memory   box_loss   cls_loss   dfl_loss");
        assert_eq!(fit(&row, "", 60), "      1/100      1.23G     1.0000     2.0000     3.0000");
    }
}
