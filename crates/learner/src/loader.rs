//! Batches in order from worker threads, with bounded memory.
//!
//! Worker `w` of `n` makes batches w, w+n, w+2n ... into its own short queue and the consumer takes them in turn: the order is fixed
//! whatever the threads do, and at most `DEPTH + 1` batches a worker are ever alive.

use std::io;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Once, OnceLock};
use std::thread::{Builder, Scope};

const DEPTH: usize = 2;

/// What a worker does.
type Work<'scope> = Box<dyn FnOnce() + Send + 'scope>;

enum Source<'scope, B> {
    Inline(Box<dyn Fn(usize) -> B + 'scope>),
    Threads(Vec<Receiver<B>>),
}

/// An iterator over the results of `make(i)` for `i` in a range, in order.
pub struct Loader<'scope, B> {
    source: Source<'scope, B>,
    first: usize,
    next: usize,
    end: usize,
}

impl<'scope, B: Send + 'scope> Loader<'scope, B> {
    /// Starts `workers` threads in `scope`, or as many as the system gives; 0 makes each batch when it is asked for, on the caller's thread.
    ///
    /// Dropping the loader ends the threads after the batch they are working on.
    pub fn start<F>(scope: &'scope Scope<'scope, '_>, workers: usize, range: std::ops::Range<usize>, make: F) -> Self
    where
        F: Fn(usize) -> B + Send + Sync + Clone + 'scope,
    {
        Self::start_by(|work| Builder::new().spawn_scoped(scope, work).map(drop), workers, range, make)
    }

    /// The same with threads that `spawn` starts, or refuses to.
    fn start_by<F>(mut spawn: impl FnMut(Work<'scope>) -> io::Result<()>, workers: usize, range: std::ops::Range<usize>, make: F) -> Self
    where
        F: Fn(usize) -> B + Send + Sync + Clone + 'scope,
    {
        let workers = workers.min(range.len());
        let (mut queues, mut refused) = (Vec::new(), None);
        // Which batches are a worker's depends on how many there are, which is known when all have started.
        let count = Arc::new(OnceLock::<usize>::new());
        for w in 0..workers {
            let (sender, receiver) = sync_channel(DEPTH);
            let (make, range, count) = (make.clone(), range.clone(), Arc::clone(&count));
            let work = move || {
                for i in range.skip(w).step_by(*count.wait()) {
                    if sender.send(make(i)).is_err() {
                        break;
                    }
                }
            };
            match spawn(Box::new(work)) {
                Ok(()) => queues.push(receiver),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        count.set(queues.len()).ok();
        if let Some(error) = refused {
            static TOLD: Once = Once::new();
            let told = || tracing::warn!("batches are made by {} threads where {workers} were asked for: {error}", queues.len());
            TOLD.call_once(told);
        }
        let source = if queues.is_empty() { Source::Inline(Box::new(make)) } else { Source::Threads(queues) };
        Self { source, first: range.start, next: range.start, end: range.end }
    }
}

impl<B> Iterator for Loader<'_, B> {
    type Item = B;

    /// The next batch; `None` at the end (or if a worker panicked, which the scope then propagates).
    fn next(&mut self) -> Option<B> {
        if self.next >= self.end {
            return None;
        }
        let i = self.next;
        self.next += 1;
        match &self.source {
            Source::Inline(make) => Some(make(i)),
            Source::Threads(queues) => queues[(i - self.first) % queues.len()].recv().ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn order_does_not_depend_on_workers() {
        for workers in [0, 1, 3, 8, 100] {
            let got: Vec<usize> = std::thread::scope(|scope| {
                let slow_at_even = |i: usize| {
                    if i.is_multiple_of(2) {
                        std::thread::sleep(std::time::Duration::from_millis(2));
                    }
                    i * 10
                };
                Loader::start(scope, workers, 5..25, slow_at_even).collect()
            });
            assert_eq!(got, (5..25).map(|i| i * 10).collect::<Vec<_>>(), "{workers} workers");
        }
    }

    #[test]
    fn threads_that_are_refused_are_done_without() {
        for given in [0, 1, 3] {
            let got: Vec<usize> = std::thread::scope(|scope| {
                let mut started = 0;
                let loader = Loader::start_by(
                    |work| {
                        if started == given {
                            return Err(io::ErrorKind::WouldBlock.into());
                        }
                        started += 1;
                        Builder::new().spawn_scoped(scope, work).map(drop)
                    },
                    8,
                    5..25,
                    |i| i * 10,
                );
                loader.collect()
            });
            assert_eq!(got, (5..25).map(|i| i * 10).collect::<Vec<_>>(), "{given} threads");
        }
    }

    #[test]
    fn stopping_early_ends_the_workers_and_bounds_what_they_made() {
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let count = |_| made.fetch_add(1, Ordering::SeqCst);
            let mut loader = Loader::start(scope, 2, 0..1_000_000, count);
            loader.next();
        });
        assert!(made.into_inner() <= 2 * (DEPTH + 1) + 1);
    }
}
