//! A device that runs out of memory costs a batch its wholeness, and the run nothing (contract P3 and test T4, interrupted by a shortage).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::ahead::windows;
use crate::toy::{self, BATCHES, REALLY, Shortage, StopAfter, Toy, config, data, ending, learner_of};
use bellows_exit::{Coded, Exit};
use bellows_learner::{
    Counters, LearnError, Learner, LearnerConfig, Members, Notice, Observer, OptimizerKind, Outcome, Schedule, UpdateSchedule,
};
use burn::tensor::{Device, DeviceKind};

const SHORT: &str = "An IO error happened\nCaused by:\n  out of device memory allocating 4096 bytes\n";

fn start(dir: &Path, config: LearnerConfig, shortage: Shortage) -> Learner<Toy> {
    learner_of(Toy { shortage, ..Toy::default() }, dir, config, &Device::flex())
}

/// Room for two samples from epoch 1 on, and for one of those batches that sample 17 is in.
fn tight(epoch: usize, samples: &[usize]) -> Option<&'static str> {
    (epoch > 0 && samples.len() > if samples.contains(&17) { 1 } else { 2 }).then_some(SHORT)
}

fn tensors(session: &Learner<Toy>) -> Members {
    let members = session.state().encode(session.layout()).unwrap();
    members.into_iter().filter(|(name, _)| name.ends_with(".safetensors")).collect()
}

fn events(dir: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(dir.join("run/events.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// (batch of its epoch, parts from there on) of every `oom`.
fn shortages(dir: &Path) -> Vec<(u64, u64)> {
    let of = |event: &serde_json::Value| (event["batch"].as_u64().unwrap(), event["parts"].as_u64().unwrap());
    events(dir).iter().filter(|event| event["event"] == "oom").map(of).collect()
}

/// Calls back at the first `oom` notice.
struct AtShortage<F>(F);

impl<F: FnMut()> Observer for AtShortage<F> {
    fn on_notice(&mut self, notice: &Notice) {
        if notice.kind == "oom" {
            assert!(notice.message.contains("; from here on batches are cut into"), "{}", notice.message);
            (self.0)();
        }
    }
}

/// Ten updates of 16 samples at most, the loss of each divided by their number.
fn updates(batch: usize, accumulate: usize) -> LearnerConfig {
    let schedule = UpdateSchedule { lr: 0.05, warmup_steps: Some(2), batch, accumulate, ..UpdateSchedule::default() };
    LearnerConfig { schedule: Schedule::Updates(schedule), optimizer: OptimizerKind::AdamW, ema_decay: 0.0, ..config() }
}

#[test]
fn an_update_is_made_of_the_same_samples_in_smaller_parts() {
    let run = |batch, accumulate, shortage: Shortage| {
        let dir = tempfile::tempdir().unwrap();
        let toy = Toy { per_count: true, shortage, ..Toy::default() };
        let mut session = learner_of(toy, dir.path(), updates(batch, accumulate), &Device::flex());
        assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
        let weights = session.layout().read(&session.layout().values(&session.ema_model())).unwrap();
        let losses: Vec<f64> = std::fs::read_to_string(dir.path().join("run/results.csv"))
            .unwrap()
            .lines()
            .skip(1)
            .map(|line| line.split(',').nth(2).unwrap().parse().unwrap())
            .collect();
        (weights, losses, session.state().counters.updates, shortages(dir.path()))
    };
    let (expected, losses, count, none) = run(2, 8, |_, _| None);
    assert!(none.is_empty());
    let short: [(Shortage, Vec<(u64, u64)>); 3] = [
        (|_, samples| (samples.len() > 2).then_some("wgpu error: Out of Memory"), vec![(0, 2), (0, 4)]),
        (|epoch, samples| (epoch > 1 && samples.len() > 3).then_some(SHORT), vec![(0, 2), (0, 4)]),
        (|_, samples| (samples.len() > 1).then_some(SHORT), vec![(0, 2), (0, 4), (0, 8)]),
    ];
    for (shortage, parts) in short {
        let (weights, means, updates, told) = run(8, 2, shortage);
        assert_eq!((updates, told), (count, parts));
        assert_eq!((weights.len(), means.len()), (expected.len(), losses.len()));
        for ((name, _, ours), (_, _, theirs)) in weights.iter().zip(&expected) {
            assert_eq!(ours.len(), theirs.len(), "{name}");
            for (ours, theirs) in ours.iter().zip(theirs) {
                assert!((ours - theirs).abs() < 1e-6, "{name}: {ours} for {theirs}");
            }
        }
        assert!(means.iter().zip(&losses).all(|(a, b)| (a - b).abs() < 2e-5), "{means:?} for {losses:?}");
    }
}

/// What costs no number goes first: a batch is cut if it does not fit even then, and one that fits is computed whole.
#[test]
fn less_is_held_before_a_batch_is_cut() {
    let run = |shortage: Shortage, update_shortage, spare| {
        let dir = tempfile::tempdir().unwrap();
        let toy = Toy { shortage, update_shortage, spare: AtomicBool::new(spare), ..Toy::default() };
        let mut session = learner_of(toy, dir.path(), config(), &Device::flex());
        assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
        (tensors(&session), shortages(dir.path()))
    };
    let once = |_: usize, samples: &[usize]| {
        static SHORT_OF: AtomicBool = AtomicBool::new(true);
        (samples.contains(&17) && SHORT_OF.swap(false, Ordering::SeqCst)).then_some(SHORT)
    };
    let (clean, none) = run(|_, _| None, None, false);
    let (whole, told) = run(once, None, true);
    assert_eq!((none.len(), told.len(), told[0].1), (0, 1, 1));
    assert!(whole == clean, "a run that held less from some batch on has other numbers");
    let (_, told) = run(tight, None, true);
    assert_eq!(told.iter().map(|(_, parts)| *parts).take(2).collect::<Vec<_>>(), [1, 2]);
}

/// Where a run with windows of three batches is when `stop` has set its flag: tensors, counters, shortages.
fn stopped(toy: Toy, stop: impl FnOnce(&mut Learner<Toy>, Arc<AtomicBool>)) -> (Members, Counters, Vec<(u64, u64)>) {
    let mut config = config();
    let Schedule::Epochs(schedule) = &mut config.schedule else { unreachable!() };
    schedule.warmup_epochs = 0.0;
    let (dir, flag) = (tempfile::tempdir().unwrap(), Arc::new(AtomicBool::new(false)));
    let mut session = learner_of(toy, dir.path(), config, &Device::flex());
    stop(&mut session, flag.clone());
    assert_eq!(session.stop_when(flag).fit(&data()).unwrap(), Outcome::Interrupted);
    (tensors(&session), session.state().counters.clone(), shortages(dir.path()))
}

#[test]
fn the_state_is_that_before_the_step_with_the_window_that_was_begun() {
    const SECOND_HALF: usize = 29;
    const LAST_OF_WINDOW: usize = 11;
    // In the second part of the batch where memory runs out a second time; and in an update.
    let shortage = |_, samples: &[usize]| (samples.len() > 1 && samples.contains(&SECOND_HALF)).then_some("wgpu error: Out of Memory");
    let in_part = (SECOND_HALF, Toy { shortage, ..Toy::default() });
    let in_update = (LAST_OF_WINDOW, Toy { update_shortage: Some(LAST_OF_WINDOW), ..Toy::default() });
    let order = bellows_learner::epoch_order(toy::SAMPLES, 3, 0, true);
    for ((sample, toy), pending, times) in [(in_part, 1, 2), (in_update, 2, 2)] {
        let place = order.iter().position(|&i| i == sample).unwrap();
        let batch = place / toy::BATCH;
        assert!(place % toy::BATCH >= 2 && batch % 3 == pending, "found by looking: {place}");
        let (clean, before, _) = stopped(Toy::default(), |session, flag| {
            session.observe(StopAfter { after: batch, seen: 0, flag });
        });
        let (short, after, told) = stopped(toy, |session, flag| {
            let mut seen = 0;
            session.observe(AtShortage(move || {
                seen += 1;
                flag.store(seen == times, Ordering::SeqCst);
            }));
        });
        assert_eq!(told, [(batch as u64, 2), (batch as u64, 4)]);
        assert_eq!((after.position, after.pending, after.split), (batch, pending, 2));
        assert_eq!((before.position, before.pending, before.updates), (batch, pending, after.updates));
        for ((name, ours), (_, theirs)) in short.iter().zip(&clean) {
            assert!(ours == theirs && ours.len() > 500, "{name}: {} bytes", ours.len());
        }
    }
}

#[test]
fn a_run_that_dies_of_a_shortage_goes_on_with_smaller_parts_to_the_same_bits() {
    let expected = tempfile::tempdir().unwrap();
    assert_eq!(start(expected.path(), config(), tight).fit(&data()).unwrap(), Outcome::Finished);
    let told = shortages(expected.path());
    assert_eq!(told.iter().map(|(_, parts)| *parts).collect::<Vec<_>>(), [2, 4]);

    // Once the process dies when it has told the user, before the batch is tried again; once at each shortage.
    for deaths in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        for death in 0..deaths {
            let mut session = start(dir.path(), config(), tight);
            session.resume().unwrap();
            assert_eq!(session.state().counters.split, death);
            session.observe(AtShortage(|| panic!("killed")));
            catch_unwind(AssertUnwindSafe(|| session.fit(&data()))).unwrap_err();
        }
        let mut session = start(dir.path(), config(), tight);
        session.resume().unwrap();
        assert_eq!(session.state().counters.split, deaths, "what was learnt");
        assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
        assert_eq!(shortages(dir.path()), told, "each is met once");
        assert!(ending(dir.path()) == ending(expected.path()), "{deaths} deaths");
    }
}

#[test]
fn only_batches_as_large_as_one_that_did_not_fit_are_cut() {
    // Sample 17 makes a batch large.
    let toy = Toy {
        size: |samples| usize::from(samples.contains(&17)),
        shortage: |_, samples| (samples.contains(&17) && samples.len() > 2).then_some(SHORT),
        ..Toy::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let mut session = learner_of(toy, dir.path(), config(), &Device::flex());
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
    let counters = session.state().counters.clone();
    let halvings = shortages(dir.path()).len() as u32;
    assert!(halvings > 0 && counters.split == 0 && counters.splits == [(1, halvings)].into(), "{counters:?}");
    let mut made = session.task().made.lock().unwrap().clone();
    // An evaluation makes a batch of everything.
    made.retain(|samples| samples.len() <= toy::BATCH);
    let (large, small): (Vec<_>, Vec<_>) = made.iter().partition(|samples| samples.contains(&17));
    assert!(large.iter().rev().take(2).all(|samples| samples.len() <= 2), "{large:?}");
    let whole = small.iter().filter(|samples| samples.len() == toy::BATCH).count();
    assert!(whole >= counters.epochs * (BATCHES - 2), "{whole} of {}", small.len());
}

#[test]
fn a_sample_that_does_not_fit_ends_the_run_and_keeps_what_was_trained() {
    fn none(epoch: usize, samples: &[usize]) -> Option<&'static str> {
        (epoch == 1 && samples.contains(&17)).then_some(SHORT)
    }
    let dir = tempfile::tempdir().unwrap();
    let mut session = start(dir.path(), config(), none);
    let error = session.fit(&data()).unwrap_err();
    let LearnError::OutOfMemory { .. } = &error else { panic!("{error}") };
    let text = error.to_string();
    for part in
        ["of epoch 2", "sample-17", "one sample at a time (out of device memory allocating 4096 bytes): ", "; the last checkpoint is kept"]
    {
        assert!(text.contains(part) && !text.contains('\n'), "{part:?} in {text}");
    }
    let told = shortages(dir.path());
    assert_eq!(told.iter().map(|(_, parts)| *parts).collect::<Vec<_>>(), [2, 4, 4]);
    assert!(
        events(dir.path()).iter().any(|event| event["event"] == "oom" && event["files"].as_array().unwrap().contains(&"sample-17".into()))
    );

    // With room for it the run goes on from the batch before.
    let before = session.state().counters.clone();
    assert_eq!((before.epoch as u64, before.position as u64), (1, told[0].0));
    let mut session = start(dir.path(), config(), |_, _| None);
    session.resume().unwrap();
    assert_eq!((session.state().counters.position, session.state().counters.split), (before.position, 2));
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
}

#[test]
fn a_lost_device_ends_the_run_and_the_next_one_cuts_its_batches() {
    fn lost(epoch: usize, samples: &[usize]) -> Option<&'static str> {
        (epoch == 1 && samples.len() > 2).then_some("The device is poisoned\nCaused by:\n  Unknown: Out of memory")
    }
    let dir = tempfile::tempdir().unwrap();
    let error = start(dir.path(), config(), lost).fit(&data()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, LearnError::Lost { .. }) && text.contains("was lost") && text.contains("into 2 parts"), "{text}");
    let mut session = start(dir.path(), config(), lost);
    session.resume().unwrap();
    let counters = &session.state().counters;
    assert_eq!((counters.epoch, counters.position, counters.split), (1, 0, 1), "the last checkpoint, and what was learnt");
    assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
    assert_eq!(shortages(dir.path()), [(0, 2)], "the event stays");
}

#[test]
fn an_evaluation_that_does_not_fit_is_made_up_for() {
    fn judging(epoch: usize, samples: &[usize]) -> Option<&'static str> {
        (epoch == 1 && samples == [toy::EVALUATION]).then_some(SHORT)
    }
    let dir = tempfile::tempdir().unwrap();
    let error = start(dir.path(), config(), judging).fit(&data()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, LearnError::OutOfMemory { .. }) && text.starts_with("the evaluation does not fit"), "{text}");
    let mut session = start(dir.path(), config(), |_, _| None);
    session.resume().unwrap();
    assert_eq!((session.state().counters.epoch, session.state().counters.position), (1, BATCHES));
    session.fit(&data()).unwrap();
    let expected = tempfile::tempdir().unwrap();
    start(expected.path(), config(), |_, _| None).fit(&data()).unwrap();
    assert!(ending(dir.path()) == ending(expected.path()));
}

/// Nothing can be read from it again, and the checkpoint before the evaluation stands.
#[test]
fn an_evaluation_that_loses_the_device_says_so() {
    fn judging(epoch: usize, samples: &[usize]) -> Option<&'static str> {
        (epoch == 1 && samples == [toy::EVALUATION]).then_some("The device is poisoned\nCaused by:\n  Unknown: Out of memory")
    }
    let dir = tempfile::tempdir().unwrap();
    let error = start(dir.path(), config(), judging).fit(&data()).unwrap_err();
    assert!(matches!(error, LearnError::Lost { .. }) && error.exit() == Exit::Device, "{error}");
    assert!(
        error.to_string().starts_with("the device ran out of memory in an evaluation and was lost (Unknown: Out of memory): "),
        "{error}"
    );
    let mut session = start(dir.path(), config(), |_, _| None);
    session.resume().unwrap();
    assert_eq!((session.state().counters.epoch, session.state().counters.position), (1, BATCHES));
}

#[test]
fn other_panics_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut session = start(dir.path(), config(), |_, _| Some("index out of bounds: the len is 3 but the index is 4"));
    let panic = catch_unwind(AssertUnwindSafe(|| session.fit(&data()))).unwrap_err();
    assert!(panic.downcast_ref::<String>().is_some_and(|text| text.starts_with("index out of bounds")));
    assert!(shortages(dir.path()).is_empty());
}

/// Whether this is the child of the test `name` on the Vulkan device whose ICD file `variable` names; else it is run in one, or skipped.
#[expect(clippy::print_stderr, reason = "a test that is skipped must say so")]
pub(crate) fn in_a_child(name: &str, variable: &str) -> bool {
    if std::env::var_os("BELLOWS_MEMORY_CHILD").is_some() {
        return true;
    }
    let Some(icd) = std::env::var_os(variable) else {
        eprintln!("skipped: set {variable} to a Vulkan ICD file (.ci has scripts that print one)");
        return false;
    };
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([name, "--exact", "--nocapture"]).env("BELLOWS_MEMORY_CHILD", "1").env("VK_DRIVER_FILES", icd);
    let output = child.output().unwrap();
    let passed = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(output.status.success() && passed, "{}", String::from_utf8_lossy(&output.stderr));
    false
}

/// What a driver really says: SwiftShader is asked for too much, by a batch alone and by one in the middle of a window that is read at its end.
#[test]
fn a_real_shortage_is_known_and_survived() {
    if !in_a_child("memory::a_real_shortage_is_known_and_survived", "BELLOWS_SWIFTSHADER") {
        return;
    }
    for ahead in [1, 3] {
        let dir = tempfile::tempdir().unwrap();
        let toy = Toy { shortage: |_, samples| (samples.len() > 2).then_some(REALLY), ..Toy::default() };
        let config = LearnerConfig { epochs: 1, val: false, ..windows(ahead) };
        let mut session = learner_of(toy, dir.path(), config, &Device::vulkan(DeviceKind::DefaultDevice));
        let outcome = session.fit(&data());
        let told: Vec<_> = events(dir.path()).into_iter().filter(|event| event["event"] == "oom").collect();
        let reason = told[0]["reason"].as_str().unwrap();
        assert!(told.len() == 1 && reason.contains(&toy::TOO_MUCH.to_string()), "{ahead} ahead: {told:?} {outcome:?}");
        // SwiftShader computes nonsense; that it goes on computing is what counts.
        assert!(matches!(outcome, Ok(Outcome::Finished) | Err(LearnError::Diverged { .. })), "{ahead} ahead: {outcome:?}");
    }
}
