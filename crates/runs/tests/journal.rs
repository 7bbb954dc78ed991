//! A run's logs, checkpoints and files under a power cut after any operation, and with any operation failing: the run goes on from what was
//! reported, its rows whole, and no file is half of one thing and half of another.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test fails by panicking")]

mod common;

use std::path::Path;
use std::rc::Rc;

use bellows_runs::{Checkpoint, Checkpoints, Journal, Member, Retention, RunDir, SaveError, Store};
use common::fault::{FAULTS, Fault, FaultStore};
use common::memory::{Forget, MemoryStore, name_of};
use common::scratch;
use serde_json::Map;

const STEPS: [u64; 3] = [5, 10, 15];
const BEST: &str = "weights/best.bin";

fn keep() -> Retention {
    Retention { newest: 2, steps: Vec::new() }
}

/// What has happened between two checkpoints is in the logs, and the checkpoint is made; the weights come after it.
fn save(journal: &mut Journal, step: u64) -> Result<(), SaveError> {
    journal.event(&format!("{{\"step\":{step}}}"));
    journal.row(&step.to_string());
    journal.scalars(&step.to_le_bytes());
    journal.write_after_save(BEST, &weights(step).into());
    let state = step.to_string();
    journal.save(step, &[Member { name: "state.json", bytes: state.as_bytes() }], Map::new(), &keep())
}

fn weights(step: u64) -> Vec<u8> {
    vec![step as u8; 100]
}

fn rows(step: u64) -> String {
    ["epoch".to_owned()].into_iter().chain(STEPS.iter().filter(|&&s| s <= step).map(u64::to_string)).map(|line| line + "\n").collect()
}

fn events(step: u64) -> String {
    STEPS.iter().filter(|&&s| s <= step).map(|s| format!("{{\"step\":{s}}}\n")).collect()
}

/// A run of three checkpoints; notes each that was reported. Stops when the power does.
fn train(store: Rc<dyn Store>, reported: &mut u64) -> Result<(), String> {
    let dir = RunDir::at("/run");
    store.create_dir(&dir.weights()).map_err(|e| e.to_string())?;
    let mut journal = Journal::open_with(store, dir).map_err(|e| e.to_string())?;
    journal.begin("epoch").map_err(|e| e.to_string())?;
    journal.open_scalars("tensorboard/events");
    for step in STEPS {
        save(&mut journal, step).map_err(|e| e.to_string())?;
        *reported = step;
    }
    journal.finish().map_err(|e| e.to_string())
}

/// What a restarted run finds is no older than what was reported, and its logs are those of that moment, without a word of warning.
fn survives(store: MemoryStore, reported: u64) -> Result<(), String> {
    let text = |path: &Path| store.read(path, u64::MAX).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let dir = RunDir::at("/run");
    let mut journal = Journal::open_with(Rc::new(store.clone()), dir.clone()).map_err(|e| e.to_string())?;
    let latest = journal.checkpoints().latest().map_err(|e| e.to_string())?;
    if !latest.set_aside.is_empty() {
        return Err(format!("found damaged: {:?}", latest.set_aside));
    }
    let Some(checkpoint) = latest.checkpoint else {
        return if reported == 0 { Ok(()) } else { Err(format!("{reported} was reported, nothing was found")) };
    };
    if checkpoint.step < reported {
        return Err(format!("{reported} was reported, {} was found", checkpoint.step));
    }
    journal.go_on(&checkpoint);
    let warnings = journal.take_warnings();
    if !warnings.is_empty() {
        return Err(format!("warned of {warnings:?}"));
    }
    for (path, expected) in [(dir.results(), rows(checkpoint.step)), (dir.events(), events(checkpoint.step))] {
        let found = text(&path).map_err(|e| e.to_string())?;
        if found != expected {
            return Err(format!("{} is {found:?}", path.display()));
        }
    }
    match store.read(&dir.path().join(BEST), u64::MAX) {
        Ok(bytes) if !STEPS.iter().any(|&step| step <= checkpoint.step && bytes == weights(step)) => Err(format!("weights are {bytes:?}")),
        _ => Ok(()),
    }
}

fn power_cuts(forget: Forget) -> Result<usize, String> {
    common::power_cuts(1 << 9, forget, |store, reported| train(Rc::new(store), reported), survives)
}

#[test]
fn a_power_cut_loses_neither_run_nor_rows() {
    let disks = power_cuts(|_, _| false).unwrap();
    println!("{disks} disks after a power cut");
    assert!(disks > 1_000, "only {disks} disks were looked at");
}

#[test]
fn without_flushing_the_events_it_would_be_noticed() {
    power_cuts(|kind, path| kind == "file" && path.ends_with("events.jsonl")).unwrap_err();
}

#[test]
fn without_flushing_the_rows_it_would_be_noticed() {
    power_cuts(|kind, path| kind == "file" && path.ends_with("results.csv")).unwrap_err();
}

#[test]
fn without_flushing_the_weights_they_could_be_torn() {
    power_cuts(|kind, path| kind == "file" && name_of(path).starts_with(".best")).unwrap_err();
}

#[test]
fn without_flushing_the_names_of_the_logs_it_would_be_noticed() {
    power_cuts(|kind, path| kind == "dir" && path == Path::new("/run")).unwrap_err();
}

#[test]
fn a_picture_takes_no_weights_along_that_wait_for_their_checkpoint() {
    let dir = scratch();
    let run = RunDir::create(dir.path(), "train", false).unwrap();
    let mut journal = Journal::open(run.clone()).unwrap();
    journal.write_after_save(BEST, &weights(5).into());
    journal.write("picture.png", vec![1]);
    assert!(run.path().join("picture.png").exists() && !run.path().join(BEST).exists());
    save(&mut journal, 10).unwrap();
    assert_eq!(std::fs::read(run.path().join(BEST)).unwrap(), weights(10));
}

/// A run saved once on a disk whose `at`-th operation from then on fails, once it is armed.
fn once_saved(dir: &Path, at: usize, fault: Fault) -> (RunDir, FaultStore, Journal) {
    let run = RunDir::create(dir, "train", false).unwrap();
    let store = FaultStore { at, fault, done: Rc::default() };
    let mut journal = Journal::open_with(Rc::new(store.clone()), run.clone()).unwrap();
    journal.begin("epoch").unwrap();
    save(&mut journal, 5).unwrap();
    (run, store, journal)
}

/// One operation of the second of two saves fails; the third is made on a sound disk again. True if that operation was reached.
fn one_fault(at: usize, fault: Fault) -> bool {
    let dir = scratch();
    let context = format!("operation {at}, {fault:?}");
    let (run, store, mut journal) = once_saved(dir.path(), at, fault);
    assert_eq!(journal.take_warnings(), [""; 0]);
    store.done.set(Some(0));
    let saved = save(&mut journal, 10);
    let (warnings, reached) = (journal.take_warnings(), store.reached());
    assert!(!reached || saved.is_err() || !warnings.is_empty() || fault_was_mended(&run), "{context}: not a word");
    if fault != Fault::Abort {
        store.done.set(None);
        save(&mut journal, 15).unwrap();
        journal.finish().unwrap_or_else(|e| panic!("{context}: {e}"));
        assert_eq!(std::fs::read_to_string(run.results()).unwrap(), rows(15), "{context}");
        assert_eq!(std::fs::read_to_string(run.events()).unwrap(), events(15), "{context}");
        assert_eq!(std::fs::read(run.path().join(BEST)).unwrap(), weights(15), "{context}");
    }
    // What the next process finds.
    let mut next = Journal::open(run.clone()).unwrap();
    let found = next.checkpoints().latest().unwrap().checkpoint.unwrap();
    let expected = if fault == Fault::Abort { if saved.is_ok() { 10 } else { 5 } } else { 15 };
    assert!(found.step >= expected, "{context}: {} was found", found.step);
    next.go_on(&found);
    assert_eq!(std::fs::read_to_string(run.results()).unwrap(), rows(found.step), "{context}");
    reached
}

/// A second try within the save (a deletion, a sibling's removal) succeeded: nothing is missing.
fn fault_was_mended(run: &RunDir) -> bool {
    std::fs::read(run.path().join(BEST)).is_ok_and(|bytes| bytes == weights(10))
}

#[test]
fn any_operation_may_fail_and_is_made_up_for() {
    let cases = |fault| (1..).take_while(|&at| one_fault(at, fault)).count();
    let cases: usize = FAULTS.into_iter().map(cases).sum();
    println!("{cases} faults injected");
    assert!(cases >= 100, "only {cases} faults were injected: the operations are not seen any more");
}

/// Old checkpoints that cannot be removed cost a warning, not the save.
#[test]
fn a_failed_removal_fails_no_save() {
    let one = |at: usize| {
        let dir = scratch();
        let (run, store, mut journal) = once_saved(dir.path(), at, Fault::Eio);
        save(&mut journal, 10).unwrap();
        store.done.set(Some(0));
        let saved = save(&mut journal, 15);
        let steps = Checkpoints::open(run.checkpoints()).unwrap().steps().unwrap();
        let spared = saved.is_ok() && !journal.take_warnings().is_empty() && steps == STEPS;
        store.reached().then_some(spared)
    };
    assert!((1..).map_while(one).any(|spared| spared));
}

/// The log of events cannot be taken back when a run begins or goes on: it is, before anything is appended to it.
#[test]
fn a_log_that_cannot_be_taken_back_is_before_it_grows() {
    let one = |at: usize| {
        let dir = scratch();
        let (run, store, mut journal) = once_saved(dir.path(), at, Fault::Eio);
        let checkpoint = journal.checkpoints().latest().unwrap().checkpoint.unwrap();
        journal.event("what is not to be");
        store.done.set(Some(0));
        journal.go_on(&checkpoint);
        let reached = store.reached();
        store.done.set(None);
        assert!(!reached || !journal.take_warnings().is_empty(), "operation {at}: not a word");
        save(&mut journal, 10).unwrap();
        assert_eq!(std::fs::read_to_string(run.events()).unwrap(), events(10), "operation {at}");
        assert_eq!(std::fs::read_to_string(run.results()).unwrap(), rows(10), "operation {at}");
        let (mut next, checkpoint) = latest(&run);
        next.go_on(&checkpoint);
        assert_eq!((next.take_warnings(), std::fs::read_to_string(run.events()).unwrap()), (Vec::new(), events(10)), "operation {at}");
        reached
    };
    assert!((1..).take_while(|&at| one(at)).count() >= 5);
}

fn started(dir: &Path) -> (RunDir, Journal) {
    let run = RunDir::create(dir, "train", false).unwrap();
    let mut journal = Journal::open(run.clone()).unwrap();
    journal.begin("epoch").unwrap();
    (run, journal)
}

fn latest(run: &RunDir) -> (Journal, Checkpoint) {
    let journal = Journal::open(run.clone()).unwrap();
    let checkpoint = journal.checkpoints().latest().unwrap().checkpoint.unwrap();
    (journal, checkpoint)
}

#[test]
fn logs_that_were_lost_or_changed_are_mended_with_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let (run, mut journal) = started(dir.path());
    save(&mut journal, 5).unwrap();
    save(&mut journal, 10).unwrap();
    for (rows_now, events_now) in
        [("", ""), ("epoch\n5", "{\"st"), ("quite other\nlines\n", "quite other\n"), ("epoch\n5\n11\n", "{\"step\":5}\n")]
    {
        std::fs::write(run.results(), rows_now).unwrap();
        std::fs::write(run.events(), events_now).unwrap();
        let (mut journal, checkpoint) = latest(&run);
        journal.go_on(&checkpoint);
        let warnings = journal.take_warnings();
        assert!(warnings.iter().any(|w| w.contains("results.csv")) && warnings.iter().any(|w| w.contains("events.jsonl")), "{warnings:?}");
        assert_eq!(std::fs::read_to_string(run.results()).unwrap(), rows(10));
    }
    std::fs::remove_file(run.results()).unwrap();
    let (mut journal, checkpoint) = latest(&run);
    journal.go_on(&checkpoint);
    save(&mut journal, 15).unwrap();
    assert_eq!(std::fs::read_to_string(run.results()).unwrap(), rows(15));
}

#[test]
fn a_file_that_cannot_be_written_is_tried_again_and_told_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (run, mut journal) = started(dir.path());
    // A directory in the place of the file.
    std::fs::create_dir_all(run.path().join(BEST).join("x")).unwrap();
    for step in [5, 10] {
        save(&mut journal, step).unwrap();
        assert!(journal.take_warnings().iter().any(|w| w.contains("best.bin")));
    }
    journal.write("labels.jpg", vec![1]);
    assert_eq!(std::fs::read(run.path().join("labels.jpg")).unwrap(), [1]);
    let error = journal.finish().unwrap_err().to_string();
    assert!(error.contains("training is saved") && error.contains("best.bin"), "{error}");
    std::fs::remove_dir_all(run.path().join(BEST)).unwrap();
    journal.finish().unwrap();
    assert_eq!(std::fs::read(run.path().join(BEST)).unwrap(), weights(10));
}
