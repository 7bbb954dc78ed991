//! What a benchmark of training steps needs: their times and medians, and what those are held against.

use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bellows_ranks::Exchange;
use bellows_runs::{RunDir, RunDirError};
use serde::Serialize;

use crate::{BatchReport, Observer, StepTimes};

/// The other ranks that the same steps are timed with; none where this process is alone.
pub type Others = Option<Rc<dyn Exchange>>;

/// How many ranks there are.
pub fn ranks(others: &Others) -> usize {
    others.as_ref().map_or(1, |others| others.ranks())
}

/// Where a benchmark's Learner writes, in `scratch`: nowhere on any rank but the first.
///
/// # Errors
/// A folder that cannot be written.
pub fn run_dir(scratch: &Path, others: &Others) -> Result<RunDir, RunDirError> {
    match others.as_ref().is_none_or(|others| others.rank() == 0) {
        true => RunDir::create(scratch, "benchmark", false),
        false => Ok(RunDir::nowhere()),
    }
}

/// What the time of a step is held against, in the keys of a benchmark's JSON.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bounds {
    /// Multiplications and additions of a step, each counted, of convolutions, products and attention by their definition: Winograd's method makes do with
    /// fewer, so that it may be faster than the processor could be otherwise.
    pub flop: f64,
    /// 10^9 of them a second of the step's time.
    pub gflops: f64,
    /// [`StepTimer::idle_share`]; `None` also where a card computes, for which threads only wait.
    pub idle_share: Option<f64>,
}

/// A step that is over.
#[derive(Clone, Copy, Debug)]
struct Ended {
    times: StepTimes,
    at: Instant,
    /// [`processor_time`] then.
    worked: Option<f64>,
}

/// Remembers the times of every step.
#[derive(Clone, Debug, Default)]
pub struct StepTimer(Arc<Mutex<Vec<Ended>>>);

impl StepTimer {
    /// The times so far, without the first `warm_up` steps.
    pub fn after(&self, warm_up: usize) -> Vec<StepTimes> {
        self.ended().iter().skip(warm_up).map(|step| step.times).collect()
    }

    /// The share of the time of `threads` threads in which none of this process worked, from the end of the first `warm_up` steps (at least one) to that of
    /// the last, what goes on between steps included: 1 - processor time / (threads x time), and 0 where more threads worked. A thread that looks out for
    /// work counts as busy for that long; one whose core has been given to others counts as idle, so that on a shared machine this is an upper bound. `None`
    /// where the system does not tell, or no step was timed.
    pub fn idle_share(&self, warm_up: usize, threads: usize) -> Option<f64> {
        let ended = self.ended();
        let (first, last) = (ended.get(warm_up.checked_sub(1)?)?, ended.last()?);
        let time = threads as f64 * last.at.duration_since(first.at).as_secs_f64();
        let worked = last.worked? - first.worked?;
        (time > 0.0).then(|| (1.0 - worked / time).max(0.0))
    }

    fn ended(&self) -> MutexGuard<'_, Vec<Ended>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for StepTimer {
    fn on_batch(&mut self, report: &BatchReport) {
        self.ended().push(Ended { times: report.times, at: Instant::now(), worked: processor_time() });
    }
}

/// Seconds that the threads of this process have worked, all together, in the program and in the system on its behalf.
#[cfg(unix)]
fn processor_time() -> Option<f64> {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Some(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

/// Not known here.
#[cfg(not(unix))]
fn processor_time() -> Option<f64> {
    None
}

/// The middle value, or the mean of the two in the middle; NaN of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n == 0 { f64::NAN } else { (values[(n - 1) / 2] + values[n / 2]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn idle_is_what_no_thread_worked() {
        let begun = Instant::now();
        let ended = |second, worked| Ended { times: StepTimes::default(), at: begun + Duration::from_secs(second), worked };
        let timer = |steps| StepTimer(Arc::new(Mutex::new(steps)));
        // From the end of the second step on: six seconds' work in four seconds.
        let timed = timer(vec![ended(0, Some(0.5)), ended(5, Some(1.0)), ended(7, Some(4.0)), ended(9, Some(7.0))]);
        assert_eq!([1, 2, 3].map(|threads| timed.idle_share(2, threads)), [Some(0.0), Some(0.25), Some(0.5)]);
        assert_eq!([0, 4, 5].map(|warm_up| timed.idle_share(warm_up, 2)), [None; 3], "no step before, none timed, none at all");
        assert_eq!(timer(vec![ended(0, None), ended(1, None)]).idle_share(1, 2), None);
    }

    #[test]
    #[cfg(unix)]
    fn work_is_counted() {
        let begun = processor_time().unwrap();
        // Without an end where it is not.
        while processor_time().unwrap() <= begun {}
    }
}
