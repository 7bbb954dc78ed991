//! What a supervisor does about an end: a pure function of how processes of the run ended so far.
//!
//! An end that a restart would not change (a mistake in the settings, a full disk, divergence) is handed on. Any other is answered by a
//! restart, until three in a row have brought no new checkpoint; each comes later than the one before, for a disk or a driver that is away may be
//! there again in a minute.

use std::fmt;
use std::time::Duration;

use bellows_exit::Exit;
use bellows_learner::Phase;
use bellows_runs::End;

/// Restarts in a row without a new checkpoint; one more is not made.
pub(crate) const MAX_WITHOUT_PROGRESS: u32 = 3;

/// What is waited before the first of them, the second, and so on.
pub(crate) type Pauses = [Duration; MAX_WITHOUT_PROGRESS as usize];

/// For runs of days.
pub(crate) const PAUSES: Pauses = [Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(60)];

/// Failures of an accelerator in a row, without a new checkpoint between them, after which it is given up for the processor.
const DEVICE_FAILURES: u32 = 2;

/// The signals that tell of want of memory: what Linux kills with, and what an allocation that is refused ends in.
const SIGKILL: i32 = 9;
const SIGABRT: i32 = 6;

/// An end, and what went before it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Death {
    pub(crate) end: End,
    /// The other rank that ended so, if it was one.
    pub(crate) rank: Option<usize>,
    /// What the process was busy with.
    pub(crate) phase: String,
    /// A process before it has made a checkpoint: settings and data were good then.
    pub(crate) begun: bool,
    /// A checkpoint newer than those at its start.
    pub(crate) progress: bool,
    pub(crate) accelerator: bool,
    /// The system says that it has killed processes for want of memory since this one was started.
    pub(crate) memory_kills: bool,
}

impl Death {
    /// Whether this process was one of those: they are killed by SIGKILL.
    fn out_of_memory(&self) -> bool {
        self.memory_kills && self.end == End::Signal(SIGKILL)
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match self.phase.as_str() {
            "" | "start" => "before training",
            "first" => "in its first step",
            "step" => "in a step",
            "evaluation" => "in an evaluation",
            "save" => "while saving a checkpoint",
            _ => "while writing files",
        };
        if let Some(rank) = self.rank {
            write!(f, "rank {rank}: ")?;
        }
        match &self.end {
            End::Hung(seconds) => write!(f, "it hung {phase}: no sign of life for {seconds:.0} s"),
            End::Signal(_) if self.out_of_memory() => write!(f, "the system killed it {phase} for want of memory"),
            End::Signal(signal) => write!(f, "it died {phase} of {}", name(*signal)),
            End::Code(0) => f.write_str("it ended well"),
            End::Code(code) if *code == device_code() => write!(f, "the device failed {phase}"),
            End::Code(code) => write!(f, "it ended {phase} with code {code}"),
        }
    }
}

fn name(signal: i32) -> String {
    let known = [(SIGABRT, "SIGABRT"), (7, "SIGBUS"), (4, "SIGILL"), (8, "SIGFPE"), (SIGKILL, "SIGKILL"), (11, "SIGSEGV")];
    known.iter().find(|(number, _)| *number == signal).map_or(format!("signal {signal}"), |(_, name)| (*name).into())
}

fn device_code() -> i32 {
    Exit::Device.code().into()
}

fn usage_code() -> i32 {
    Exit::Usage.code().into()
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decision {
    /// Nothing: the run ended with this code, and would again.
    HandOn(i32),
    /// Start again.
    Restart {
        /// How often batches are cut in two, besides what the newest checkpoint says.
        cuts: u32,
        /// On the processor.
        processor: bool,
        /// After so long.
        pause: Duration,
    },
    /// Nothing more: it comes to nothing.
    GiveUp,
}

/// What there was.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policy {
    /// Whether the processor may be taken in place of a device that fails.
    fallback: bool,
    pauses: Pauses,
    /// Since the last checkpoint: restarts, failures of the device, ends that look like want of memory, cuts made for them.
    pub(crate) restarts: u32,
    device_failures: u32,
    memory_failures: u32,
    cuts: u32,
    /// Sticks, as far as this supervisor goes: a device that came back would be lost again.
    processor: bool,
}

impl Policy {
    pub(crate) fn new(fallback: bool, pauses: Pauses) -> Self {
        Self { fallback, pauses, ..Self::default() }
    }

    pub(crate) fn decide(&mut self, death: &Death) -> Decision {
        if death.progress {
            *self = Self { processor: self.processor, ..Self::new(self.fallback, self.pauses) };
        }
        if let End::Code(code) = death.end
            && self.is_final(code, death)
        {
            return Decision::HandOn(code);
        }
        if self.restarts == MAX_WITHOUT_PROGRESS {
            return Decision::GiveUp;
        }
        self.restarts += 1;
        // A kill without the system's word for it may have been anybody's, once.
        let killed = matches!(death.end, End::Signal(SIGKILL | SIGABRT));
        self.memory_failures += u32::from(killed);
        if death.out_of_memory() || (killed && self.memory_failures >= 2) {
            self.cuts += 1;
        }
        let failed = self.is_of_the_device(death);
        self.device_failures += u32::from(failed);
        self.processor |= self.fallback && self.device_failures >= DEVICE_FAILURES;
        let [.., longest] = self.pauses;
        // The processor, once taken, is kept: before that the device has all the time there is to come back.
        let last_try = failed && self.fallback && !self.processor;
        let pause = if last_try { longest } else { self.pauses[self.restarts as usize - 1] };
        Decision::Restart { cuts: self.cuts, processor: self.processor, pause }
    }

    /// Whether this code would come again. Code 2 of a run that was under way is a device, or data, not there now: nothing else has changed.
    fn is_final(&self, code: i32, death: &Death) -> bool {
        // 129, 130 and 143: somebody has asked it to end at once.
        let final_codes = [0, Exit::FinalSave.code().into(), Exit::Diverged.code().into(), 129, 130, 143];
        let under_way = (self.device_failures > 0 || death.begun) && death.phase == Phase::Start.name();
        final_codes.contains(&code) || (code == usage_code() && !under_way)
    }

    /// Whether it may have been the device's fault: it says so, it is not there any more after it has failed, or a process that computes on an accelerator
    /// hangs or crashes in its driver.
    fn is_of_the_device(&self, death: &Death) -> bool {
        match death.end {
            End::Code(code) if code == device_code() => true,
            // Of a process that has its accelerator it is something else.
            End::Code(code) if code == usage_code() => self.device_failures > 0 && !death.accelerator,
            End::Signal(SIGKILL) => false,
            End::Hung(_) | End::Signal(_) | End::Code(101) => death.accelerator,
            End::Code(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn death(end: End) -> Death {
        Death { end, rank: None, phase: "step".into(), begun: false, progress: false, accelerator: false, memory_kills: false }
    }

    fn again(cuts: u32, processor: bool) -> Decision {
        Decision::Restart { cuts, processor, pause: Duration::ZERO }
    }

    fn decisions(fallback: bool, deaths: &[Death]) -> Vec<Decision> {
        let mut policy = Policy::new(fallback, Pauses::default());
        deaths.iter().map(|death| policy.decide(death)).collect()
    }

    /// Seconds before each restart.
    fn pauses(fallback: bool, deaths: &[Death]) -> Vec<u64> {
        let mut policy = Policy::new(fallback, PAUSES);
        let decided = deaths.iter().map(|death| policy.decide(death));
        decided.filter_map(|decision| if let Decision::Restart { pause, .. } = decision { Some(pause.as_secs()) } else { None }).collect()
    }

    #[test]
    fn three_restarts_without_a_checkpoint_are_enough() {
        let crash = death(End::Signal(11));
        let [none, given_up] = [again(0, false), Decision::GiveUp];
        let four = [(); 4].map(|()| crash.clone());
        assert_eq!(decisions(false, &four), [none.clone(), none.clone(), none.clone(), given_up]);
        let after_progress = Death { progress: true, ..crash.clone() };
        let deaths: Vec<Death> = (0..20).map(|i| if i % 3 == 0 { after_progress.clone() } else { crash.clone() }).collect();
        assert!(decisions(false, &deaths).iter().all(|decision| *decision == none), "it gets on");
    }

    #[test]
    fn what_would_come_again_is_handed_on() {
        for code in [0, 2, 3, 4, 129, 130, 143] {
            assert_eq!(decisions(true, &[death(End::Code(code))]), [Decision::HandOn(code)]);
        }
        for code in [1, 5, 101] {
            assert_eq!(decisions(false, &[death(End::Code(code))]), [again(0, false)]);
        }
    }

    #[test]
    fn each_restart_without_a_checkpoint_comes_later() {
        let crash = death(End::Signal(11));
        let after_progress = Death { progress: true, ..crash.clone() };
        let deaths = [crash.clone(), crash.clone(), after_progress, crash.clone(), crash.clone(), crash];
        assert_eq!(pauses(false, &deaths), [1, 10, 1, 10, 60], "and then it is given up");
        // A card that is lost has a minute before it is given up for good.
        let lost = death(End::Code(5));
        assert_eq!(pauses(true, &[lost.clone(), lost.clone(), lost.clone()]), [60, 10, 60]);
        assert_eq!(pauses(false, &[lost.clone(), lost]), [1, 10]);
    }

    /// A disk that is not there for a moment: before the run began it is a mistake of the user's.
    #[test]
    fn data_that_are_away_are_waited_for_once_a_run_is_under_way() {
        let away = Death { phase: "start".into(), ..death(End::Code(2)) };
        assert_eq!(decisions(true, std::slice::from_ref(&away)), [Decision::HandOn(2)]);
        let begun = Death { begun: true, ..away };
        let four = [(); 4].map(|()| begun.clone());
        let again = again(0, false);
        assert_eq!(decisions(true, &four), [again.clone(), again.clone(), again.clone(), Decision::GiveUp], "it is not the device");
        assert_eq!(pauses(true, &four), [1, 10, 60]);
        let [lost, with_its_card] = [death(End::Code(5)), Death { accelerator: true, ..begun.clone() }];
        assert_eq!(decisions(true, &[lost, with_its_card]), [again.clone(), again]);
        let later = Death { phase: "export".into(), ..begun };
        assert_eq!(decisions(true, &[later]), [Decision::HandOn(2)], "it has found out something");
    }

    #[test]
    fn want_of_memory_makes_parts_smaller() {
        let told = Death { memory_kills: true, ..death(End::Signal(9)) };
        assert_eq!(decisions(false, &[told.clone(), told]), [again(1, false), again(2, false)]);
        let [killed, aborted, crashed] = [9, 6, 11].map(|signal| death(End::Signal(signal)));
        assert_eq!(decisions(false, &[killed.clone(), aborted.clone(), aborted]), [again(0, false), again(1, false), again(2, false)]);
        assert_eq!(decisions(false, &[killed.clone(), killed.clone(), crashed]), [again(0, false), again(1, false), again(1, false)]);
        // Another process was killed meanwhile, and this one did not end of that.
        for end in [End::Code(5), End::Signal(11), End::Hung(9.0)] {
            let beside = Death { memory_kills: true, accelerator: true, ..death(end) };
            assert_eq!(decisions(true, &[beside.clone(), beside]), [again(0, false), again(0, true)]);
        }
        let later = Death { progress: true, ..killed.clone() };
        assert_eq!(decisions(false, &[killed, later]), [again(0, false), again(0, false)], "two kills, days apart");
    }

    #[test]
    fn a_device_that_fails_twice_in_a_row_is_given_up_if_the_user_says_so() {
        let lost = death(End::Code(5));
        let hung = Death { accelerator: true, ..death(End::Hung(300.0)) };
        let gone = Death { phase: "start".into(), ..death(End::Code(2)) };
        let slow = death(End::Hung(300.0));
        assert_eq!(decisions(true, &[lost.clone(), hung.clone(), slow.clone()]), [again(0, false), again(0, true), again(0, true)]);
        assert_eq!(decisions(false, &[lost.clone(), hung.clone()]), [again(0, false), again(0, false)]);
        assert_eq!(decisions(true, &[lost.clone(), gone.clone()]), [again(0, false), again(0, true)], "it is not there any more");
        assert_eq!(decisions(true, &[slow.clone(), slow]), [again(0, false), again(0, false)], "the processor is no device to be lost");
        let later = Death { progress: true, ..hung };
        assert_eq!(decisions(true, &[later.clone(), later.clone(), lost]), [again(0, false), again(0, false), again(0, true)]);
        assert_eq!(decisions(true, &[gone]), [Decision::HandOn(2)], "it never was");
    }

    #[test]
    fn an_end_is_a_sentence() {
        let hung = Death { phase: "evaluation".into(), ..death(End::Hung(61.2)) };
        assert_eq!(hung.to_string(), "it hung in an evaluation: no sign of life for 61 s");
        assert_eq!(death(End::Signal(11)).to_string(), "it died in a step of SIGSEGV");
        let killed = Death { memory_kills: true, phase: "first".into(), ..death(End::Signal(9)) };
        assert_eq!(killed.to_string(), "the system killed it in its first step for want of memory");
        let of_rank = Death { rank: Some(1), ..killed };
        assert_eq!(of_rank.to_string(), "rank 1: the system killed it in its first step for want of memory");
        assert_eq!(Death { phase: String::new(), ..death(End::Code(101)) }.to_string(), "it ended before training with code 101");
        assert_eq!([0, 5].map(|code| death(End::Code(code)).to_string()), ["it ended well", "the device failed in a step"]);
    }
}
