//! The console as detector users know it: a table row an epoch with a bar while it runs, a validation row below it.

use std::time::{Duration, Instant};

use bellows_cli::{Bar, memory, say};
use bellows_learner::{BatchReport, EpochReport, Notice, Observer, RunInfo};
use bellows_yolo::metrics::{table_header, table_row};

/// Prints a training run.
pub(crate) struct Console {
    imgsz: usize,
    info: Option<RunInfo>,
    row: String,
    bar: Option<Bar>,
    samples: usize,
    busy: Duration,
    clock: Instant,
}

impl Console {
    pub(crate) fn new(imgsz: usize) -> Self {
        Self { imgsz, info: None, row: String::new(), bar: None, samples: 0, busy: Duration::ZERO, clock: Instant::now() }
    }

    fn close_bar(&mut self, line: &str) {
        match self.bar.take() {
            Some(bar) => bar.finish(line),
            None if !line.is_empty() => say(line),
            None => {}
        }
    }
}

fn cell(x: f64) -> String {
    format!("{x:>11.4}")
}

impl Observer for Console {
    fn on_start(&mut self, info: &RunInfo) {
        self.info = Some(info.clone());
    }

    fn on_epoch(&mut self, epoch: usize, _position: usize) {
        let Some(info) = &self.info else { return };
        let names: String = info.item_names.iter().map(|n| format!("{n:>11}")).collect();
        say(&format!("\n{:>11}{:>11}{names}{:>11}{:>11}{:>11}", "Epoch", "Memory", "Instances", "Size", "img/s"));
        self.row = format!("{:>11}", format!("{}/{}", epoch + 1, info.epochs));
        self.bar = Some(Bar::new("batch ", info.batches));
        (self.samples, self.busy, self.clock) = (0, Duration::ZERO, Instant::now());
    }

    fn on_batch(&mut self, report: &BatchReport) {
        let Some(info) = &self.info else { return };
        self.samples += report.samples;
        self.busy = self.clock.elapsed();
        let means: String = report.means.iter().map(|&m| cell(m)).collect();
        let rate = self.samples as f64 / self.busy.as_secs_f64().max(1e-9);
        let row = format!(
            "{:>11}{:>11}{means}{:>11}{:>11}{rate:>11.1}",
            format!("{}/{}", report.epoch + 1, info.epochs),
            memory(),
            report.count,
            self.imgsz
        );
        let card: String = report.gauges.iter().map(|(_, _, text)| format!("  {text}")).collect();
        let row = row + &card;
        self.row.clone_from(&row);
        if let Some(bar) = &mut self.bar {
            bar.set(row, report.position + 1, info.batches);
        }
        if report.position + 1 == info.batches {
            let row = self.row.clone();
            self.close_bar(&row);
        }
    }

    fn on_evaluating(&mut self, done: usize, total: usize) {
        let bar = self.bar.get_or_insert_with(|| Bar::new("validating ", total));
        bar.set(table_header(), done, total);
    }

    fn on_epoch_end(&mut self, report: &EpochReport) {
        self.close_bar("");
        let Some(e) = &report.evaluation else { return };
        let value = |name: &str| e.get(name).unwrap_or(f64::NAN);
        let values = ["metrics/precision(B)", "metrics/recall(B)", "metrics/mAP50(B)", "metrics/mAP50-95(B)"].map(value);
        say(&table_header());
        say(&table_row("all", e.samples, e.objects, values));
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
