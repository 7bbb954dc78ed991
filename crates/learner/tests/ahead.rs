//! A window whose batches are computed before any of them is read is the window whose batches are read one by one: to the bit, in all that is told, and where something goes wrong.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use crate::memory::in_a_child;
use crate::ranks::{on_threads, rank};
use crate::toy::{self, BATCH, BATCHES, EPOCHS, StopAfter, Toy, data, ending, identity, learner_of};
use bellows_kernels::cube::Counted;
use bellows_learner::{
    BatchReport, EpochReport, LearnerConfig, LossScaling, Notice, Observer, OptimizerKind, Outcome, Phase, Schedule, StepTimes,
    UpdateSchedule,
};
use burn::tensor::{Device, DeviceKind};
use serde_json::Value;

const SHORT: &str = "wgpu error: Out of Memory";

/// Windows of several batches from the first on.
fn without_warm_up(mut config: LearnerConfig) -> LearnerConfig {
    let Schedule::Epochs(schedule) = &mut config.schedule else { unreachable!() };
    schedule.warmup_epochs = 0.0;
    config
}

/// Windows of three batches, of which so many are read together.
pub(crate) fn windows(ahead: usize) -> LearnerConfig {
    without_warm_up(LearnerConfig { ahead: Some(ahead), keep_checkpoints: 100, ..toy::config() })
}

/// Writes down all that it hears, without times.
#[derive(Clone, Default)]
struct Heard(Rc<RefCell<Vec<String>>>);

impl Heard {
    fn add(&self, what: impl Debug) {
        self.0.borrow_mut().push(format!("{what:?}"));
    }
}

impl Observer for Heard {
    fn on_phase(&mut self, phase: Phase) {
        self.add(phase);
    }
    fn on_epoch(&mut self, epoch: usize, position: usize) {
        self.add((epoch, position));
    }
    fn on_batch(&mut self, report: &BatchReport) {
        self.add(BatchReport { seconds: 0.0, times: StepTimes::default(), ..report.clone() });
    }
    fn on_saved(&mut self, step: u64) {
        self.add(step);
    }
    fn on_epoch_end(&mut self, report: &EpochReport) {
        self.add(EpochReport { elapsed_s: 0.0, ..report.clone() });
    }
    fn on_notice(&mut self, notice: &Notice) {
        self.add(notice);
    }
}

/// All that a run leaves and tells, times aside.
#[derive(PartialEq)]
struct All {
    outcome: Result<Outcome, String>,
    end: Option<toy::Ending>,
    checkpoints: BTreeMap<String, Vec<u8>>,
    events: Vec<Value>,
    heard: Vec<String>,
}

impl All {
    fn of(toy: Toy, config: LearnerConfig) -> Self {
        let (dir, heard) = (tempfile::tempdir().unwrap(), Heard::default());
        let mut session = learner_of(toy, dir.path(), config, &Device::flex());
        session.observe(heard.clone());
        let outcome = session.fit(&data()).map_err(|error| error.to_string());
        let end = outcome.is_ok().then(|| ending(dir.path()));
        let heard = heard.0.borrow().clone();
        Self { outcome, end, checkpoints: checkpoints(dir.path()), events: events(dir.path()), heard }
    }

    fn times(&self, kind: &str) -> usize {
        self.events.iter().filter(|event| event["event"] == kind).count()
    }

    fn assert_same(&self, other: &Self, what: &str) {
        assert_eq!(self.outcome, other.outcome, "{what}");
        assert_eq!(self.events, other.events, "{what}");
        assert_eq!(self.heard, other.heard, "{what}");
        assert!(self == other, "{what}: other bits");
    }
}

/// Tensors and counters of all checkpoints.
fn checkpoints(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let under = |path: &Path| std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let all = under(&dir.join("run/checkpoints")).into_iter();
    // What was set aside has a name that goes on behind a dot.
    let files = all.filter(|path| path.extension().is_none() && path.is_dir()).flat_map(|checkpoint| under(&checkpoint));
    let read = |path: std::path::PathBuf| {
        let mut bytes = std::fs::read(&path).unwrap();
        if path.ends_with("state.json") {
            let mut state: Value = serde_json::from_slice(&bytes).unwrap();
            state.as_object_mut().unwrap().remove("elapsed_s").unwrap();
            bytes = state.to_string().into_bytes();
        }
        (path.strip_prefix(dir).unwrap().display().to_string(), bytes)
    };
    files.filter(|path| path.extension().is_some_and(|e| e == "safetensors") || path.ends_with("state.json")).map(read).collect()
}

fn events(dir: &Path) -> Vec<Value> {
    let without_times = |line: &str| {
        let mut event: Value = serde_json::from_str(line).unwrap();
        event.as_object_mut().unwrap().retain(|key, _| key != "time_s" && !key.ends_with("/s"));
        event
    };
    std::fs::read_to_string(dir.join("run/events.jsonl")).unwrap().lines().map(without_times).collect()
}

#[test]
fn nobody_can_tell_whether_a_window_was_read_at_once() {
    type Change = fn(LearnerConfig) -> LearnerConfig;
    let updates: Change = |config| {
        let schedule = UpdateSchedule { lr: 0.01, warmup_steps: Some(2), batch: BATCH, accumulate: 5, ..UpdateSchedule::default() };
        LearnerConfig { schedule: Schedule::Updates(schedule), optimizer: OptimizerKind::AdamW, ema_decay: 0.0, ..config }
    };
    let changes: [(&str, Change); 7] = [
        ("as it is", |config| config),
        ("workers", |config| LearnerConfig { workers: 2, ..config }),
        ("checkpoints after every batch", |config| LearnerConfig { checkpoint_minutes: 0.0, ..config }),
        ("evaluations", |config| LearnerConfig { eval_steps: Some(2), ..config }),
        ("a loss scale", |config| LearnerConfig { loss_scaling: Some(LossScaling::DYNAMIC), ..config }),
        ("warm-up", |config| LearnerConfig { schedule: toy::config().schedule, ..config }),
        ("updates", updates),
    ];
    // An item that is no number keeps no batch from being counted.
    let toy = |what: &str| Toy { bad_item: |epoch, position| (epoch, position) == (2, 1), per_count: what == "updates", ..Toy::default() };
    for (what, change) in changes {
        let singly = All::of(toy(what), change(windows(1)));
        assert!(singly.outcome == Ok(Outcome::Finished) && singly.times("step") == EPOCHS * BATCHES, "{what}");
        for ahead in [2, 3, 8] {
            All::of(toy(what), change(windows(ahead))).assert_same(&singly, &format!("{what}, {ahead} ahead"));
        }
    }
}

#[test]
fn a_window_is_read_once() {
    let reads = |poison: toy::Poison, config: LearnerConfig| {
        let dir = tempfile::tempdir().unwrap();
        let toy = Toy { poison, ..Toy::default() };
        // Some devices read to clip.
        let mut session = learner_of(toy, dir.path(), LearnerConfig { max_grad_norm: 0.0, ..config }, &Device::flex());
        let (outcome, counted) = Counted::of(|| session.fit(&data()));
        assert_eq!(outcome.unwrap(), Outcome::Finished);
        counted.reads
    };
    let all = EPOCHS * BATCHES;
    assert_eq!([1, 2, 3, 8].map(|ahead| reads(toy::no_poison, windows(ahead))), [all, 2 * all / 3, all / 3, all / 3]);
    // Once for nothing, and then each of its batches.
    assert_eq!(reads(|epoch, position| (epoch, position) == (1, 4), windows(3)), all / 3 + 3);
    let profile = LearnerConfig { profile: true, ..windows(3) };
    let unsaid = LearnerConfig { ahead: None, ..windows(3) };
    assert_eq!(
        [profile, unsaid].map(|config| reads(toy::no_poison, config)),
        [all, all],
        "a stage is timed by itself, and nobody waits for the processor"
    );
}

/// On a device that computes behind whoever asks it, too.
#[test]
fn a_window_of_a_device_is_read_once_to_the_same_bits() {
    if !in_a_child("ahead::a_window_of_a_device_is_read_once_to_the_same_bits", "BELLOWS_LAVAPIPE") {
        return;
    }
    let [(bits, reads), (of_windows, fewer)] = [1, 3].map(|ahead| {
        let dir = tempfile::tempdir().unwrap();
        let config = LearnerConfig { val: false, ..windows(ahead) };
        let mut session = learner_of(Toy::default(), dir.path(), config, &Device::vulkan(DeviceKind::DefaultDevice));
        let (outcome, counted) = Counted::of(|| session.fit(&data()));
        assert_eq!(outcome.unwrap(), Outcome::Finished);
        (ending(dir.path()), counted.reads)
    });
    assert!(of_windows == bits && bits.1.lines().count() == EPOCHS + 1, "{}\n{}", bits.1, of_windows.1);
    assert_eq!(reads - fewer, EPOCHS * BATCHES * 2 / 3);
}

/// A task, what is told of it, and how often.
type Toys = (fn() -> Toy, &'static str, usize);

/// What is told of each so often is told of it as well where windows are read at once, and the run goes on to the same bits or ends of the same.
fn assert_as_ever(cases: &[Toys], change: fn(LearnerConfig) -> LearnerConfig) {
    for (i, (toy, kind, times)) in cases.iter().enumerate() {
        let singly = All::of(toy(), change(windows(1)));
        assert_eq!(singly.times(kind), *times, "case {i}: {kind}");
        for ahead in [2, 3] {
            All::of(toy(), change(windows(ahead))).assert_same(&singly, &format!("case {i}, {ahead} ahead"));
        }
    }
}

#[test]
fn what_is_not_finite_in_a_window_is_answered_as_ever() {
    let poisoned: [Toys; 4] = [
        (|| Toy { poison: |epoch, position| (epoch, position) == (1, 3), ..Toy::default() }, "skip", 1),
        (|| Toy { poison: |epoch, position| (epoch, position) == (1, 4), ..Toy::default() }, "skip", 1),
        (|| Toy { poison: |epoch, position| (epoch, position) == (1, 5), ..Toy::default() }, "skip", 1),
        (|| Toy { overflow: |epoch, position| (epoch, position) == (1, 4), ..Toy::default() }, "skip", 1),
    ];
    assert_as_ever(&poisoned, |config| config);
    let in_a_row: fn() -> Toy = || Toy { poison: |epoch, position| epoch == 1 && (4..8).contains(&position), ..Toy::default() };
    // Three in a row go back, past which the fourth is another one; a scale bears them all.
    assert_as_ever(&[(in_a_row, "rollback", 1)], |config| config);
    let scaling = LossScaling::Dynamic { first: 1.0, least: 1.0 / 1024.0 };
    let scaled = |ahead| All::of(in_a_row(), LearnerConfig { loss_scaling: Some(scaling), ..windows(ahead) });
    assert_eq!(scaled(1).times("skip"), 4);
    scaled(3).assert_same(&scaled(1), "a loss scale");
}

/// An update that is not finite, of batches that are.
#[test]
fn an_update_that_is_lost_is_lost_as_ever() {
    let exploding = |ahead| {
        let mut config = LearnerConfig { max_grad_norm: 0.0, ..windows(ahead) };
        let Schedule::Epochs(schedule) = &mut config.schedule else { unreachable!() };
        schedule.lr0 = 1e38;
        All::of(Toy::default(), config)
    };
    let singly = exploding(1);
    assert!(singly.events.iter().any(|event| event["event"] == "skip" && event["reason"] == "weights"), "nothing exploded");
    exploding(3).assert_same(&singly, "an update");
}

#[test]
fn what_cannot_be_read_within_a_window_is_left_out_as_ever() {
    let cases: [Toys; 2] = [
        (|| Toy { unreadable: |epoch, position| (epoch, position) == (1, 4), ..Toy::default() }, "unreadable", 1),
        // The third in a row ends the run.
        (|| Toy { unreadable: |epoch, position| epoch == 1 && position >= 4, ..Toy::default() }, "unreadable", 2),
    ];
    assert_as_ever(&cases, |config| config);
    assert_as_ever(&cases, |config| LearnerConfig { workers: 2, ..config });
}

#[test]
fn memory_that_runs_out_in_a_window_costs_what_it_did() {
    /// Room for two samples from the second epoch on.
    fn tight(epoch: usize, samples: &[usize]) -> Option<&'static str> {
        (epoch > 0 && samples.len() > 2).then_some(SHORT)
    }
    let cases: [Toys; 6] = [
        // The second batch of a window, as `memory` knows, and the last one in its update.
        (|| Toy { shortage: |_, samples| (samples.len() > 1 && samples.contains(&29)).then_some(SHORT), ..Toy::default() }, "oom", 2),
        (|| Toy { update_shortage: Some(11), ..Toy::default() }, "oom", 2),
        (|| Toy { shortage: tight, ..Toy::default() }, "oom", 1),
        (|| Toy { shortage: tight, spare: AtomicBool::new(true), ..Toy::default() }, "oom", 2),
        // One sample does not fit.
        (|| Toy { shortage: |epoch, samples| (epoch == 1 && samples.contains(&17)).then_some(SHORT), ..Toy::default() }, "oom", 3),
        (
            || Toy {
                shortage: |epoch, samples| {
                    (epoch == 1 && samples.len() > 2).then_some("The device is poisoned\nCaused by:\n  Unknown: Out of memory")
                },
                ..Toy::default()
            },
            "oom",
            1,
        ),
    ];
    assert_as_ever(&cases, |config| config);
}

/// The flag of [`stops`].
static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Asks for the end when the second batch of a window is made: the first one is computed by then.
fn stops(epoch: usize, position: usize) -> bool {
    if (epoch, position) == (1, 4) {
        STOP.store(true, Ordering::SeqCst);
    }
    false
}

#[test]
fn a_run_that_is_stopped_within_a_window_goes_on_to_the_same_bits() {
    let whole = All::of(Toy::default(), windows(1)).end.unwrap();
    let stopped = |ahead: usize, by_observer: bool| {
        let (dir, flag) = (tempfile::tempdir().unwrap(), if by_observer { Arc::default() } else { STOP.clone() });
        flag.store(false, Ordering::SeqCst);
        let unreadable = if by_observer { toy::no_poison } else { stops };
        let mut session = learner_of(Toy { unreadable, ..Toy::default() }, dir.path(), windows(ahead), &Device::flex());
        if by_observer {
            session.observe(StopAfter { after: BATCHES + 4, seen: 0, flag: flag.clone() });
        }
        assert_eq!(session.stop_when(flag).fit(&data()).unwrap(), Outcome::Interrupted);
        let counters = &session.state().counters;
        let place = (counters.epoch, counters.position, counters.pending);
        let mut session = learner_of(Toy::default(), dir.path(), windows(ahead), &Device::flex());
        session.resume().unwrap();
        assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
        assert!(ending(dir.path()) == whole, "{ahead} ahead");
        place
    };
    assert_eq!([1, 3].map(|ahead| stopped(ahead, false)), [(1, 5, 2); 2], "after the batch in progress");
    // Who sees a batch is told of it when those beside it are computed.
    assert_eq!([1, 2].map(|ahead| stopped(ahead, true)), [(1, 4, 1), (1, 5, 2)]);
}

#[test]
fn batches_that_are_read_together_share_their_time() {
    /// Units a second.
    struct Speeds(Rc<RefCell<Vec<f64>>>);
    impl Observer for Speeds {
        fn on_batch(&mut self, report: &BatchReport) {
            assert!(report.seconds > 0.0 && report.times.step() <= report.seconds, "{report:?}");
            self.0.borrow_mut().push(report.rate());
        }
    }
    let (dir, speeds) = (tempfile::tempdir().unwrap(), Rc::default());
    let mut session = learner_of(Toy::default(), dir.path(), windows(3), &Device::flex());
    session.observe(Speeds(Rc::clone(&speeds))).fit(&data()).unwrap();
    let speeds = speeds.borrow();
    assert_eq!(speeds.len(), EPOCHS * BATCHES);
    for window in speeds.chunks(3) {
        assert!(window.iter().all(|speed| (speed / window[0] - 1.0).abs() < 1e-9), "{window:?}");
    }
    let seconds: f64 = speeds.iter().enumerate().map(|(i, speed)| samples(i) / speed).sum();
    assert!(seconds <= session.state().counters.elapsed_s, "more time than there was");
}

/// Of the batch with this number.
fn samples(batch: usize) -> f64 {
    let last = (batch + 1).is_multiple_of(BATCHES);
    (if last { toy::SAMPLES - BATCH * (BATCHES - 1) } else { BATCH }) as f64
}

#[test]
fn ranks_meet_in_each_batch() {
    let end = |ahead| {
        let dir = tempfile::tempdir().unwrap();
        on_threads(2, |exchange| {
            let config = without_warm_up(LearnerConfig { ahead: Some(ahead), ..toy::of_ranks(2) });
            let mut learner = rank(dir.path(), exchange, Toy::default(), config, identity()).unwrap();
            assert_eq!(learner.fit(&data()).unwrap(), Outcome::Finished);
        });
        ending(dir.path())
    };
    assert!(end(8) == end(1));
}
