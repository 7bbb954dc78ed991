//! Training on data defined in code, without the program that settles settings before it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::RefCell;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;

use bellows_kernels::set_keeps;
use bellows_learner::{Notice, Observer, Outcome, Task};
use bellows_runs::RunDir;
use bellows_yolo::boxes::Label;
use bellows_yolo::config::{Cache, Checkpointing, Sampler, TrainConfig};
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

#[test]
fn settings_of_files_are_of_no_data_defined_in_code() {
    for (setting, config) in [
        ("single_cls", TrainConfig { single_cls: true, ..settings() }),
        ("classes", TrainConfig { classes: Some(vec![0]), ..settings() }),
        ("sampler", TrainConfig { sampler: Some(Sampler::default()), ..settings() }),
        ("fraction", TrainConfig { fraction: 0.5, ..settings() }),
        ("cache", TrainConfig { cache: Cache::Ram, ..settings() }),
        ("frames", TrainConfig { frames: 3, ..settings() }),
        ("background", TrainConfig { background: 2, ..settings() }),
    ] {
        let error = refused(config);
        assert!(error.contains(&format!(": {setting} is of data that are read from files")), "{error}");
    }
}

struct Told(Rc<RefCell<Vec<String>>>);

impl Observer for Told {
    fn on_notice(&mut self, notice: &Notice) {
        self.0.borrow_mut().extend((notice.kind == "unreadable").then(|| notice.message.clone()));
    }
}

#[test]
fn items_that_cannot_be_used_are_left_out_by_name() {
    let frame = |channels: usize, pixels: usize| Frame { pixels: vec![90; pixels], ..Frame::filled(channels, SIDE, SIDE, 0) };
    let with = |name: &str, label: Label| Item { labels: vec![label], ..item(name) };
    let items = [
        item("a"),
        with("unnamed", Label { class: 2, xywh: [0.5; 4] }),
        with("nowhere", Label { class: 0, xywh: [0.5, f32::NAN, 0.5, 0.5] }),
        item("b"),
        // Of the network's size, so that nobody resizes it.
        Item { frame: frame(1, SIDE * SIDE - 1), ..item("torn") },
        Item { frame: frame(2, 2 * SIDE * SIDE), ..item("pair") },
        item("c"),
    ];
    let mut data = data(&items);
    data.weights = vec![1.0; items.len()];
    let config = TrainConfig { sampler: Some(Sampler::default()), allow_bad: true, ..settings() };
    let (runs, told) = (tempfile::tempdir().unwrap(), Rc::default());
    let mut run = begin(data, config, runs.path()).unwrap();
    run.learner().observe(Told(Rc::clone(&told)));
    assert_eq!(run.run().unwrap().outcome, Outcome::Finished);
    let told = told.take().join("\n");
    for fault in [
        "item 1: unnamed: class 2 is not one of the 2 classes",
        "item 2: nowhere: a box of [0.5, NaN, 0.5, 0.5]",
        "item 4: torn: 4095 pixels do not fill 1 channels of 64x64",
        "item 5: pair: 2 channels, and the network has 3",
    ] {
        assert!(told.contains(fault), "no {fault} in {told}");
    }
    assert_eq!(told.lines().count(), 4, "{told}");
}

/// What is kept for backward passes changes no number, and is the process's: asked in one of its own, where nobody else sets it.
#[test]
fn what_a_run_keeps_changes_no_number() {
    const CHILD: &str = "BELLOWS_KEEPS_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args(["in_code::what_a_run_keeps_changes_no_number", "--exact"]).env(CHILD, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let weights = [false, true].map(|again| {
        let runs = tempfile::tempdir().unwrap();
        set_keeps(again);
        let config = TrainConfig { gradient_checkpointing: Checkpointing::On(again), ..settings() };
        let mut training = begin(data(&["a", "b", "c", "d"].map(item)), config, runs.path()).unwrap();
        assert_eq!(training.learner().task().hold_less().is_some(), !again, "not set by the run, or not let go of");
        set_keeps(!again);
        assert_eq!(training.run().unwrap().outcome, Outcome::Finished);
        std::fs::read(runs.path().join("run/weights/last.safetensors")).unwrap()
    });
    assert!(weights[0] == weights[1]);
}
