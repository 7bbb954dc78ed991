//! What a run does when something around it fails: data that cannot be read, an evaluation that cannot be made, a disk that does not write.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::toy::{self, BATCHES, Poison, Toy, config, data, ending, learner, learner_of, no_poison};
use bellows_exit::{Coded, Exit};
use bellows_learner::{EpochReport, GradBuffer, LearnError, Learner, LearnerConfig, Notice, Observer, Outcome, RunFile, RunInfo};
use bellows_runs::RunDir;
use burn::tensor::Device;

fn start(toy: Toy, dir: &Path) -> Learner<Toy> {
    learner_of(toy, dir, config(), &Device::flex())
}

/// Notices by kind.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<(String, String)>>>);

impl Observer for Told {
    fn on_notice(&mut self, notice: &Notice) {
        self.0.lock().unwrap().push((notice.kind.into(), notice.message.clone()));
    }
}

impl Told {
    fn of(&self, kind: &str) -> Vec<String> {
        self.0.lock().unwrap().iter().filter(|(k, _)| k == kind).map(|(_, message)| message.clone()).collect()
    }
}

#[test]
fn a_model_with_a_clone_in_it_is_refused() {
    let (dir, device) = (tempfile::tempdir().unwrap(), Device::flex());
    let run = RunDir::create(dir.path(), "run", true).unwrap();
    let refused = Learner::new(Toy::default(), toy::net(&device).with_a_clone(), &device, toy::config(), run, toy::identity());
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("norm.gamma and norm.beta are one parameter"), "{refused}");
}

#[test]
fn a_batch_of_which_nothing_can_be_read_is_skipped_and_counted() {
    let unreadable: Poison = |epoch, position| epoch == 1 && [3, 4, 9].contains(&position);
    let dir = tempfile::tempdir().unwrap();
    let told = Told::default();
    let mut session = start(Toy { unreadable, ..Toy::default() }, dir.path());
    session.observe(told.clone());
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
    assert_eq!((session.state().counters.unreadable, session.state().counters.skipped), (3, 0));
    let said = told.of("unreadable");
    assert!(said.len() == 3 && said[0].contains("batch 4 of epoch 2") && said[0].contains("scratched"), "{said:?}");
}

#[test]
fn a_name_of_many_samples_is_told_once() {
    let poison: Poison = |epoch, position| (epoch, position) == (0, 2);
    let dir = tempfile::tempdir().unwrap();
    let told = Told::default();
    let mut session = start(Toy { poison, name: |_| "micro-batch 3".into(), ..Toy::default() }, dir.path());
    session.observe(told.clone());
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
    let said = told.of("skip");
    assert!(said.len() == 1 && said[0].ends_with("is not finite (micro-batch 3)"), "{said:?}");
}

/// The data are away, for two sessions: what was trained before is kept, and none of the batches is left out when they are there again.
#[test]
fn three_in_a_row_end_the_run_which_loses_nothing() {
    let unreadable: Poison = |epoch, position| epoch == 1 && position >= 3;
    let whole = tempfile::tempdir().unwrap();
    start(Toy::default(), whole.path()).fit(&data()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut session = start(Toy { unreadable, ..Toy::default() }, dir.path());
        session.resume().unwrap();
        let error = session.fit(&data()).unwrap_err();
        assert!(matches!(&error, LearnError::Task { what, .. } if what.contains("batch 6 of epoch 2")), "{error}");
    }
    let mut mended = start(Toy::default(), dir.path());
    mended.resume().unwrap();
    let counters = &mended.state().counters;
    assert_eq!((counters.epoch, counters.position, counters.unreadable), (1, 3, 0));
    assert_eq!(mended.fit(&data()).unwrap(), Outcome::Finished);
    assert!(ending(dir.path()) == ending(whole.path()));
}

/// A batch that a checkpoint has been made behind stays left out.
#[test]
fn a_checkpoint_between_unreadable_batches_stands() {
    let unreadable: Poison = |epoch, position| epoch == 1 && position >= 3;
    let dir = tempfile::tempdir().unwrap();
    let often = || LearnerConfig { checkpoint_minutes: 0.0, ..config() };
    let mut session = learner_of(Toy { unreadable, ..Toy::default() }, dir.path(), often(), &Device::flex());
    session.fit(&data()).unwrap_err();
    let mut mended = learner_of(Toy::default(), dir.path(), often(), &Device::flex());
    mended.resume().unwrap();
    let counters = &mended.state().counters;
    assert_eq!((counters.epoch, counters.position, counters.unreadable), (1, 5, 2));
    assert_eq!(mended.fit(&data()).unwrap(), Outcome::Finished);
}

#[test]
fn an_evaluation_that_fails_costs_nothing_that_was_trained() {
    let whole = tempfile::tempdir().unwrap();
    start(Toy::default(), whole.path()).fit(&data()).unwrap();
    let bad_evaluation: Poison = |epoch, _| epoch == 1;
    let dir = tempfile::tempdir().unwrap();
    let error = start(Toy { bad_evaluation, ..Toy::default() }, dir.path()).fit(&data()).unwrap_err();
    assert!(matches!(&error, LearnError::Task { what, .. } if what == "evaluation"), "{error}");
    let mut mended = start(Toy::default(), dir.path());
    mended.resume().unwrap();
    assert_eq!((mended.state().counters.epoch, mended.state().counters.position), (1, BATCHES), "the epoch is trained");
    assert_eq!(mended.fit(&data()).unwrap(), Outcome::Finished);
    assert!(ending(dir.path()) == ending(whole.path()));
}

#[test]
fn an_item_that_is_no_number_is_kept_and_read_back() {
    let bad_item: Poison = |epoch, position| (epoch, position) == (0, 2);
    let toy = || Toy { bad_item, ..Toy::default() };
    let whole = tempfile::tempdir().unwrap();
    start(toy(), whole.path()).fit(&data()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let flag = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut session = start(toy(), dir.path());
    session.observe(toy::StopAfter { after: 5, seen: 0, flag: flag.clone() }).stop_when(flag);
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Interrupted);
    assert!(session.state().counters.item_sums[1].is_nan() && session.state().counters.item_sums[0].is_finite());
    let mut resumed = start(toy(), dir.path());
    resumed.resume().unwrap();
    assert_eq!(resumed.fit(&data()).unwrap(), Outcome::Finished);
    assert!(ending(dir.path()) == ending(whole.path()));
    assert!(std::fs::read_to_string(dir.path().join("run/results.csv")).unwrap().contains(",nan,"));
}

/// A state that is not finite is no checkpoint.
#[test]
fn what_is_not_finite_is_never_encoded() {
    let dir = tempfile::tempdir().unwrap();
    let mut session = learner(dir.path(), config(), no_poison);
    session.fit(&data()).unwrap();
    let layout = session.layout();
    let state = session.state();
    let infinite = |t: &burn::tensor::Tensor<1>| t.clone().mul_scalar(f32::INFINITY).add_scalar(f32::INFINITY);
    let with = |change: &dyn Fn(&mut bellows_learner::RunState<toy::Net>)| {
        let mut changed = bellows_learner::RunState {
            model: state.model.clone(),
            ema: state.ema.clone(),
            optimizer: state.optimizer.clone(),
            grads: state.grads.clone(),
            counters: state.counters.clone(),
        };
        change(&mut changed);
        changed.encode(layout).unwrap_err().to_string()
    };
    let values = || layout.scatter(&state.ema.values);
    let ema = with(&|s| {
        let mut values = values();
        values[2] = values[2].as_ref().map(infinite);
        s.ema.values = layout.gather(values);
    });
    let name = &layout.entries[2].name;
    assert!(ema.starts_with("ema.safetensors") && ema.contains(name.as_str()), "{ema}");
    let moments = with(&|s| s.optimizer.first[0] = s.ema.values[0].as_ref().map(infinite));
    assert!(moments.starts_with("optimizer.safetensors") && moments.contains("first."), "{moments}");
    let window = with(&|s| s.grads = GradBuffer::of(layout, values().iter().map(|v| v.as_ref().map(infinite)).collect()));
    assert!(window.starts_with("grads.safetensors"), "{window}");
}

/// `results.csv` and the weights cannot be written, checkpoints can.
#[test]
fn rows_and_weights_that_cannot_be_written_cost_neither_checkpoint_nor_run() {
    let dir = tempfile::tempdir().unwrap();
    let told = Told::default();
    let mut session = learner(dir.path(), config(), no_poison);
    for occupied in ["results.csv/x", "weights/last.safetensors/x"] {
        std::fs::create_dir_all(dir.path().join("run").join(occupied)).unwrap();
    }
    session.observe(told.clone());
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
    let error = session.finish().unwrap_err();
    assert!(matches!(error, LearnError::Unwritten(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("training is saved") && text.contains("results.csv") && text.contains("last.safetensors"), "{text}");
    assert!(session.state().counters.done && told.of("warning").len() > 2);
    // The rows are in the checkpoint: where there is room again, they are all there.
    for occupied in ["results.csv", "weights/last.safetensors"] {
        std::fs::remove_dir_all(dir.path().join("run").join(occupied)).unwrap();
    }
    session.finish().unwrap();
    let whole = tempfile::tempdir().unwrap();
    learner(whole.path(), config(), no_poison).fit(&data()).unwrap();
    assert!(ending(dir.path()) == ending(whole.path()));
}

#[test]
fn logs_that_are_gone_or_shorter_are_mended() {
    let whole = tempfile::tempdir().unwrap();
    learner(whole.path(), config(), no_poison).fit(&data()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let flag = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut session = learner(dir.path(), config(), no_poison);
    session.observe(toy::StopAfter { after: 2 * BATCHES + 3, seen: 0, flag: flag.clone() }).stop_when(flag);
    session.fit(&data()).unwrap();
    std::fs::write(dir.path().join("run/events.jsonl"), "").unwrap();
    std::fs::remove_file(dir.path().join("run/results.csv")).unwrap();
    let told = Told::default();
    let mut session = learner(dir.path(), config(), no_poison);
    session.resume().unwrap();
    session.observe(told.clone());
    session.fit(&data()).unwrap();
    assert_eq!(told.of("warning").len(), 2, "{:?}", told.of("warning"));
    assert!(ending(dir.path()) == ending(whole.path()));
}

/// A kill between a checkpoint and the weights that are written after it.
#[test]
fn weights_that_a_dead_process_did_not_write_are_written_by_the_next() {
    let weights = |dir: &Path, name: &str| std::fs::read(dir.join("run/weights").join(name)).unwrap();
    let forget = |dir: &Path| {
        ["best", "last"].iter().for_each(|name| std::fs::remove_file(dir.join(format!("run/weights/{name}.safetensors"))).unwrap())
    };
    // In the middle of a run: its first epoch is its best, for what comes later is no number.
    let worse: Poison = |epoch, position| epoch > 0 && position == toy::EVALUATION;
    let (whole, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    learner(whole.path(), config(), worse).fit(&data()).unwrap();
    let flag = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut session = learner(dir.path(), config(), worse);
    session.observe(toy::StopAfter { after: BATCHES + 1, seen: 0, flag: flag.clone() }).stop_when(flag);
    session.fit(&data()).unwrap();
    forget(dir.path());
    // The checkpoint after the epoch is the newest one again.
    let newest = std::fs::read_dir(dir.path().join("run/checkpoints")).unwrap().map(|e| e.unwrap().path()).max().unwrap();
    std::fs::remove_dir_all(newest).unwrap();
    let mut session = learner(dir.path(), config(), worse);
    session.resume().unwrap();
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
    assert_eq!(weights(dir.path(), "best.safetensors"), weights(whole.path(), "best.safetensors"));
    // At the end of one, and when nothing was left to write, for somebody has deleted them.
    for _ in 0..2 {
        forget(dir.path());
        let mut session = learner(dir.path(), config(), worse);
        session.resume().unwrap();
        assert_eq!(session.fit(&data()).unwrap(), Outcome::NothingToDo);
        session.finish().unwrap();
        for name in ["best.safetensors", "last.safetensors"] {
            assert_eq!(weights(dir.path(), name), weights(whole.path(), name));
        }
    }
}

/// The best weights have no room while checkpoints have; another process goes on, from a later checkpoint.
#[test]
fn best_weights_that_could_not_be_written_are_written_by_the_next_process() {
    let worse: Poison = |epoch, position| epoch > 0 && position == toy::EVALUATION;
    let (whole, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    learner(whole.path(), config(), worse).fit(&data()).unwrap();
    let best = |dir: &Path| dir.join("run/weights/best.safetensors");
    let flag = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut session = learner(dir.path(), config(), worse);
    std::fs::create_dir_all(best(dir.path()).join("x")).unwrap();
    session.observe(toy::StopAfter { after: 2 * BATCHES + 3, seen: 0, flag: flag.clone() }).stop_when(flag);
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Interrupted);
    assert!(session.finish().unwrap_err().to_string().contains("best.safetensors"));
    drop(session);
    std::fs::remove_dir_all(best(dir.path())).unwrap();
    let mut session = learner(dir.path(), config(), worse);
    session.resume().unwrap();
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
    session.finish().unwrap();
    assert_eq!(std::fs::read(best(dir.path())).unwrap(), std::fs::read(best(whole.path())).unwrap());
    assert!(ending(dir.path()) == ending(whole.path()));
}

/// Takes the place of the checkpoints in the second epoch, until so many batches later.
struct NoRoom {
    run: PathBuf,
    batches: usize,
}

impl Observer for NoRoom {
    fn on_batch(&mut self, report: &bellows_learner::BatchReport) {
        if report.step as usize == BATCHES + 1 {
            std::fs::rename(self.run.join("checkpoints"), self.run.join("away")).unwrap();
            std::fs::write(self.run.join("checkpoints"), "").unwrap();
        }
        if report.step as usize == BATCHES + self.batches {
            make_room(&self.run);
        }
    }
}

fn make_room(run: &Path) {
    std::fs::remove_file(run.join("checkpoints")).unwrap();
    std::fs::rename(run.join("away"), run.join("checkpoints")).unwrap();
}

/// The epoch of which `weights/last` is.
fn last_epoch(run: &Path) -> String {
    std::fs::read_to_string(run.join("weights/last.safetensors")).unwrap().split(' ').next().unwrap().to_owned()
}

#[test]
fn weights_of_checkpoints_that_were_not_made_are_not_written() {
    let whole = tempfile::tempdir().unwrap();
    learner(whole.path(), config(), no_poison).fit(&data()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let mut session = learner(dir.path(), config(), no_poison);
    session.observe(NoRoom { run: run.clone(), batches: usize::MAX / 2 });
    let error = session.fit(&data()).unwrap_err();
    assert!(matches!(&error, LearnError::FinalSave(_)) && error.exit() == Exit::FinalSave, "{error}");
    session.finish().unwrap();
    assert_eq!(last_epoch(&run), "0", "what a run would go on from is of the first epoch");
    make_room(&run);
    let mut session = learner(dir.path(), config(), no_poison);
    session.resume().unwrap();
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
    assert!(ending(dir.path()) == ending(whole.path()));
}

#[test]
fn a_second_fit_makes_the_checkpoint_that_the_first_could_not() {
    /// Takes the place of checkpoints away when the first one begins, and writes down which are made.
    struct Away(Option<PathBuf>, Arc<Mutex<Vec<u64>>>);
    impl Observer for Away {
        fn on_start(&mut self, _: &RunInfo) {
            if let Some(run) = self.0.take() {
                std::fs::rename(run.join("checkpoints"), run.join("away")).unwrap();
                std::fs::write(run.join("checkpoints"), "").unwrap();
            }
        }
        fn on_saved(&mut self, step: u64) {
            self.1.lock().unwrap().push(step);
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let (run, saved) = (dir.path().join("run"), Arc::default());
    let mut session = learner(dir.path(), config(), no_poison);
    session.observe(Away(Some(run.clone()), Arc::clone(&saved)));
    assert!(matches!(session.fit(&data()), Err(LearnError::Save(_))));
    assert!(saved.lock().unwrap().is_empty());
    make_room(&run);
    session.fit(&data()).unwrap();
    assert_eq!(saved.lock().unwrap()[0], 0);
}

#[test]
fn weights_that_were_rolled_back_are_not_written() {
    /// Writes down of which epoch the weights are when training has gone on after a roll-back.
    struct After(PathBuf, bool, Arc<Mutex<Vec<String>>>);
    impl Observer for After {
        fn on_notice(&mut self, notice: &Notice) {
            self.1 |= notice.kind == "rollback";
        }
        fn on_batch(&mut self, _: &bellows_learner::BatchReport) {
            if std::mem::take(&mut self.1) {
                self.2.lock().unwrap().push(last_epoch(&self.0));
            }
        }
    }
    let poison: Poison = |epoch, position| epoch == 2 && (4..7).contains(&position);
    let dir = tempfile::tempdir().unwrap();
    let (run, seen) = (dir.path().join("run"), Arc::default());
    let mut session = learner(dir.path(), config(), poison);
    // There is room again when the third epoch has begun.
    session.observe(NoRoom { run: run.clone(), batches: BATCHES + 2 }).observe(After(run, false, Arc::clone(&seen)));
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
    assert_eq!(session.state().counters.rollbacks, 1);
    assert_eq!(*seen.lock().unwrap(), ["0"], "the second epoch is to be trained again");
}

/// Weights of every epoch that have no place: so many wait, the others are told, also by the next process, which makes those it still can.
#[test]
fn weights_of_epochs_that_wait_do_not_fill_the_memory() {
    let often = || LearnerConfig { save_period: 1, ..LearnerConfig::new(20, config().schedule) };
    let (whole, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    learner(whole.path(), often(), no_poison).fit(&data()).unwrap();
    let of = |dir: &Path, epoch: usize| dir.join(format!("run/weights/epoch{epoch}.safetensors"));
    let mut session = learner(dir.path(), often(), no_poison);
    (0..20).for_each(|epoch| std::fs::create_dir_all(of(dir.path(), epoch).join("x")).unwrap());
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
    let error = session.finish().unwrap_err().to_string();
    assert!(error.contains("epoch16.safetensors may be older than it should be: others wait") && error.contains("epoch19."), "{error}");
    drop(session);
    (0..20).for_each(|epoch| std::fs::remove_dir_all(of(dir.path(), epoch)).unwrap());
    let mut session = learner(dir.path(), often(), no_poison);
    session.resume().unwrap();
    assert_eq!(session.fit(&data()).unwrap(), Outcome::NothingToDo);
    let error = session.finish().unwrap_err().to_string();
    assert!(error.contains("epoch16.") && !error.contains("epoch15.") && !error.contains("epoch19."), "{error}");
    for epoch in (0..16).chain([19]) {
        assert!(std::fs::read(of(dir.path(), epoch)).unwrap() == std::fs::read(of(whole.path(), epoch)).unwrap(), "{epoch}");
    }
}

/// A picture of the first epoch, and one at the end.
#[derive(Default)]
struct Pictures(Vec<RunFile>);

impl Pictures {
    fn draw(&mut self, path: &str) {
        self.0.push(RunFile { path: path.into(), bytes: path.as_bytes().to_vec() });
    }
}

impl Observer for Pictures {
    fn on_epoch_end(&mut self, report: &EpochReport) {
        if report.epoch == 0 {
            self.draw("first.png");
        }
    }
    fn on_end(&mut self) {
        self.draw("end.png");
    }
    fn files(&mut self) -> Vec<RunFile> {
        std::mem::take(&mut self.0)
    }
}

/// Code 3: the next process, which has nothing to train, writes all of it.
#[test]
fn what_a_finished_run_lacks_is_made_up_for() {
    let worse: Poison = |epoch, position| epoch > 1 && position == toy::EVALUATION;
    let often = || LearnerConfig { save_period: 3, ..config() };
    let (whole, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = |dir: &Path| dir.join("run");
    let mut session = learner(whole.path(), often(), worse);
    session.observe(Pictures::default()).fit(&data()).unwrap();
    let files =
        ["results.csv", "first.png", "end.png", "weights/best.safetensors", "weights/last.safetensors", "weights/epoch3.safetensors"];
    let told = Told::default();
    let mut session = learner(dir.path(), often(), worse);
    files.iter().for_each(|file| std::fs::create_dir_all(run(dir.path()).join(file).join("x")).unwrap());
    session.observe(Pictures::default()).observe(told.clone());
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
    let error = session.finish().unwrap_err();
    assert_eq!(error.exit(), Exit::FinalSave);
    drop(session);
    // Each is said once when it fails, and once at the end: on the console and in the log.
    let events = std::fs::read_to_string(run(dir.path()).join("events.jsonl")).unwrap();
    for file in files {
        let of = |text: &str| text.contains("cannot") && text.contains(file);
        assert_eq!(told.of("warning").iter().filter(|text| of(text)).count(), 2, "{file}: {:?}", told.of("warning"));
        assert_eq!(events.lines().filter(|line| line.contains("\"warning\"") && of(line)).count(), 2, "{file}");
        assert!(error.to_string().contains(file), "{error}");
        std::fs::remove_dir_all(run(dir.path()).join(file)).unwrap();
    }
    let mut session = learner(dir.path(), often(), worse);
    session.resume().unwrap();
    assert_eq!(session.observe(Pictures::default()).fit(&data()).unwrap(), Outcome::NothingToDo);
    session.finish().unwrap();
    for file in &files[1..] {
        let read = |dir: &Path| std::fs::read(run(dir).join(file)).unwrap();
        assert!(read(dir.path()) == read(whole.path()), "{file}");
    }
    assert!(ending(dir.path()) == ending(whole.path()));
    let again = std::fs::read_to_string(run(dir.path()).join("events.jsonl")).unwrap();
    assert!(again.starts_with(&events), "what happened stays in the log");
}

#[test]
fn settings_and_tasks_that_make_no_sense_are_refused_at_the_start() {
    let refused = |config: LearnerConfig| {
        let dir = tempfile::tempdir().unwrap();
        let run = bellows_runs::RunDir::create(dir.path(), "run", true).unwrap();
        let device = Device::flex();
        let made = bellows_learner::Learner::new(Toy::default(), toy::net(&device), &device, config, run, Default::default());
        made.err().unwrap().to_string()
    };
    let mut no_batch = config();
    let bellows_learner::Schedule::Epochs(schedule) = &mut no_batch.schedule else { unreachable!() };
    schedule.batch = 0;
    assert_eq!(refused(no_batch), "batch is 0: it must be at least 1");
    let mut no_end = config();
    let bellows_learner::Schedule::Epochs(schedule) = &mut no_end.schedule else { unreachable!() };
    schedule.lrf = f64::NAN;
    assert_eq!(refused(no_end), "lrf is NaN: it must be a finite number from 0 up");
    let mut no_friction = config();
    let bellows_learner::Schedule::Epochs(schedule) = &mut no_friction.schedule else { unreachable!() };
    schedule.warmup_momentum = 1.0;
    assert_eq!(refused(no_friction), "warmup_momentum is 1: it must be from 0 up and below 1");
    assert!(refused(LearnerConfig { epochs: 0, ..config() }).starts_with("epochs is 0"));
    assert!(refused(LearnerConfig { max_grad_norm: f64::NAN, ..config() }).contains("max_grad_norm is NaN"));
    assert!(refused(LearnerConfig { eval_steps: Some(0), ..config() }).contains("eval_steps is 0"));
}
