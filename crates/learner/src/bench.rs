//! What a benchmark of training steps needs: their times and medians.

use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use bellows_ranks::Exchange;
use bellows_runs::{RunDir, RunDirError};

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

/// Remembers the times of every step.
#[derive(Clone, Debug, Default)]
pub struct StepTimer(Arc<Mutex<Vec<StepTimes>>>);

impl StepTimer {
    /// The times so far, without the first `warm_up` steps.
    pub fn after(&self, warm_up: usize) -> Vec<StepTimes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().skip(warm_up).copied().collect()
    }
}

impl Observer for StepTimer {
    fn on_batch(&mut self, report: &BatchReport) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(report.times);
    }
}

/// The middle value, or the mean of the two in the middle; NaN of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n == 0 { f64::NAN } else { (values[(n - 1) / 2] + values[n / 2]) / 2.0 }
}
