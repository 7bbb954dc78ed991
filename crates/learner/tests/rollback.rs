//! Going back after batches that are not finite: to a place that the settings chose, and past the data that did it (contract P3 and P6).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::toy::{self, BATCH, BATCHES, Poison, Toy, config, data, ending, learner, learner_of};
use bellows_learner::{BatchReport, LearnerConfig, Observer, Outcome, Place, Schedule, UpdateSchedule};
use burn::tensor::Device;

/// Three batches of the second epoch.
fn poison(epoch: usize, position: usize) -> bool {
    epoch == 1 && (4..7).contains(&position)
}

fn events(dir: &Path, kind: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(dir.join("run/events.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()).filter(|e| e["event"] == kind).collect()
}

#[test]
fn the_batches_that_did_it_do_not_come_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut session = learner(dir.path(), config(), poison);
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
    let counters = &session.state().counters;
    let place = |position| Place { epoch: 1, position };
    assert_eq!((counters.rollbacks, counters.skipped, counters.lr_scale), (1, 3, 0.5));
    assert_eq!(counters.passed_over, [(place(4), place(6))]);
    // Back to the edge of the epoch; then the same epoch without three batches.
    let trained = |e: &serde_json::Value| (e["epoch"].as_u64().unwrap(), e["batch"].as_u64().unwrap());
    let second: Vec<u64> =
        events(dir.path(), "step").iter().map(trained).filter(|(epoch, _)| *epoch == 2).map(|(_, batch)| batch).collect();
    let expected: Vec<u64> = (1..=4).chain(1..=4).chain(8..=BATCHES as u64).collect();
    assert_eq!(second, expected);
    let told = &events(dir.path(), "rollback")[0]["message"];
    assert!(
        told.as_str().unwrap().contains("back to epoch 2 batch 0") && told.as_str().unwrap().contains("batches 5 of epoch 2 to 7"),
        "{told}"
    );
}

/// Taken out or not read: an update comes with the last batch of its window that there is, and the next window begins where it would have.
#[test]
fn windows_of_updates_are_shorter_without_what_is_left_out() {
    let cases: [(Toy, &[u64]); 3] = [
        (Toy { poison, ..Toy::default() }, &[4, 4, 8, 12]),
        (Toy { poison: |epoch, position| epoch == 1 && (5..8).contains(&position), ..Toy::default() }, &[4, 4, 5, 12]),
        (Toy { unreadable: |epoch, position| (epoch, position) == (1, 5), ..Toy::default() }, &[4, 8, 12]),
    ];
    for (toy, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        let schedule = UpdateSchedule { lr: 0.01, batch: BATCH, accumulate: 4, ..UpdateSchedule::default() };
        let config = LearnerConfig { schedule: Schedule::Updates(schedule), ..config() };
        let mut session = learner_of(toy, dir.path(), config, &Device::flex());
        assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
        let updates = events(dir.path(), "step").into_iter().filter(|e| e["epoch"] == 2 && e["grad_norm"].is_number());
        let updated: Vec<u64> = updates.map(|e| e["batch"].as_u64().unwrap()).collect();
        assert_eq!(updated, expected);
        let counters = &session.state().counters;
        assert_eq!((counters.pending, counters.updates), (0, 12), "three an epoch, and nothing is left of the last one");
    }
}

/// The gradient norms of a session's updates.
struct Norms(Rc<RefCell<Vec<f64>>>);

impl Observer for Norms {
    fn on_batch(&mut self, report: &BatchReport) {
        self.0.borrow_mut().extend(report.grad_norm);
    }
}

/// Of every second batch there is a line, and every second one completes an update: never the same.
#[test]
fn a_line_tells_the_norm_of_the_newest_update_since_the_line_before() {
    let dir = tempfile::tempdir().unwrap();
    let schedule = UpdateSchedule { lr: 0.01, batch: BATCH, accumulate: 2, ..UpdateSchedule::default() };
    let config = LearnerConfig { schedule: Schedule::Updates(schedule), log_every: 2, ..config() };
    let mut session = learner(dir.path(), config, toy::no_poison);
    let norms = Rc::new(RefCell::new(Vec::new()));
    session.observe(Norms(Rc::clone(&norms)));
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
    let made = norms.borrow();
    // Nothing was updated before the first line; the last update comes after the last one.
    let expected: Vec<Option<f64>> = std::iter::once(None).chain(made.iter().copied().map(Some)).take(made.len()).collect();
    let told: Vec<Option<f64>> = events(dir.path(), "step").iter().map(|event| event["grad_norm"].as_f64()).collect();
    assert!(told == expected && made.len() == toy::EPOCHS * BATCHES / 2, "{told:?} of {made:?}");
}

/// Spoils the checkpoint of the first epoch's end while the second one is trained: a file of it, or all.
struct Spoils {
    checkpoints: PathBuf,
    whole: bool,
}

impl Observer for Spoils {
    fn on_batch(&mut self, report: &BatchReport) {
        if (report.epoch, report.position) != (1, 2) {
            return;
        }
        let of_edge = format!("step-{BATCHES:09}");
        let all = std::fs::read_dir(&self.checkpoints).unwrap().map(|entry| entry.unwrap().path());
        let mut spoilt = 0;
        for path in all.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&of_edge)) {
            if self.whole {
                std::fs::remove_dir_all(&path).unwrap();
            } else {
                std::fs::write(path.join("state.json"), "{}").unwrap();
            }
            spoilt += 1;
        }
        assert!(spoilt > 0, "there is none of step {BATCHES}");
    }
}

/// Damaged on the disk, or pruned before the run was resumed from an older one.
#[test]
fn a_planned_checkpoint_that_is_no_more_is_done_without() {
    for (whole, why) in [(false, "is damaged: state.json has 2 bytes"), (true, "no checkpoint of step 12")] {
        let dir = tempfile::tempdir().unwrap();
        let often = LearnerConfig { checkpoint_minutes: 0.0, ..config() };
        let mut session = learner(dir.path(), often, poison);
        session.observe(Spoils { checkpoints: dir.path().join("run/checkpoints"), whole });
        assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished, "{why}");
        let counters = &session.state().counters;
        let place = |position| Place { epoch: 1, position };
        assert_eq!((counters.rollbacks, counters.skipped, counters.lr_scale), (1, 3, 0.5));
        assert_eq!(counters.passed_over, [(place(4), place(6))]);
        assert_eq!((counters.skipped_in_a_row, counters.trouble_from), (0, None), "the newest checkpoint was in the middle of it");
        let warned = events(dir.path(), "warning");
        let told = warned.iter().map(|event| event["message"].as_str().unwrap()).collect::<Vec<_>>();
        assert!(matches!(&told[..], [told] if told.contains(why) && told.ends_with("the newest checkpoint that is intact")), "{told:?}");
    }
}

/// Where a run ends in bits, whose steps' names alone may differ.
fn end_of(config: LearnerConfig, poison: Poison) -> toy::Ending {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(learner(dir.path(), config, poison).fit(&data()).unwrap(), Outcome::Finished);
    ending(dir.path())
}

#[test]
fn the_clock_changes_no_number() {
    let often = LearnerConfig { checkpoint_minutes: 0.0, ..config() };
    assert!(end_of(often, poison) == end_of(config(), poison), "a checkpoint that the clock chose was gone back to");
}

#[test]
fn a_resumed_run_goes_back_to_the_same_place() {
    let expected = end_of(config(), poison);
    for after in [BATCHES + 2, BATCHES + 4, BATCHES + 6] {
        let dir = tempfile::tempdir().unwrap();
        let flag = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let mut session = learner(dir.path(), config(), poison);
        session.observe(toy::StopAfter { after, seen: 0, flag: flag.clone() }).stop_when(flag);
        assert_eq!(session.fit(&data()).unwrap(), Outcome::Interrupted);
        let mut session = learner(dir.path(), config(), poison);
        session.resume().unwrap();
        assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
        assert!(ending(dir.path()) == expected, "after {after}");
    }
}

#[test]
fn a_statistic_that_overflows_within_a_window_never_stays() {
    fn overflow(epoch: usize, position: usize) -> bool {
        (epoch, position) == (1, 4)
    }
    // A checkpoint after every batch: none of them may hold what is not finite, and none may be refused.
    let dir = tempfile::tempdir().unwrap();
    let mut long = LearnerConfig { checkpoint_minutes: 0.0, ..config() };
    let bellows_learner::Schedule::Epochs(schedule) = &mut long.schedule else { unreachable!() };
    schedule.warmup_epochs = 0.0;
    let toy = Toy { overflow, ..Toy::default() };
    let mut session = learner_of(toy, dir.path(), long, &Device::flex());
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
    let skips = events(dir.path(), "skip");
    assert_eq!(skips.len(), 1);
    assert_eq!(skips[0]["reason"], "running statistic");
    assert_eq!(events(dir.path(), "warning").len(), 0);
}
