//! Faults for tests: what a process does to itself when it turns to a certain thing for the n-th time.
//!
//! `BELLOWS_FAULT=hang:save:2` hangs in the second checkpoint; `hang:save:2:3` does so in the first three processes of a run that is started
//! again and again. The first step of a process is `first`, so `kill:step:2` kills it at the beginning of its third. Only tests set it; without it none of this
//! runs.

use bellows_exit::Exit;
use bellows_learner::Phase;
use signal_hook::consts::{SIGKILL, SIGSEGV, SIGSTOP};
use signal_hook::low_level;

use crate::place::rank;

/// The variable.
const VARIABLE: &str = "BELLOWS_FAULT";

/// Which rank it strikes; rank 0 if it is not set.
const OF_RANK: &str = "BELLOWS_FAULT_RANK";

fn send(signal: i32) {
    low_level::raise(signal).ok();
}

/// What happens, and when.
pub(crate) struct Fault {
    kind: String,
    phase: String,
    /// Times that it is still spared.
    spared: u32,
}

impl Fault {
    /// The one that the variable names, for a process of a run that was started again so often.
    pub(crate) fn of_this_process(restarts: u32) -> Option<Self> {
        let text = std::env::var(VARIABLE).ok()?;
        let struck = std::env::var(OF_RANK).ok().and_then(|rank| rank.parse().ok()).unwrap_or(0);
        if rank() != struck {
            return None;
        }
        let mut words = text.split(':');
        let (kind, phase) = (words.next()?.to_string(), words.next()?.to_string());
        let spared = words.next()?.parse::<u32>().ok()?.checked_sub(1)?;
        let starts = words.next().map_or(Ok(1), str::parse).ok()?;
        (restarts < starts).then_some(Self { kind, phase, spared })
    }

    /// Does it, if the time has come.
    pub(crate) fn strike(&mut self, phase: Phase) {
        if phase.name() != self.phase {
            return;
        }
        if self.spared > 0 {
            self.spared -= 1;
            return;
        }
        match self.kind.as_str() {
            "hang" => loop {
                std::thread::park();
            },
            "abort" => std::process::abort(),
            // The first goes to the handler by which Rust finds the end of a stack.
            "segfault" => [SIGSEGV; 2].into_iter().for_each(send),
            "kill" => send(SIGKILL),
            "stop" => send(SIGSTOP),
            // More than any address space: the allocator ends the process.
            "memory" => drop(std::hint::black_box(vec![1_u8; usize::MAX / 4])),
            "lost" => low_level::exit(Exit::Device.code().into()),
            other => panic!("{VARIABLE}: no fault is called {other}"),
        }
    }
}
