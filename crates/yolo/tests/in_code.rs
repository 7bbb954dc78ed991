//! Training on data defined in code, without the program that settles settings before it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::sync::Arc;

use bellows_runs::RunDir;
use bellows_yolo::boxes::Label;
use bellows_yolo::config::TrainConfig;
use bellows_yolo::data::{Frame, Item};
use bellows_yolo::{TrainError, Training, TrainingData};
use burn::data::dataset::InMemDataset;
use burn::tensor::Device;

const SIDE: usize = 64;

fn item(name: &str) -> Item {
    let label = Label { class: 1, xywh: [0.5, 0.5, 0.25, 0.25] };
    Item::new(Frame::filled(1, SIDE, SIDE, 90), vec![label], name.into())
}

/// Items to train on, and to judge by the same.
fn data(items: &[Item]) -> TrainingData {
    let set = || Arc::new(InMemDataset::new(items.to_vec()));
    TrainingData::new(set(), set(), &["a", "b"]).unwrap()
}

fn settings() -> TrainConfig {
    TrainConfig { imgsz: SIDE, batch: 8.into(), nbs: 8, epochs: 1, workers: 0, mosaic: 0.0, plots: false, ..TrainConfig::default() }
}

fn begin(data: TrainingData, config: TrainConfig, runs: &Path) -> Result<Training, TrainError> {
    Training::new(data, config, &Device::flex(), None, RunDir::create(runs, "run", false).unwrap(), None)
}

/// What is said against the settings.
fn refused(config: TrainConfig) -> String {
    let runs = tempfile::tempdir().unwrap();
    begin(data(&["a", "b", "c", "d"].map(item)), config, runs.path()).map(drop).unwrap_err().to_string()
}

#[test]
fn settings_that_break_a_rule_begin_no_run() {
    for (config, rule) in [
        (TrainConfig { imgsz: 100, ..settings() }, "imgsz 100 is not a positive multiple of 32"),
        (TrainConfig { precision: "fp8".into(), ..settings() }, "no precision is called fp8"),
        (TrainConfig { precision: "f16".into(), ..settings() }, "precision f16 is for GPUs"),
    ] {
        let error = refused(config);
        assert!(error.contains(rule), "{error}");
    }
}
