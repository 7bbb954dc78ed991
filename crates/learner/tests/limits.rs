//! Where training ends: after so much time, so many updates, without improvement; and what is there then.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::toy::{self, BATCHES, Toy, config, data, learner, no_poison};
use bellows_learner::{BatchReport, Counters, Learner, LearnerConfig, Observer, Outcome, Phase};
use bellows_runs::{Checkpoints, Member};
use burn::tensor::Device;

/// Makes every batch take a while.
struct Slow;

impl Observer for Slow {
    fn on_batch(&mut self, _: &BatchReport) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How many reports from here on say that nothing more of their epoch is trained.
fn ends(session: &mut Learner<Toy>) -> Rc<Cell<usize>> {
    let ends = Rc::<Cell<usize>>::default();
    let count = Rc::clone(&ends);
    session.on_epoch_end(move |report| count.set(count.get() + usize::from(report.over)));
    ends
}

fn rows(dir: &Path) -> usize {
    std::fs::read_to_string(dir.join("run/results.csv")).unwrap().lines().count() - 1
}

#[test]
fn the_time_stops_within_an_epoch_and_validates_once() {
    let dir = tempfile::tempdir().unwrap();
    // Five batches' time of eleven.
    let config = LearnerConfig { time: Some(0.1 / 3600.0), ..config() };
    let mut session = learner(dir.path(), config.clone(), no_poison);
    session.observe(Slow);
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
    let counters = &session.state().counters;
    assert!(counters.done && counters.epoch == 0 && counters.position < BATCHES, "batch {} of epoch {}", counters.position, counters.epoch);
    assert_eq!(rows(dir.path()), 1);
    assert!(dir.path().join("run/weights/best.safetensors").exists() && dir.path().join("run/weights/last.safetensors").exists());
    let mut again = learner(dir.path(), config, no_poison);
    again.resume().unwrap();
    assert_eq!(again.fit(&data()).unwrap(), Outcome::NothingToDo);
}

/// The time stands in place of the epochs, however few of them were asked for. What belongs to the last of these goes on as it was begun, once half of the
/// time has passed.
#[test]
fn the_time_overrides_the_epochs() {
    let dir = tempfile::tempdir().unwrap();
    let seconds = 3.6e6;
    let begin = || {
        let config = LearnerConfig { epochs: 1, time: Some(seconds / 3600.0), ..config() };
        toy::learner_of(Toy { closing: true, ..Toy::default() }, dir.path(), config, &Device::flex())
    };
    // Goes on for so many batches: the epochs that draws were told of.
    let go_on = |session: &mut Learner<Toy>, batches: usize| {
        let flag = Arc::default();
        session.observe(toy::StopAfter { after: batches, seen: 0, flag: Arc::clone(&flag) }).stop_when(flag);
        assert_eq!(session.fit(&data()).unwrap(), Outcome::Interrupted);
        session.task().planned.lock().unwrap().clone()
    };
    let mut session = begin();
    let planned = go_on(&mut session, 2 * BATCHES + 3);
    let (last, counters) = (planned[planned.len() - 1], &session.state().counters);
    assert_eq!((counters.epoch, counters.closing, last), (2, None, counters.epochs), "too early");
    assert!(planned[0] == 1 && planned.iter().filter(|&&epochs| epochs > 1).count() == 2, "{planned:?}");
    drop(session);

    let checkpoints = Checkpoints::open(dir.path().join("run/checkpoints")).unwrap();
    let mut newest = checkpoints.latest().unwrap().checkpoint.unwrap();
    let counters: Counters = serde_json::from_slice(&newest.members["state.json"]).unwrap();
    let late = Counters { elapsed_s: 0.6 * seconds, ..counters };
    newest.members.insert("state.json".into(), serde_json::to_vec(&late).unwrap());
    let members: Vec<Member<'_>> = newest.members.iter().map(|(name, bytes)| Member { name, bytes }).collect();
    checkpoints.save(newest.step, &members, &newest.info).unwrap();
    let mut session = begin();
    session.resume().unwrap();
    let planned = go_on(&mut session, 3 * BATCHES);
    let counters = &session.state().counters;
    assert_eq!((counters.epoch, counters.closing), (5, Some(last)));
    assert!(planned.len() > 3 && planned.iter().all(|&epochs| epochs == last), "{planned:?}");
    assert!(counters.epochs < last, "the estimate itself goes on: {}", counters.epochs);
}

/// Makes the weights of an epoch take longer than there is time.
struct SlowExport;

impl Observer for SlowExport {
    fn on_phase(&mut self, phase: Phase) {
        if phase == Phase::Export {
            std::thread::sleep(Duration::from_millis(8500));
        }
    }
}

#[test]
fn time_that_runs_out_while_weights_are_written_asks_for_nothing_more() {
    // An epoch takes a moment, and on a busy machine some.
    let ends_with_its_epoch = |(save, val_interval)| {
        let dir = tempfile::tempdir().unwrap();
        let config = LearnerConfig { time: Some(8.0 / 3600.0), save, val_interval, ..config() };
        let mut session = learner(dir.path(), config, no_poison);
        session.observe(SlowExport);
        assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
        let counters = &session.state().counters;
        assert!(counters.done && counters.epoch == 1 && counters.batches == BATCHES as u64, "{} batches", counters.batches);
        assert_eq!(counters.best.unwrap().1, 0);
        let csv = std::fs::read_to_string(dir.path().join("run/results.csv")).unwrap();
        let cells: Vec<Vec<&str>> = csv.lines().skip(1).map(|line| line.split(',').collect()).collect();
        // Epoch, time, two losses and what was judged.
        let told: Vec<(&str, bool, bool)> =
            cells.iter().map(|row| (row[0], !row[2].is_empty() && !row[3].is_empty(), !row[4].is_empty())).collect();
        let late = [("1", true, false), ("1", false, true)];
        assert_eq!(told, if val_interval == 1 { vec![("1", true, true)] } else { late.to_vec() });
        assert_eq!(session.task().made.lock().unwrap().len(), BATCHES + 1, "one judgement");
        assert!(std::fs::read_to_string(dir.path().join("run/weights/last.safetensors")).unwrap().starts_with("0 "));
    };
    std::thread::scope(|scope| {
        [(true, 1), (false, 1), (true, 5)].into_iter().for_each(|case| drop(scope.spawn(move || ends_with_its_epoch(case))));
    });
}

#[test]
fn so_many_updates_are_made_and_no_more() {
    let run = |max_steps| {
        let dir = tempfile::tempdir().unwrap();
        let mut session = learner(dir.path(), LearnerConfig { max_steps, ..config() }, no_poison);
        let ends = ends(&mut session);
        assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
        (session.state().counters.updates, rows(dir.path()), ends.get())
    };
    let (all, epochs, _) = run(None);
    assert_eq!(run(Some(7)), (7, 1, 1));
    assert_eq!(run(Some(all + 1)), (all, epochs, epochs));
}

#[test]
fn of_the_epochs_every_so_many_are_judged_and_the_last() {
    let run = |val_interval| {
        let dir = tempfile::tempdir().unwrap();
        let mut session = learner(dir.path(), LearnerConfig { val_interval, ..config() }, no_poison);
        assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
        let csv = std::fs::read_to_string(dir.path().join("run/results.csv")).unwrap();
        let cells: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
        let at = cells[0].iter().position(|name| *name == "val/mse").unwrap();
        let judged: Vec<bool> = cells[1..].iter().map(|row| !row[at].is_empty()).collect();
        let weights = session.layout().read(&session.layout().values(&session.ema_model())).unwrap();
        (judged, session.state().counters.best.unwrap().1, weights)
    };
    let ((all, _, whole), (some, best, same)) = (run(1), run(3));
    assert_eq!((all, some), (vec![true; 4], vec![false, false, true, true]));
    assert!(best >= 2, "epoch {best} was not judged");
    assert!(whole == same, "nothing else is changed by it");
    // Patience is of epochs: five have passed without improvement when six have been judged twice.
    fn never_good(_: usize, position: usize) -> bool {
        position == toy::EVALUATION
    }
    let dir = tempfile::tempdir().unwrap();
    let mut session = learner(dir.path(), LearnerConfig { epochs: 12, val_interval: 3, patience: 5, ..config() }, never_good);
    assert_eq!(session.fit(&data()).unwrap(), Outcome::EarlyStopped);
    assert_eq!((session.state().counters.epoch, rows(dir.path())), (6, 6));
    assert_eq!(said(dir.path()), "stopped early: no improvement for 6 epochs (patience 5)");
    // With evaluations within an epoch it is of these, and those after an epoch are no more than one each.
    let dir = tempfile::tempdir().unwrap();
    let within = LearnerConfig { epochs: 30, val_interval: 2, eval_steps: Some(1), patience: 20, ..config() };
    let mut session = learner(dir.path(), within, never_good);
    assert_eq!(session.fit(&data()).unwrap(), Outcome::EarlyStopped);
    assert_eq!(said(dir.path()), "stopped early: no improvement for 20 evaluations (patience 20)");
    let events = std::fs::read_to_string(dir.path().join("run/events.jsonl")).unwrap();
    assert_eq!(events.lines().filter(|line| line.contains("\"val/mse\"")).count(), 20);
    let refused = LearnerConfig { val_interval: 0, ..config() }.validate().unwrap_err().to_string();
    assert!(refused.contains("val_interval") && refused.contains("at least 1"), "{refused}");
}

/// The message of the `stop` that a run has told.
fn said(dir: &Path) -> String {
    let text = std::fs::read_to_string(dir.join("run/events.jsonl")).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let stops: Vec<_> = events.filter(|event| event["event"] == "stop").collect();
    assert_eq!(stops.len(), 1, "{stops:?}");
    stops[0]["message"].as_str().unwrap().into()
}

/// Only the first epoch's evaluations are numbers.
fn worse_later(epoch: usize, position: usize) -> bool {
    epoch > 0 && position == toy::EVALUATION
}

#[test]
fn a_run_that_gets_no_better_says_so() {
    let stopped = |config: LearnerConfig| {
        let dir = tempfile::tempdir().unwrap();
        let mut session = learner(dir.path(), LearnerConfig { epochs: 12, ..config }, worse_later);
        assert_eq!(session.fit(&data()).unwrap(), Outcome::EarlyStopped);
        said(dir.path())
    };
    let once = stopped(LearnerConfig { patience: 1, ..config() });
    assert_eq!(once, "stopped early: no improvement for 1 epoch (patience 1), best was epoch 1");
    // More than there are in an epoch, so that it stops in a later one.
    let within = stopped(LearnerConfig { patience: 20, eval_steps: Some(1), ..config() });
    assert_eq!(within, "stopped early: no improvement for 20 evaluations (patience 20), best was epoch 1");
}

#[test]
fn without_saving_the_best_and_the_last_weights_are_there() {
    // The best epoch is not the last one: its weights are there all the same.
    let dir = tempfile::tempdir().unwrap();
    let mut session = learner(dir.path(), LearnerConfig { save: false, ..config() }, worse_later);
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
    assert_eq!(session.state().counters.best.unwrap().1, 0);
    let weights = |name: &str| std::fs::read_to_string(dir.path().join("run/weights").join(name)).unwrap();
    assert!(weights("best.safetensors").starts_with("0 ") && weights("last.safetensors").starts_with("3 "));
    let saved: Vec<_> = std::fs::read_dir(dir.path().join("run/checkpoints")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(saved.len(), 2, "the first and the last: {saved:?}");
}

#[test]
fn an_evaluation_within_an_epoch_leaves_the_batches_as_they_were() {
    let run = |eval_steps| {
        let dir = tempfile::tempdir().unwrap();
        let mut session = learner(dir.path(), LearnerConfig { eval_steps, workers: 2, ..config() }, no_poison);
        let ends = ends(&mut session);
        session.fit(&data()).unwrap();
        assert_eq!(ends.get(), toy::EPOCHS, "none of an epoch that goes on");
        let weights = session.layout().read(&session.layout().values(&session.ema_model())).unwrap();
        let mut made = session.task().made.lock().unwrap().clone();
        // Those of evaluations are larger.
        made.retain(|batch| batch.len() <= toy::BATCH);
        made.sort_unstable();
        (weights, rows(dir.path()), made)
    };
    let ((whole, epochs, once), (often, more, all)) = (run(None), run(Some(2)));
    assert!(more > epochs);
    assert!(whole == often);
    assert_eq!(all, once, "no batch is made twice");
}
