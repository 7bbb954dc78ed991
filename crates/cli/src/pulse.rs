//! This process's signs of life, if it trains: what it is busy with goes to the run's `heartbeat.json`, and to its supervisor's file.
//!
//! There is one pulse a process, because bars, the Learner and the closing work all move it. It is moved by the thread that does the work, so
//! that it stops when that hangs; a rank that waits for another one passes on what it hears of that. At most four signs a second are written, besides one at each change of what it is busy with.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bellows_device::Selected;
use bellows_learner::{BatchReport, Limits, Observer, Pace, Phase, RunInfo};
use bellows_runs::{Beat, End, Heartbeat, began};

use crate::fault::Fault;
use crate::orders::Orders;

/// Between two signs of the same kind of work.
const EVERY: Duration = Duration::from_millis(250);

/// Most letters of how it ended: an error may name all samples of a batch, and a sign of life that is too long is not read.
const LONGEST_END: usize = 2000;

/// That of this process.
static PULSE: Mutex<Option<Pulse>> = Mutex::new(None);

struct Pulse {
    beat: Beat,
    phase: Phase,
    files: Vec<Heartbeat>,
    limits: Limits,
    written: Instant,
    pace: Pace,
    fault: Option<Fault>,
}

impl Pulse {
    fn turn_to(&mut self, phase: Phase) {
        let phase = self.pace.turn_to(phase);
        let turned = phase != self.phase;
        self.phase = phase;
        self.beat(turned, |beat| {
            if turned && phase == Phase::Evaluation {
                (beat.evaluated, beat.to_evaluate) = (0, 0);
            }
        });
        if let Some(fault) = &mut self.fault {
            fault.strike(phase);
        }
    }

    /// A sign of life, which is written if one is due or `now`; what it says is kept for the next one.
    fn beat(&mut self, now: bool, say: impl FnOnce(&mut Beat)) {
        say(&mut self.beat);
        if !now && self.written.elapsed() < EVERY {
            return;
        }
        self.written = Instant::now();
        self.beat.count += 1;
        self.beat.time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.beat.phase = self.phase.name().into();
        self.beat.within_s = self.pace.seconds(&self.limits, self.phase);
        let beat = &self.beat;
        // A disk that takes no sign of life takes no checkpoint either, which is told.
        self.files.iter_mut().for_each(|file| drop(file.write(beat)));
    }
}

fn pulse() -> MutexGuard<'static, Option<Pulse>> {
    PULSE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with(what: impl FnOnce(&mut Pulse)) {
    if let Some(pulse) = pulse().as_mut() {
        what(pulse);
    }
}

/// Begins: this process trains, by these limits. Its supervisor, if it has one, hears of it.
pub(crate) fn begin(limits: Limits, orders: Option<&Orders>) {
    let beat = Beat {
        pid: std::process::id(),
        supervisor: orders.map(|orders| orders.supervisor),
        supervisor_began: orders.and_then(|orders| began(orders.supervisor)),
        restarts: orders.map_or(0, |orders| orders.restarts),
        ..Beat::default()
    };
    let files: Vec<Heartbeat> = orders.and_then(|orders| Heartbeat::create(orders.heartbeat()).ok()).into_iter().collect();
    let fault = Fault::of_this_process(beat.restarts);
    let now = Instant::now();
    let mut pulse = Pulse { beat, phase: Phase::Start, files, limits, written: now, pace: Pace::default(), fault };
    pulse.turn_to(Phase::Start);
    pulse.beat(true, |_| {});
    *self::pulse() = Some(pulse);
}

/// Something went on.
pub(crate) fn beat() {
    with(|pulse| pulse.beat(false, |_| {}));
}

/// The process turns to something else.
pub(crate) fn turn_to(phase: Phase) {
    with(|pulse| pulse.turn_to(phase));
}

/// The run lies in `path`, where its sign of life is from here on too.
pub(crate) fn run(path: &Path, heartbeat: &Path) {
    with(|pulse| {
        pulse.files.extend(Heartbeat::create(heartbeat).ok());
        // Signs of life are UTF-8; the supervisor stands in the same folder.
        let absolute = std::path::absolute(path).ok().filter(|path| path.to_str().is_some());
        let path = absolute.unwrap_or_else(|| path.into());
        pulse.beat(true, |beat| beat.run = Some(path));
    });
}

/// What ends this process, the same command goes on with.
pub(crate) fn same_command() {
    with(|pulse| pulse.beat(true, |beat| beat.same_command = true));
}

/// It computes there.
pub(crate) fn device(device: &Selected) {
    with(|pulse| {
        let told = format!("{} ({})", device.backend, device.name);
        let fallback = device.fallback.clone();
        pulse.beat(true, |beat| (beat.device, beat.accelerator, beat.fallback) = (Some(told), device.is_accelerator(), fallback));
    });
}

/// That rank is lost, as far as this one can tell, and ended so, if that was seen.
pub(crate) fn lost(rank: usize, end: Option<End>) {
    with(|pulse| pulse.beat(true, |beat| (beat.lost, beat.lost_end) = (Some(rank), end)));
}

/// The run is over: it stands at the end of its last epoch.
pub(crate) fn over(epochs: usize, step: u64) {
    with(|pulse| pulse.beat(true, |beat| (beat.epoch, beat.epochs, beat.step) = (epochs, epochs, step)));
}

/// The last sign: how it ended, if that was not said before. It waits for nobody: a signal may end the process in the middle of a sign.
pub(crate) fn end(how: &str) {
    if let Ok(mut pulse) = PULSE.try_lock()
        && let Some(pulse) = pulse.as_mut()
        && pulse.beat.ended.is_none()
    {
        pulse.beat(true, |beat| beat.ended = Some(shortened(how)));
    }
}

fn shortened(how: &str) -> String {
    match how.char_indices().nth(LONGEST_END) {
        Some((at, _)) => format!("{} ..", &how[..at]),
        None => how.into(),
    }
}

/// The pulse of a run as one of its observers.
#[derive(Default)]
pub(crate) struct Watch {
    info: Option<RunInfo>,
}

impl Observer for Watch {
    fn on_start(&mut self, info: &RunInfo) {
        // A run with nothing left to do stands after its last epoch, and is told as at the end of that one.
        let ended = info.epoch >= info.epochs;
        let done = if ended { info.batches } else { info.position };
        let (epoch, epochs, total, step) = ((info.epoch + 1).min(info.epochs), info.epochs, info.batches, info.step);
        with(|pulse| {
            pulse.beat(true, |beat| (beat.epoch, beat.epochs, beat.done, beat.total, beat.step) = (epoch, epochs, done, total, step));
        });
        self.info = Some(info.clone());
    }

    fn on_phase(&mut self, phase: Phase) {
        turn_to(phase);
    }

    fn on_batch(&mut self, report: &BatchReport) {
        let Some(info) = &self.info else { return };
        with(|pulse| {
            pulse.pace.add(report.seconds);
            pulse.beat(false, |beat| {
                (beat.epoch, beat.epochs, beat.step) = (report.epoch + 1, report.epochs, report.step);
                (beat.done, beat.total) = (report.position + 1, info.batches);
                beat.losses = info.item_names.iter().map(ToString::to_string).zip(report.means.iter().copied()).collect();
                beat.losses.retain(|_, loss| loss.is_finite());
                (beat.speed, beat.unit) = (report.rate(), info.unit.into());
                beat.gauges = report.gauges.iter().map(|(name, value, _)| (name.to_string(), *value)).collect();
            });
        });
    }

    fn on_saved(&mut self, step: u64) {
        let begun = self.info.as_ref().map_or(u64::MAX, |info| info.step);
        with(|pulse| {
            pulse.beat(true, |beat| {
                beat.saves += 1;
                beat.progressed |= step > begun;
            });
        });
    }

    fn on_evaluating(&mut self, done: usize, total: usize) {
        with(|pulse| pulse.beat(false, |beat| (beat.evaluated, beat.to_evaluate) = (done, total)));
    }
}

#[cfg(test)]
mod tests {
    use bellows_learner::StepTimes;
    use bellows_runs::read_beat;

    use super::*;

    #[test]
    fn a_batch_tells_how_many_epochs_are_planned_by_then() {
        begin(Limits::default(), None);
        let told = || pulse().as_ref().map(|pulse| (pulse.beat.epoch, pulse.beat.epochs));
        let (item_names, metric_names) = (Vec::new(), Vec::new());
        let info = RunInfo { epochs: 100, epoch: 99, position: 0, batches: 3, step: 297, unit: "images", item_names, metric_names };
        let mut watch = Watch::default();
        watch.on_start(&info);
        assert_eq!(told(), Some((100, 100)));
        let report = BatchReport {
            step: 301,
            epoch: 100,
            epochs: 103,
            position: 0,
            items: Vec::new(),
            means: Vec::new(),
            count: 7,
            samples: 4,
            units: 4,
            seconds: 0.1,
            lr: Vec::new(),
            grad_norm: None,
            times: StepTimes::default(),
            gauges: Vec::new(),
        };
        watch.on_batch(&report);
        assert_eq!(told(), Some((101, 103)));
    }

    #[test]
    fn an_end_of_any_length_is_read() {
        assert_eq!(shortened("done"), "done");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("heartbeat.json");
        // What JSON writes in as many bytes as it can.
        for letter in ["\u{1}", "\u{1f600}"] {
            let beat = Beat { ended: Some(shortened(&letter.repeat(1 << 16))), ..Beat::default() };
            Heartbeat::create(&path).unwrap().write(&beat).unwrap();
            assert_eq!(read_beat(&path), Some(beat));
        }
    }
}
