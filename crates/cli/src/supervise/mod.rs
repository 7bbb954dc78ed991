//! A run that watches itself: this process starts the run in another one, hears its signs of life, and starts it again from the newest
//! checkpoint when it dies or hangs.
//!
//! It computes nothing and touches no device, so nothing of what can hang in a driver can hang here. What it saw is told on stderr and in
//! the run's `supervision.jsonl`; the process that goes on tells it in `events.jsonl`, which is its own.

mod child;
mod memory;
mod policy;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bellows_exit::{Coded, Exit};
use bellows_learner::Limits;
use bellows_runs::{Beat, End, RunDir};
use serde_json::{Value, json};

use crate::orders::{Orders, left};
use crate::{Failure, Signals, note, quoted, scratch};

use child::{Outcome, attempt};
pub(crate) use child::{end_of, end_with_parent};
use policy::{Death, Decision, MAX_WITHOUT_PROGRESS, PAUSES, Pauses, Policy};

/// Between two looks whether a pause is over.
const LOOK: Duration = Duration::from_millis(50);

/// Seconds of every pause before a restart: for tests, which have no time for [`PAUSES`].
const PAUSE: &str = "BELLOWS_PAUSE_SECONDS";

/// How a supervised run ended that did not end well.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SupervisionError {
    /// The process has said why.
    #[error("the run has ended with code {code}")]
    Ended {
        /// Its exit code.
        code: i32,
    },
    /// Restarts come to nothing.
    #[error(
        "the run was started again {} times without a new checkpoint, and is given up: {ends}; its checkpoints stand",
        MAX_WITHOUT_PROGRESS
    )]
    GivenUp {
        /// How each start ended.
        ends: String,
    },
    /// The system cannot end the process.
    #[error(
        "process {pid} hangs and does not die, which happens to a process that a driver holds: the machine must be started again, and then: {again}"
    )]
    Undead {
        /// The process.
        pid: u32,
        /// How to go on.
        again: String,
    },
}

impl Coded for SupervisionError {
    fn exit(&self) -> Exit {
        match self {
            Self::Ended { code } => Exit::of(*code),
            Self::GivenUp { .. } | Self::Undead { .. } => Exit::Failed,
        }
    }
}

/// Runs this process's own command line in other processes until it is done. `fallback`: on the processor, when the device has failed twice;
/// `elastic`: of so many ranks of this machine, those that are lost are left out.
///
/// # Errors
/// An end that a restart would not change, or too many restarts.
pub(crate) fn supervise(program: &str, limits: &Limits, fallback: bool, elastic: Option<usize>, signals: &Signals) -> Result<(), Failure> {
    let (folder, scratch) = scratch(signals)?;
    let mut orders = Orders { folder, supervisor: std::process::id(), ..Orders::default() };
    let mut policy = Policy::new(fallback, pauses());
    let (mut ends, mut run, mut same_command) = (Vec::<String>::new(), None::<PathBuf>, false);
    // In a directory that is used again (`--exist-ok`) an older run's checkpoints lie, until the new one sets them aside.
    let mut own = false;
    loop {
        let (before, kills) = (newest(run.as_deref()), memory::kills());
        let (end, beat) = match attempt(&orders, limits, signals)? {
            Outcome::Ended(end, beat) => (end, beat),
            Outcome::Undead(pid, beat) => {
                let run = beat.run.as_deref().unwrap_or(Path::new(""));
                record(run, &json!({ "event": "undead", "pid": pid, "phase": beat.phase }));
                return Err(SupervisionError::Undead { pid, again: format!("{program} --resume {}", quoted(run)) }.into());
            }
        };
        let lost = elastic.and_then(|ranks| to_leave_out(&orders, ranks, &end, &beat));
        let (end, rank) = if elastic.is_some() { (end, None) } else { cause(end, &beat) };
        run = beat.run.or(run);
        same_command |= beat.same_command;
        let begun = own;
        own |= beat.saves > 0;
        let after = newest(run.as_deref());
        // The checkpoint that every run begins with is no progress.
        let progress = beat.progressed || (own && before.is_some() && after > before);
        let memory_kills = memory::kills() > kills;
        let death = Death { end, rank, phase: beat.phase, begun, progress, accelerator: beat.accelerator, memory_kills };
        // Whoever asked for the end has it, whatever it looks like.
        let decision = if signals.stopped() { Decision::HandOn(code(&death)) } else { policy.decide(&death) };
        let log = run.as_deref().unwrap_or(Path::new(""));
        let Decision::Restart { cuts, processor, pause } = decision else {
            let told = if decision == Decision::GiveUp { "given up" } else { "end" };
            record(log, &json!({ "event": told, "what": death.to_string(), "checkpoint": after }));
            return match decision {
                Decision::HandOn(code) => {
                    // It may end the process at once.
                    drop(scratch);
                    hand_on(code)
                }
                _ => Err(SupervisionError::GivenUp { ends: report(ends, &death) }.into()),
            };
        };
        if death.progress {
            ends.clear();
        }
        ends.push(death.to_string());
        orders.without.extend(lost);
        let without = &orders.without;
        record(
            log,
            &json!({
                "event": "restart",
                "what": death.to_string(),
                "checkpoint": after,
                "cuts": cuts,
                "processor": processor,
                "without": without,
                "pause_s": pause.as_secs(),
            }),
        );
        note(&told(&death, policy.restarts, pause, cuts, processor, without, after));
        orders.restarts += 1;
        (orders.reason, orders.cuts) = (Some(death.to_string()), cuts);
        // With the same command there is no run to name.
        (orders.run, orders.resume) = (run.clone().filter(|_| !same_command), own && after.is_some());
        if processor {
            let why = || format!("the device was lost twice without a new checkpoint in between ({death})");
            orders.processor.get_or_insert_with(why);
        }
        signals.before("stopped between two starts: the last checkpoint stands");
        wait(pause, || signals.stopped());
    }
}

fn pauses() -> Pauses {
    let of_tests = std::env::var(PAUSE).ok().and_then(|seconds| seconds.parse::<u64>().ok());
    of_tests.map_or(PAUSES, |seconds| Pauses::default().map(|_| Duration::from_secs(seconds)))
}

/// Waits so long, or until somebody has asked for the end: a signal that comes meanwhile ends this process, one that came just before is passed on to the next.
fn wait(pause: Duration, stopped: impl Fn() -> bool) {
    let begun = Instant::now();
    while begun.elapsed() < pause && !stopped() {
        std::thread::sleep(LOOK.min(pause));
    }
}

/// What the run ended of: of how another rank ended, if it only failed because that one was lost. What helps is known from that: smaller parts against
/// want of memory, another device for one that is gone. (An elastic run leaves that rank out, and changes nothing for the others.)
fn cause(end: End, beat: &Beat) -> (End, Option<usize>) {
    match beat.lost.zip(beat.lost_end.clone()) {
        Some((rank, own)) if end == End::Code(Exit::Failed.code().into()) => (own, Some(rank)),
        _ => (end, None),
    }
}

/// The number of the rank that is left out from here on, if others are left: the one that rank 0 has lost, or rank 0 itself, if it did not end
/// by itself. Where all have ended alike nobody was lost: the data are away, or the memory ran out for all. Whose card is gone for good is known at the
/// next start, of which that rank alone ends.
fn to_leave_out(orders: &Orders, ranks: usize, end: &End, beat: &Beat) -> Option<usize> {
    if matches!(end, End::Code(_)) && beat.lost_end.as_ref() == Some(end) {
        return None;
    }
    // With code 2 what all need is away; a rank 0 without its card has said that it is the one.
    let of_all = [Exit::Failed, Exit::Usage].map(|exit| End::Code(exit.code().into()));
    let first = (!of_all.contains(end)).then_some(0);
    let left: Vec<usize> = left(0..ranks, &orders.without).collect();
    left.get(beat.lost.or(first)?).copied().filter(|_| left.len() > 1)
}

/// What happens now, for a person.
fn told(death: &Death, restarts: u32, pause: Duration, cuts: u32, processor: bool, without: &[usize], checkpoint: Option<u64>) -> String {
    let soon = if pause.is_zero() { String::new() } else { format!(" in {} s", pause.as_secs()) };
    let from = checkpoint.map_or("from the beginning".into(), |step| format!("from the checkpoint of step {step}"));
    let smaller = if cuts > 0 { ", with smaller parts of batches" } else { "" };
    let place = if processor { ", on the CPU" } else { "" };
    let fewer: String = without.iter().map(|rank| format!(", without rank {rank}")).collect();
    format!(
        "supervisor: {death}; starting again{soon} {from}{smaller}{place}{fewer} (restart {restarts} of {MAX_WITHOUT_PROGRESS} without a new one)"
    )
}

/// All ends in a row, the same ones counted.
fn report(mut ends: Vec<String>, last: &Death) -> String {
    ends.push(last.to_string());
    let mut counted: Vec<(String, usize)> = Vec::new();
    for end in ends {
        match counted.last_mut() {
            Some((same, count)) if *same == end => *count += 1,
            _ => counted.push((end, 1)),
        }
    }
    let said = counted.into_iter().map(|(end, count)| if count > 1 { format!("{end} ({count} times)") } else { end });
    said.collect::<Vec<_>>().join(", then ")
}

fn code(death: &Death) -> i32 {
    match death.end {
        End::Code(code) => code,
        End::Signal(signal) => 128 + signal,
        End::Hung(_) => Exit::Failed.code().into(),
    }
}

/// Ends as the run's process did.
fn hand_on(code: i32) -> Result<(), Failure> {
    match code {
        0 => Ok(()),
        // It was ended at once, as asked, and there is nothing to add.
        129 | 130 | 143 => crate::signals::quit(code),
        code => Err(SupervisionError::Ended { code }.into()),
    }
}

fn newest(run: Option<&Path>) -> Option<u64> {
    RunDir::at(run?).newest_step()
}

/// A line in the run's folder; where there is none yet, the note on stderr has to do.
fn record(run: &Path, event: &Value) {
    if run.as_os_str().is_empty() {
        return;
    }
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut line = json!({ "time": time });
    if let (Value::Object(line), Value::Object(event)) = (&mut line, event) {
        line.extend(event.clone());
    }
    let path = RunDir::at(run).supervision();
    let file = OpenOptions::new().append(true).create(true).open(&path);
    if let Err(error) = file.and_then(|mut file| writeln!(file, "{line}")) {
        // A run that never began has given its directory back.
        tracing::debug!("{}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_that_was_lost_is_left_out_as_long_as_another_is_left() {
        let mut orders = Orders::default();
        let (failed, nobody) = (End::Code(1), Beat::default());
        let lost = |rank| Beat { lost: Some(rank), ..Beat::default() };
        assert_eq!(to_leave_out(&orders, 3, &failed, &nobody), None, "nobody is missing");
        assert_eq!(to_leave_out(&orders, 3, &failed, &lost(1)), Some(1));
        assert_eq!(to_leave_out(&orders, 3, &End::Signal(9), &nobody), Some(0), "rank 0 itself");
        assert_eq!(to_leave_out(&orders, 3, &End::Code(5), &nobody), Some(0), "its card");
        assert_eq!(to_leave_out(&orders, 3, &End::Hung(9.0), &lost(2)), Some(2), "it waited for that one");
        orders.without.push(1);
        assert_eq!(to_leave_out(&orders, 3, &failed, &lost(1)), Some(2), "by its number at the first start");
        orders.without.push(0);
        assert_eq!(to_leave_out(&orders, 3, &End::Signal(9), &nobody), None, "the last one");
    }

    #[test]
    fn ranks_that_end_alike_are_all_started_again() {
        let orders = Orders::default();
        let ended = |lost, lost_end| Beat { lost: Some(lost), lost_end, ..Beat::default() };
        // Data that are away; memory that ran out for all, on whichever card it was.
        for code in [2, 5, 101] {
            assert_eq!(to_leave_out(&orders, 4, &End::Code(code), &ended(1, Some(End::Code(code)))), None, "{code}");
        }
        assert_eq!(to_leave_out(&orders, 4, &End::Code(2), &Beat::default()), None, "the others were ended before they found out");
        // One whose card is gone.
        assert_eq!(to_leave_out(&orders, 4, &End::Code(1), &ended(3, Some(End::Code(2)))), Some(3));
        assert_eq!(to_leave_out(&orders, 4, &End::Code(2), &ended(0, None)), Some(0), "rank 0's");
    }

    #[test]
    fn a_run_that_failed_with_another_rank_ended_of_what_that_one_did() {
        let lost = |lost_end| Beat { lost: Some(2), lost_end, ..Beat::default() };
        for own in [End::Signal(9), End::Code(5), End::Hung(300.0)] {
            assert_eq!(cause(End::Code(1), &lost(Some(own.clone()))), (own, Some(2)));
        }
        assert_eq!(cause(End::Code(1), &lost(None)), (End::Code(1), None), "it was not seen");
        assert_eq!(cause(End::Signal(11), &lost(Some(End::Signal(9)))), (End::Signal(11), None), "rank 0 has an end of its own");
    }

    #[test]
    fn a_pause_ends_when_somebody_asks_for_the_end() {
        let begun = Instant::now();
        wait(Duration::from_secs(3600), || begun.elapsed() > Duration::from_millis(60));
        assert!(begun.elapsed() < Duration::from_secs(60));
        wait(Duration::from_millis(120), || false);
        assert!(begun.elapsed() >= Duration::from_millis(180));
    }

    #[test]
    fn a_report_counts_what_came_again() {
        let (end, phase) = (End::Code(1), "step".into());
        let last = Death { end, rank: None, phase, begun: true, progress: false, accelerator: false, memory_kills: false };
        let ends = ["it hung", "it hung", "it ended in a step with code 1"].map(String::from).to_vec();
        assert_eq!(report(ends, &last), "it hung (2 times), then it ended in a step with code 1 (2 times)");
        assert!(told(&last, 2, Duration::from_secs(10), 1, true, &[3], Some(40)).ends_with(
            "code 1; starting again in 10 s from the checkpoint of step 40, with smaller parts of batches, on the CPU, without rank 3 (restart 2 of 3 without a new one)"
        ));
        assert!(told(&last, 1, Duration::ZERO, 0, false, &[], None).contains("code 1; starting again from the beginning (restart 1 "));
    }
}
