//! One start of the run in a process of its own, watched by its signs of life until it ends or has to be ended.
//!
//! The process is in a group of its own, so that a key of the terminal reaches this one alone, which passes it on once. Its standard input is
//! a pipe that closes when this process dies, however it dies: then it saves and ends.

use std::ffi::OsString;
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bellows_device::this_program;
use bellows_exit::Exit;
use bellows_learner::{Limits, Phase};
use bellows_runs::{Beat, End, read_beat};
use signal_hook::consts::SIGTERM;
use signal_hook::low_level;

use crate::orders::{Orders, supervised};
use crate::signals::terminate;
use crate::{Context, Failure, Signals, note};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// What a process that hangs gets to end by itself, and then the system to end it.
const GRACE: Duration = Duration::from_secs(10);

/// Who has slept for so long between two looks was stopped itself, with the process or without it, and knows nothing of that time.
const ASLEEP: Duration = Duration::from_secs(5);

const STARTING: &str = "starting the run in a process of its own";

/// What became of a start.
pub(super) enum Outcome {
    /// It ended so, and this was its last sign of life.
    Ended(End, Beat),
    /// It was killed and does not die.
    Undead(u32, Beat),
}

/// Starts the run by `orders` and watches it to its end. `limits` hold until it says its own.
///
/// # Errors
/// When the process cannot be started.
pub(super) fn attempt(orders: &Orders, limits: &Limits, signals: &Signals) -> Result<Outcome, Failure> {
    orders.leave()?;
    let mut child = start(orders)?;
    // Dropped at the end: until then the process knows that it is watched.
    let _stdin = child.stdin.take();
    signals.pass_on(child.id());
    let mut beat = Beat { phase: Phase::Start.name().into(), within_s: limits.seconds(Phase::Start), ..Beat::default() };
    let (mut heard, mut looked) = (Instant::now(), Instant::now());
    loop {
        if let Some(status) = ended(&mut child)? {
            // What it said with its last breath.
            let last = read_beat(&orders.heartbeat()).unwrap_or(beat);
            return Ok(Outcome::Ended(end_of(status), last));
        }
        if let Some(latest) = read_beat(&orders.heartbeat()).filter(|latest| latest.count != beat.count) {
            (beat, heard) = (latest, Instant::now());
        }
        if looked.elapsed() > ASLEEP {
            heard = Instant::now();
        }
        looked = Instant::now();
        let silent = heard.elapsed().as_secs_f64();
        if silent > beat.within_s {
            note(&format!("supervisor: no sign of life for {silent:.0} s ({}): process {} is ended", beat.phase, child.id()));
            let (dead, hung) = (end(&mut child)?, End::Hung(beat.within_s));
            // A rank that waited for another may yet have said so.
            let last = read_beat(&orders.heartbeat()).unwrap_or(beat);
            return Ok(if dead { Outcome::Ended(hung, last) } else { Outcome::Undead(child.id(), last) });
        }
        std::thread::sleep(LOOK);
    }
}

fn start(orders: &Orders) -> Result<Child, Failure> {
    let program = this_program().context(Exit::Failed, STARTING)?;
    let words: Vec<OsString> = std::env::args_os().skip(1).chain(supervised(&orders.folder)).collect();
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::piped());
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn().context(Exit::Failed, STARTING)
}

fn ended(child: &mut Child) -> Result<Option<ExitStatus>, Failure> {
    child.try_wait().context(Exit::Failed, "waiting for the run's process")
}

/// Asks, then forces. Whether it is dead then: a process that is held in a driver is not, and must not be waited for.
fn end(child: &mut Child) -> Result<bool, Failure> {
    terminate(child.id()).ok();
    if dies(child, GRACE)? {
        return Ok(true);
    }
    child.kill().context(Exit::Failed, "killing the run's process")?;
    dies(child, GRACE)
}

fn dies(child: &mut Child, within: Duration) -> Result<bool, Failure> {
    let asked = Instant::now();
    while asked.elapsed() < within {
        if ended(child)?.is_some() {
            return Ok(true);
        }
        std::thread::sleep(LOOK);
    }
    Ok(false)
}

/// How a process ended that nobody here has ended.
#[cfg(unix)]
pub(crate) fn end_of(status: ExitStatus) -> End {
    use std::os::unix::process::ExitStatusExt;
    status.signal().map_or_else(|| End::Code(status.code().unwrap_or(-1)), End::Signal)
}

/// How a process ended that nobody here has ended.
#[cfg(not(unix))]
pub(crate) fn end_of(status: ExitStatus) -> End {
    End::Code(status.code().unwrap_or(-1))
}

/// In a process that another one has started: when that has died it says so, if it has words for it, and ends as it does when it is asked to.
pub(crate) fn end_with_parent(words: Option<&'static str>) {
    std::thread::spawn(move || {
        let mut sink = [0; 64];
        while matches!(std::io::stdin().read(&mut sink), Ok(read) if read > 0) {}
        words.into_iter().for_each(note);
        low_level::raise(SIGTERM).ok();
    });
}
