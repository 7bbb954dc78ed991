//! A run that was interrupted and resumed ends in the same bits as one that was not (contract P3, test T4).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::toy::{self, BATCHES, EPOCHS, Poison, StopAfter, Toy, config, data, ending, learner, no_poison};
use bellows_learner::{Identity, LearnError, Learner, LearnerConfig, OptimizerKind, Outcome};
use bellows_runs::{Checkpoints, Member, RunDir};
use burn::tensor::Device;

fn uninterrupted(config: LearnerConfig, poison: Poison) -> toy::Ending {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(learner(dir.path(), config, poison).fit(&data()).unwrap(), Outcome::Finished);
    ending(dir.path())
}

/// Stops after each of `stops` batches (counted per session), resumes, and compares the ends.
fn interrupted_equals(config: LearnerConfig, poison: Poison, stops: &[usize], what: &str) {
    let expected = uninterrupted(config.clone(), poison);
    let dir = tempfile::tempdir().unwrap();
    for &after in stops {
        let mut session = learner(dir.path(), config.clone(), poison);
        session.resume().unwrap();
        let flag = Arc::new(AtomicBool::new(false));
        session.observe(StopAfter { after, seen: 0, flag: flag.clone() }).stop_when(flag);
        assert_eq!(session.fit(&data()).unwrap(), Outcome::Interrupted, "{what}");
    }
    let mut last = learner(dir.path(), config, poison);
    last.resume().unwrap();
    assert_eq!(last.fit(&data()).unwrap(), Outcome::Finished, "{what}");
    let got = ending(dir.path());
    assert_eq!(got.1, expected.1, "{what}: results.csv");
    for ((name, bytes), (_, other)) in got.0.iter().zip(&expected.0) {
        assert!(bytes == other, "{what}: {name} differs");
    }
    assert!(got.0.len() == expected.0.len() && got.2 == expected.2, "{what}");
}

#[test]
fn at_any_batch_the_run_can_stop_and_go_on() {
    // Warm-up lasts 100 batches of 48 in all, accumulation is 1 to 3 and windows straddle epochs.
    for after in [1, 2, 5, 7, BATCHES - 1, BATCHES, BATCHES + 1, 2 * BATCHES + 3] {
        interrupted_equals(config(), no_poison, &[after], &format!("after {after}"));
    }
}

/// A service that pauses and goes on, in one process: fresh, and after a process before.
#[test]
fn a_learner_that_was_stopped_goes_on_by_itself() {
    let (expected, dir) = (uninterrupted(config(), no_poison), tempfile::tempdir().unwrap());
    for last in [false, true] {
        let mut session = learner(dir.path(), config(), no_poison);
        session.resume().unwrap();
        for after in [3, BATCHES] {
            let flag = Arc::new(AtomicBool::new(false));
            session.observe(StopAfter { after, seen: 0, flag: flag.clone() }).stop_when(flag);
            assert_eq!(session.fit(&data()).unwrap(), Outcome::Interrupted);
        }
        if last {
            session.stop_when(Arc::default());
            assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
        }
    }
    let got = ending(dir.path());
    assert_eq!(got.1, expected.1, "results.csv");
    assert!(got.0 == expected.0 && got.2 == expected.2);
    let events = std::fs::read_to_string(dir.path().join("run/events.jsonl")).unwrap();
    assert_eq!(["start", "resume"].map(|kind| events.matches(&format!("\"{kind}\"")).count()), [1, 4], "{events}");
    let aside = std::fs::read_dir(dir.path().join("run/checkpoints")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(aside.into_iter().all(|name| !name.to_string_lossy().contains("abandoned")));
}

#[test]
fn after_warm_up_and_inside_full_windows() {
    let mut long = config();
    long.epochs = 12;
    for after in [101, 110, 111, 112, 9 * BATCHES] {
        interrupted_equals(long.clone(), no_poison, &[after], &format!("after {after}"));
    }
}

#[test]
fn many_interruptions_workers_and_optimizers() {
    use OptimizerKind::{Adafactor, Adam, AdamW, Adamax, Lion, NAdam, RAdam, RmsProp, Sgd};
    let kinds = [(0, Sgd), (1, AdamW), (4, Adam), (0, Adafactor), (1, Lion), (0, NAdam), (1, RAdam), (0, Adamax), (1, RmsProp)];
    for (workers, kind) in kinds {
        let mut config = config();
        (config.workers, config.optimizer) = (workers, kind);
        interrupted_equals(config, no_poison, &[3, 3, 9, 1, 10], &format!("{workers} workers, {kind:?}"));
    }
}

#[test]
fn workers_do_not_change_the_bits() {
    let one = uninterrupted(config(), no_poison);
    let mut four = config();
    four.workers = 4;
    assert!(one.0 == uninterrupted(four, no_poison).0);
}

#[test]
fn after_a_skipped_batch() {
    fn poison(epoch: usize, position: usize) -> bool {
        epoch == 1 && position == 2
    }
    interrupted_equals(config(), poison, &[BATCHES + 1], "right before the skip");
    interrupted_equals(config(), poison, &[BATCHES + 4], "after the skip");
}

#[test]
fn a_stop_before_the_evaluation_is_made_up_for() {
    interrupted_equals(config(), no_poison, &[BATCHES], "end of epoch, evaluation still to do");
}

#[test]
fn a_finished_run_has_nothing_to_do_and_another_model_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    learner(dir.path(), config(), no_poison).fit(&data()).unwrap();
    let mut again = learner(dir.path(), config(), no_poison);
    again.resume().unwrap();
    assert_eq!(again.fit(&data()).unwrap(), Outcome::NothingToDo);
    assert_eq!(again.state().counters.epoch, EPOCHS);
    let run = RunDir::open(dir.path().join("run")).unwrap();
    let identity = Identity::default().with("model", "another");
    let mut other = Learner::new(Toy::default(), toy::net(&Device::flex()), &Device::flex(), config(), run, identity).unwrap();
    let error = other.resume().unwrap_err();
    assert!(matches!(error, LearnError::Mismatch { .. }) && error.to_string().contains("the model has changed"), "{error}");
}

/// Whoever makes a run directory can seal what stands in it, also in one of a run that is over.
#[test]
fn a_run_that_would_write_outside_of_its_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    learner(dir.path(), config(), no_poison).fit(&data()).unwrap();
    let outside = dir.path().join("outside");
    let checkpoints = Checkpoints::open(dir.path().join("run/checkpoints")).unwrap();
    let newest = checkpoints.latest().unwrap().checkpoint.unwrap();
    let members: Vec<Member<'_>> = newest.members.iter().map(|(name, bytes)| Member { name, bytes }).collect();
    let forged = [&members[..], &[Member { name: "unwritten-0", bytes: b"forged" }]].concat();
    // Its bytes, and weights that are made of a checkpoint.
    for place in [serde_json::json!("unwritten-0"), newest.step.into()] {
        for path in [outside.to_str().unwrap(), "../outside"] {
            let mut info = newest.info.clone();
            info.insert("unwritten".into(), serde_json::json!({ path: place.clone() }));
            checkpoints.save(newest.step, &forged, &info).unwrap();
            let error = learner(dir.path(), config(), no_poison).resume().unwrap_err();
            assert!(matches!(error, LearnError::Mismatch { .. }) && error.to_string().contains(path), "{error}");
            assert!(!outside.exists());
        }
    }
}

/// A run never silently starts again at 0.
#[test]
fn a_run_that_has_lost_its_checkpoints_is_refused_and_one_that_never_had_any_begins() {
    let dir = tempfile::tempdir().unwrap();
    learner(dir.path(), config(), no_poison).fit(&data()).unwrap();
    let (run, rows) = (dir.path().join("run"), std::fs::read(dir.path().join("run/results.csv")).unwrap());
    for entry in std::fs::read_dir(run.join("checkpoints")).unwrap() {
        std::fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    let error = learner(dir.path(), config(), no_poison).resume().unwrap_err();
    assert!(error.to_string().contains("no checkpoint is left"), "{error}");
    assert!(std::fs::read(run.join("results.csv")).unwrap() == rows);
    // In its first epoch it had no row yet.
    std::fs::write(run.join("results.csv"), rows.split_inclusive(|&byte| byte == b'\n').next().unwrap()).unwrap();
    let error = learner(dir.path(), config(), no_poison).resume().unwrap_err();
    assert!(error.to_string().contains("no checkpoint is left"), "{error}");
    // Killed before there was a first one.
    let events = std::fs::read_to_string(run.join("events.jsonl")).unwrap();
    let begun: String = events.split_inclusive('\n').take_while(|line| !line.contains("\"event\":\"step\"")).collect();
    assert!(begun.contains("\"event\":\"start\""), "{begun}");
    std::fs::write(run.join("events.jsonl"), begun).unwrap();
    let mut session = learner(dir.path(), config(), no_poison);
    session.resume().unwrap();
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
    let lines = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte == b'\n').count();
    assert_eq!(lines(&std::fs::read(run.join("results.csv")).unwrap()), lines(&rows));
}

#[test]
fn the_seed_matters() {
    let mut other = config();
    other.seed = 4;
    assert!(uninterrupted(config(), no_poison).0 != uninterrupted(other, no_poison).0);
}

#[test]
fn three_bad_batches_roll_back_and_the_fourth_roll_back_ends_the_run() {
    fn poison(epoch: usize, position: usize) -> bool {
        epoch >= 1 && position >= 1
    }
    let dir = tempfile::tempdir().unwrap();
    let mut session = learner(dir.path(), config(), poison);
    let error = session.fit(&data()).unwrap_err();
    assert!(matches!(error, LearnError::Diverged { rollbacks: 3, .. }), "{error}");
    assert!(error.to_string().contains("sample-"), "the last batch's samples are named: {error}");
    assert_eq!(session.state().counters.lr_scale, 0.125);
    let events = std::fs::read_to_string(dir.path().join("run/events.jsonl")).unwrap();
    assert_eq!(events.matches("\"event\":\"rollback\"").count(), 3);
    // Three times three that are passed over, the two that are left of the epoch, three of the next.
    assert_eq!(events.matches("\"event\":\"skip\"").count(), 14);
}
