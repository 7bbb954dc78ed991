//! Checkpoints of every format that was ever written are read, and their runs go on (test T12).
//!
//! `fixtures/format-N` is a run of the toy that was stopped after 17 batches by the program that wrote format N, and the averages that it ended with when it was not stopped.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::toy::{self, EPOCHS, config, data, learner, no_poison};
use bellows_learner::{Identity, Learner, LearnerConfig, Notice, Observer, Outcome};
use bellows_runs::{Checkpoints, FORMAT, Member, RunDir};
use burn::tensor::Device;
use serde::Serialize;

fn fixture(format: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/format-{format}"))
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|e| (e.path(), e.file_name())).unwrap();
        if path.is_dir() { copy(&path, &to.join(name)) } else { std::fs::copy(&path, to.join(name)).map(drop).unwrap() }
    }
}

/// The settings of an older program, and of one that knows more.
#[derive(Default, Serialize)]
struct Older {
    rate: f64,
}

#[derive(Default, Serialize)]
struct Newer {
    rate: f64,
    smooth: bool,
}

/// Sentences that a run says.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Observer for Told {
    fn on_notice(&mut self, notice: &Notice) {
        self.0.lock().unwrap().push(notice.message.clone());
    }
}

#[test]
fn a_newer_program_goes_on_with_its_defaults_and_names_them() {
    let dir = tempfile::tempdir().unwrap();
    let program = |identity: Identity| {
        let (run, device) = (RunDir::create(dir.path(), "run", true).unwrap(), Device::flex());
        Learner::new(toy::Toy::default(), toy::net(&device), &device, config(), run, identity).unwrap()
    };
    let flag = Arc::default();
    let mut session = program(Identity::of(&Older::default(), &[]));
    session.observe(toy::StopAfter { after: 5, seen: 0, flag: Arc::clone(&flag) }).stop_when(flag);
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Interrupted);
    let refused = program(Identity::of(&Newer { smooth: true, ..Newer::default() }, &[])).resume().unwrap_err().to_string();
    assert!(refused.contains("smooth was false and is true"), "{refused}");
    let mut session = program(Identity::of(&Newer::default(), &[]));
    let told = Told::default();
    session.observe(told.clone()).resume().unwrap();
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
    let told = told.0.lock().unwrap().join("\n");
    assert!(told.contains("begun by an older program") && told.contains("smooth (false)") && !told.contains("rate ("), "{told}");
    let events = std::fs::read_to_string(dir.path().join("run/events.jsonl")).unwrap();
    assert!(events.lines().any(|line| line.contains("\"defaults\"") && line.contains("\"smooth\":false")), "{events}");
}

/// It knew other columns, in another order.
#[test]
fn a_run_goes_on_in_the_columns_that_an_older_program_began() {
    /// The columns, and the cells of each row by their names.
    fn read(dir: &Path) -> (String, Vec<BTreeMap<String, String>>) {
        let csv = std::fs::read_to_string(dir.join("run/results.csv")).unwrap();
        let cells = |line: &str| line.split(',').map(String::from).collect::<Vec<_>>();
        let (header, rows) = csv.split_once('\n').unwrap();
        let named = |row: &str| {
            assert_eq!(cells(row).len(), cells(header).len(), "{csv}");
            cells(header).into_iter().zip(cells(row)).collect()
        };
        (header.into(), rows.lines().map(named).collect())
    }
    const OLDER: &str = "epoch,lr/pg1,val/gone,val/mse,train/mae";
    let whole = tempfile::tempdir().unwrap();
    learner(whole.path(), config(), no_poison).fit(&data()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (mut session, flag) = (learner(dir.path(), config(), no_poison), Arc::default());
    session.observe(toy::StopAfter { after: 5, seen: 0, flag: Arc::clone(&flag) }).stop_when(flag);
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Interrupted);
    drop(session);
    let checkpoints = Checkpoints::open(dir.path().join("run/checkpoints")).unwrap();
    let mut newest = checkpoints.latest().unwrap().checkpoint.unwrap();
    newest.members.insert("results.csv".into(), format!("{OLDER}\n").into_bytes());
    let members: Vec<Member<'_>> = newest.members.iter().map(|(name, bytes)| Member { name, bytes }).collect();
    checkpoints.save(newest.step, &members, &newest.info).unwrap();
    let mut session = learner(dir.path(), config(), no_poison);
    session.resume().unwrap();
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
    let ((header, rows), (_, expected)) = (read(dir.path()), read(whole.path()));
    assert_eq!((header.as_str(), rows.len()), (OLDER, EPOCHS));
    for (row, expected) in rows.iter().zip(&expected) {
        assert!(row["val/gone"].is_empty(), "{row:?}");
        assert!(["epoch", "lr/pg1", "val/mse", "train/mae"].iter().all(|name| row[*name] == expected[*name]), "{row:?} {expected:?}");
    }
}

/// It has recorded paths without steps, or nothing.
#[test]
fn weights_that_an_older_program_left_unwritten_are_written() {
    for recorded in [Some(serde_json::json!(["labels.jpg", "weights/best.safetensors", "weights/epoch0.safetensors"])), None] {
        let dir = tempfile::tempdir().unwrap();
        let config = || LearnerConfig { save_period: 3, ..config() };
        learner(dir.path(), config(), no_poison).fit(&data()).unwrap();
        let weights = ["last", "best", "epoch3", "epoch0"].map(|name| dir.path().join(format!("run/weights/{name}.safetensors")));
        let written = weights.each_ref().map(|path| std::fs::read(path).unwrap());
        let checkpoints = Checkpoints::open(dir.path().join("run/checkpoints")).unwrap();
        let mut newest = checkpoints.latest().unwrap().checkpoint.unwrap();
        newest.info.remove("unwritten");
        newest.info.extend(recorded.clone().map(|paths| ("unwritten".to_owned(), paths)));
        let members: Vec<Member<'_>> = newest.members.iter().map(|(name, bytes)| Member { name, bytes }).collect();
        checkpoints.save(newest.step, &members, &newest.info).unwrap();
        [0, 2].iter().for_each(|&i| std::fs::remove_file(&weights[i]).unwrap());
        if recorded.is_some() {
            std::fs::remove_file(&weights[1]).unwrap();
        }
        let mut again = learner(dir.path(), config(), no_poison);
        again.resume().unwrap();
        assert_eq!(again.fit(&data()).unwrap(), Outcome::NothingToDo);
        assert!(weights.map(|path| std::fs::read(path).unwrap()) == written, "{recorded:?}");
    }
}

#[test]
fn a_run_of_every_format_goes_on_and_ends_as_it_would_have() {
    for format in 1..=FORMAT {
        let dir = tempfile::tempdir().unwrap();
        copy(&fixture(format), &dir.path().join("run"));
        let mut session = learner(dir.path(), config(), no_poison);
        session.resume().unwrap();
        assert_eq!((session.state().counters.batches, session.state().counters.epoch), (17, 1), "format {format}");
        assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
        let rows = std::fs::read_to_string(dir.path().join("run/results.csv")).unwrap();
        assert_eq!(rows.lines().count(), 1 + EPOCHS, "format {format}: {rows}");
        // Another processor may sum in another order.
        let end = bellows_weights::read(&fixture(format).join("end.safetensors")).unwrap().tensors;
        let average: Vec<_> = session.layout().scatter(&session.state().ema.values).into_iter().flatten().collect();
        let ours = session.layout().read(&average).unwrap();
        assert_eq!(ours.len(), end.len());
        for (name, _, values) in ours {
            let expected = end[&name].to_f32().unwrap();
            assert!(values.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4), "format {format}: {name}");
        }
    }
}
