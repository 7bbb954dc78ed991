//! A run's logs, checkpoints and files under a power cut after any operation, and with any operation failing: the run goes on from what was
//! reported, its rows whole, and no file is half of one thing and half of another.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test fails by panicking")]

mod common;

use std::path::Path;
use std::rc::Rc;

use bellows_exit::{Coded, Exit};
use bellows_runs::{Again, Checkpoint, Journal, LoadError, Member, Retention, RunDir, SaveError, Store, StoreError};
use common::fault::{FAULTS, Fault, FaultStore};
use common::memory::{Forget, MemoryStore, name_of};
use common::{scratch, steps};
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
    journal.write_weights_after_save(BEST, step, &weights(step).into());
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
    journal.write_weights_after_save(BEST, 5, &weights(5).into());
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
        let spared = saved.is_ok() && !journal.take_warnings().is_empty() && steps(&run.checkpoints()) == STEPS;
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
    save(&mut journal, 5).unwrap();
    assert!(matches!(&journal.take_warnings()[..], [warning] if warning.contains("best.bin")));
    save(&mut journal, 10).unwrap();
    assert_eq!(journal.take_warnings(), [""; 0], "the same again is not said again");
    journal.write("labels.jpg", vec![1]);
    assert_eq!(std::fs::read(run.path().join("labels.jpg")).unwrap(), [1]);
    assert!(journal.lacks_a_file());
    let error = journal.finish().unwrap_err().to_string();
    assert!(error.contains("training is saved") && error.contains("best.bin"), "{error}");
    std::fs::remove_dir_all(run.path().join(BEST)).unwrap();
    journal.finish().unwrap();
    assert!(!journal.lacks_a_file());
    assert_eq!(std::fs::read(run.path().join(BEST)).unwrap(), weights(10));
}

#[test]
fn weights_are_never_newer_than_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (run, mut journal) = started(dir.path());
    save(&mut journal, 5).unwrap();
    let best = || std::fs::read(run.path().join(BEST)).unwrap();
    // A file in the place of the checkpoints: none is made.
    let (checkpoints, away) = (run.checkpoints(), run.path().join("away"));
    std::fs::rename(&checkpoints, &away).unwrap();
    std::fs::write(&checkpoints, "").unwrap();
    save(&mut journal, 10).unwrap_err();
    journal.finish().unwrap();
    assert_eq!(best(), weights(5));
    std::fs::remove_file(&checkpoints).unwrap();
    std::fs::rename(&away, &checkpoints).unwrap();
    // The run goes back to before they were made.
    let checkpoint = journal.checkpoints().load_step(5).unwrap();
    journal.take_back(&checkpoint);
    journal.save(15, &[], Map::new(), &keep()).unwrap();
    assert_eq!(best(), weights(5));
    // What has its checkpoint and could not be written is, also if what came after it is forgotten.
    std::fs::remove_file(run.path().join(BEST)).unwrap();
    std::fs::create_dir_all(run.path().join(BEST).join("x")).unwrap();
    save(&mut journal, 20).unwrap();
    journal.write_weights_after_save(BEST, 25, &weights(25).into());
    journal.take_back(&checkpoint);
    std::fs::remove_dir_all(run.path().join(BEST)).unwrap();
    journal.finish().unwrap();
    assert_eq!(best(), weights(20));
}

#[test]
fn the_next_process_writes_what_this_one_could_not() {
    let dir = tempfile::tempdir().unwrap();
    let (run, mut journal) = started(dir.path());
    let first = "weights/epoch1.bin";
    let obstacles = [first, BEST, "labels.jpg"].map(|path| run.path().join(path));
    let obstruct = || obstacles.iter().for_each(|path| std::fs::create_dir_all(path.join("x")).unwrap());
    let clear = || obstacles.iter().for_each(|path| std::fs::remove_dir_all(path).unwrap());
    obstruct();
    journal.write("labels.jpg", vec![1, 2]);
    journal.write_weights_after_save(first, 5, &weights(1).into());
    save(&mut journal, 5).unwrap();
    let (_, checkpoint) = latest(&run);
    let of_step: Vec<_> = Journal::unwritten(&checkpoint).into_iter().collect();
    assert_eq!(of_step, [(5, vec![first.to_owned(), BEST.to_owned()])], "they can be made again of this checkpoint");
    // Long after it is gone.
    (7..10).for_each(|step| journal.save(step, &[], Map::new(), &keep()).unwrap());
    drop(journal);
    clear();
    let (mut journal, checkpoint) = latest(&run);
    journal.checkpoints().load_step(5).unwrap_err();
    assert!(Journal::unwritten(&checkpoint).is_empty());
    journal.go_on(&checkpoint);
    assert_eq!(obstacles.each_ref().map(|path| std::fs::read(path).unwrap()), [weights(1), weights(5), vec![1, 2]]);
    journal.save(10, &[], Map::new(), &keep()).unwrap();
    let newest = journal.checkpoints().latest().unwrap().checkpoint.unwrap();
    assert!(!newest.members.contains_key("unwritten-0"));

    // A checkpoint that is made again knows what waits then.
    clear_files(&obstacles);
    obstruct();
    journal.write("labels.jpg", vec![3]);
    journal.save_again(newest).unwrap();
    clear();
    drop(journal);
    let (mut journal, checkpoint) = latest(&run);
    journal.reopen(&checkpoint);
    assert_eq!(std::fs::read(run.path().join("labels.jpg")).unwrap(), [3]);
    // Of a run that is over, whatever was written since stays.
    journal.settle().unwrap();
    journal.write("labels.jpg", vec![4]);
    drop(journal);
    let (mut journal, checkpoint) = latest(&run);
    assert_eq!(checkpoint.step, 10);
    journal.reopen(&checkpoint);
    assert_eq!(std::fs::read(run.path().join("labels.jpg")).unwrap(), [4]);
}

/// Whoever can write a checkpoint can seal it: a run that comes from somebody else wants no file written outside of it.
#[test]
fn a_checkpoint_has_no_file_written_outside_of_its_run() {
    let dir = tempfile::tempdir().unwrap();
    let (run, mut journal) = started(dir.path());
    std::fs::create_dir_all(run.path().join("in/it")).unwrap();
    let outside = dir.path().join("outside");
    let forged = |path: &str| {
        let info = serde_json::json!({ "unwritten": { path: "unwritten-0" } });
        let members = [("unwritten-0".to_owned(), b"forged".to_vec())].into();
        Checkpoint { path: run.checkpoints(), step: 5, info: info.as_object().unwrap().clone(), members }
    };
    for path in [outside.to_str().unwrap(), "../outside", "weights/../../outside", "./../outside", "..", "in/it/deep", ""] {
        let checkpoint = forged(path);
        assert_eq!(Journal::foreign_file(&checkpoint), Some(path));
        journal.go_on(&checkpoint);
        journal.reopen(&checkpoint);
    }
    let step = serde_json::json!({ "../outside": 5, "weights/best.bin": 5 });
    let of_step = Checkpoint { info: [("unwritten".to_owned(), step)].into_iter().collect(), ..forged("a.jpg") };
    assert_eq!(Journal::foreign_file(&of_step), Some("../outside"));
    assert_eq!(Journal::unwritten(&of_step), [(5, vec![BEST.to_owned()])].into());
    assert!(!outside.exists() && !run.path().join("in/it/deep").exists());
    for path in ["a.jpg", BEST] {
        assert_eq!(Journal::foreign_file(&forged(path)), None);
        journal.reopen(&forged(path));
        assert_eq!(std::fs::read(run.path().join(path)).unwrap(), b"forged");
    }
}

fn clear_files(paths: &[std::path::PathBuf]) {
    paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
}

/// Files that wait have no part in whether there is room for the state.
#[test]
fn pictures_cost_no_checkpoint() {
    let one = |at: usize| {
        let dir = scratch();
        let (run, store, mut journal) = once_saved(dir.path(), at, Fault::Enospc);
        std::fs::create_dir_all(run.path().join("labels.jpg/x")).unwrap();
        journal.write("labels.jpg", vec![1]);
        store.done.set(Some(0));
        let state = [Member { name: "state.json", bytes: b"10" }];
        let saved = journal.save(10, &state, Map::new(), &keep());
        assert!(saved.is_ok(), "operation {at}: {saved:?}");
        store.reached()
    };
    assert!((1..).take_while(|&at| one(at)).count() >= 10);
}

/// It says nothing about the checkpoint, and a supervisor may try again.
#[test]
fn a_checkpoint_that_cannot_be_read_for_now_is_no_wrong_command() {
    let error = StoreError::new("read", Path::new("x"), std::io::Error::from_raw_os_error(24));
    assert_eq!(LoadError::from(error).exit(), Exit::Failed);
}

#[test]
fn weights_that_cannot_be_made_any_more_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let (run, mut journal) = started(dir.path());
    std::fs::write(run.weights().join("epoch1.bin"), "").unwrap();
    let gone = journal.checkpoints().load_step(3).unwrap_err();
    ["weights/epoch1.bin", "weights/epoch2.bin"].iter().for_each(|path| journal.give_up(path, Again::Perhaps(3), &gone));
    journal.give_up("weights/epoch0.bin", Again::Never, &gone);
    assert!(journal.take_warnings().len() == 3 && journal.lacks_a_file());
    let error = journal.finish().unwrap_err().to_string();
    assert!(error.contains("epoch2.bin cannot be written any more") && error.contains("epoch1.bin may be older"), "{error}");
    // The next process knows of them, until somebody has written them; not of what nobody can make any more.
    journal.write_weights("weights/epoch1.bin", 3, &weights(3).into());
    save(&mut journal, 5).unwrap();
    let newest = journal.checkpoints().latest().unwrap().checkpoint.unwrap();
    let unwritten = Journal::unwritten(&newest);
    assert_eq!(unwritten[&3], ["weights/epoch2.bin"]);
    assert!(!unwritten.values().flatten().any(|path| path == "weights/epoch0.bin"), "{unwritten:?}");
    assert!(journal.finish().unwrap_err().to_string().contains("epoch0.bin"), "this process still tells it");
    journal.write_weights("weights/epoch2.bin", 3, &weights(3).into());
    journal.settle().unwrap();
    let (_, newest) = latest(&run);
    assert!(Journal::unwritten(&newest).is_empty(), "settled but for what is gone: the next process ends well");
}

/// Weights whose checkpoint could not be read for now need it once more.
#[test]
fn a_checkpoint_that_could_not_be_read_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (_, mut journal) = started(dir.path());
    [5, 6, 7].into_iter().for_each(|step| save(&mut journal, step).unwrap());
    let steps = |journal: &Journal| [5, 6, 7].map(|step| journal.checkpoints().load_step(step).is_ok());
    journal.give_up("weights/epoch1.bin", Again::Later(6), &"too many open files");
    journal.give_up("weights/epoch2.bin", Again::Perhaps(5), &"no room");
    [8, 9, 10].into_iter().for_each(|step| save(&mut journal, step).unwrap());
    assert_eq!(steps(&journal), [false, true, false]);
}

/// Of a run that is over nothing of the log is cut off, and its rows are mended.
#[test]
fn a_run_that_is_over_is_opened_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (run, mut journal) = started(dir.path());
    save(&mut journal, 5).unwrap();
    journal.event("the end");
    drop(journal);
    std::fs::remove_file(run.results()).unwrap();
    let (mut journal, checkpoint) = latest(&run);
    journal.reopen(&checkpoint);
    journal.event("seen again");
    journal.finish().unwrap();
    assert_eq!(std::fs::read_to_string(run.results()).unwrap(), rows(5));
    assert_eq!(std::fs::read_to_string(run.events()).unwrap(), events(5) + "the end\nseen again\n");
}

/// A checkpoint of format 1 has no rows, and may not even know how many there were.
#[test]
fn rows_of_an_older_program_stay_as_they_are() {
    let older = b"epoch\n5\n\xff\xfe not a row\n".as_slice();
    for state in [format!("{{\"results_len\":{},\"events_len\":4}}", older.len()), "{}".into(), "not json".into()] {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(dir.path(), "train", false).unwrap();
        std::fs::write(run.results(), older).unwrap();
        std::fs::write(run.events(), "one\n").unwrap();
        let members = [("state.json".to_owned(), state.into_bytes())].into();
        let checkpoint = Checkpoint { path: run.checkpoints(), step: 5, info: Map::new(), members };
        let mut journal = Journal::open(run.clone()).unwrap();
        journal.go_on(&checkpoint);
        save(&mut journal, 10).unwrap();
        assert_eq!(journal.take_warnings(), [""; 0]);
        let (mut journal, checkpoint) = latest(&run);
        journal.go_on(&checkpoint);
        assert_eq!(journal.take_warnings(), [""; 0]);
        assert_eq!(std::fs::read(run.results()).unwrap(), [older, b"10\n"].concat());
        assert_eq!(std::fs::read_to_string(run.events()).unwrap(), "one\n{\"step\":10}\n");
    }
}

/// They cannot be read when the run goes on: no checkpoint takes the rows since for all of them.
#[test]
fn rows_of_an_older_program_that_cannot_be_read_are_not_forgotten() {
    let one = |at: usize| {
        let dir = scratch();
        let run = RunDir::create(dir.path(), "train", false).unwrap();
        std::fs::write(run.results(), "epoch\n5\n").unwrap();
        let store = FaultStore { at, fault: Fault::Eio, done: Rc::default() };
        let mut journal = Journal::open_with(Rc::new(store.clone()), run.clone()).unwrap();
        store.done.set(Some(0));
        let checkpoint = Checkpoint { path: run.checkpoints(), step: 5, info: Map::new(), members: [].into() };
        journal.go_on(&checkpoint);
        journal.row("10");
        let reached = store.reached();
        store.done.set(None);
        journal.save(10, &[], Map::new(), &keep()).unwrap();
        let (mut journal, checkpoint) = latest(&run);
        journal.go_on(&checkpoint);
        assert_eq!(std::fs::read_to_string(run.results()).unwrap(), "epoch\n5\n10\n", "operation {at}");
        reached
    };
    assert!((1..).take_while(|&at| one(at)).count() >= 4);
}

/// A full disk is told once, and lines that there was no room for at the end.
#[test]
fn a_full_disk_is_one_warning_and_lost_lines_are_told_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (run, mut journal) = started(dir.path());
    journal.event("before");
    let away = |log: &Path| log.with_extension("away");
    for log in [run.events(), run.results()] {
        std::fs::rename(&log, away(&log)).unwrap();
        std::fs::create_dir(&log).unwrap();
    }
    let line = "x".repeat(1 << 17);
    for _ in 0..12 {
        journal.event(&line);
        journal.row("5");
    }
    assert!(journal.take_warnings().len() <= 4, "one for each log and each way to fail");
    for log in [run.events(), run.results()] {
        std::fs::remove_dir(&log).unwrap();
        std::fs::rename(away(&log), &log).unwrap();
    }
    let error = journal.finish().unwrap_err().to_string();
    assert!(error.contains("events.jsonl lacks 5 entries") && !error.contains("results.csv"), "{error}");
    assert_eq!(std::fs::read_to_string(run.results()).unwrap(), format!("epoch\n{}", "5\n".repeat(12)));
}
