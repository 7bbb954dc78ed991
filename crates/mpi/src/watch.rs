//! A clock beside an exchange that cannot be left: MPI waits for ever, and its errors end the process.
//!
//! So a thread of its own looks at how long the exchange under way has taken. When that is longer than it may be, it says so and ends this process, and the launcher
//! ends the others, however deep they hang.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bellows_exit::Exit;

/// How often it looks: what a rank that hangs costs beyond its limit.
const EVERY: Duration = Duration::from_millis(200);

/// The limit of an exchange, if there is one, and since when one is under way; the first is the meeting.
#[derive(Clone, Default)]
pub(crate) struct Watch(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// This one, once all have met.
    rank: Option<usize>,
    patience: Option<Duration>,
    since: Option<Instant>,
}

impl State {
    /// The limit that is over at `now`.
    fn is_over(&self, now: Instant) -> Option<Duration> {
        self.patience.filter(|&patience| self.since.is_some_and(|since| now.duration_since(since) >= patience))
    }
}

impl Watch {
    /// One whose thread looks from now on.
    pub(crate) fn begin() -> Self {
        let watch = Self::default();
        let seen = watch.clone();
        thread::spawn(move || {
            loop {
                thread::sleep(EVERY);
                if let (rank, Some(patience)) = seen.with(|state| (state.rank, state.is_over(Instant::now()))) {
                    end(rank, patience);
                }
            }
        });
        watch
    }

    /// All ranks have met, and this one is of that number.
    pub(crate) fn met(&self, rank: usize) {
        self.with(|state| state.rank = Some(rank));
    }

    /// From the next exchange on each may take so long.
    pub(crate) fn wait_at_most(&self, patience: Duration) {
        self.with(|state| state.patience = Some(patience));
    }

    /// What an exchange makes, in its time.
    pub(crate) fn during<T>(&self, exchange: impl FnOnce() -> T) -> T {
        self.with(|state| state.since = Some(Instant::now()));
        let made = exchange();
        self.with(|state| state.since = None);
        made
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Ends this process. Nothing has to be written first: a checkpoint is complete or absent at every moment.
fn end(rank: Option<usize>, patience: Duration) -> ! {
    // What cannot be said any more is no reason to stay.
    drop(writeln!(std::io::stderr(), "error: {}", words(rank, patience.as_secs_f64())));
    std::process::exit(i32::from(Exit::Failed.code()))
}

fn words(rank: Option<usize>, seconds: f64) -> String {
    match rank {
        Some(rank) => format!("rank {rank} has waited {seconds} s for another one, which hangs or is gone; what is saved is kept"),
        None => format!("not all ranks came to MPI's meeting within {seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_exchange_that_takes_longer_than_it_may_is_over() {
        let (watch, limit) = (Watch::default(), Duration::from_secs(3));
        let over = |after: u64| watch.with(|state| state.is_over(Instant::now() + Duration::from_secs(after)));
        watch.during(|| assert_eq!(over(1000), None, "no limit yet"));
        watch.wait_at_most(limit);
        assert_eq!(over(1000), None, "none is under way");
        watch.during(|| assert_eq!((over(2), over(4)), (None, Some(limit))));
        assert_eq!(over(1000), None, "it has been made");
    }
}
