//! What is launched: CubeCL tells an observer of every kernel before it runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cubecl::logging::{LaunchObservation, LaunchObserver};

/// Kernels by their full names, and how often each was launched.
pub type Launches = BTreeMap<&'static str, usize>;

#[derive(Default)]
struct Trace(Mutex<Launches>);

impl LaunchObserver for Trace {
    fn launched(&self, kernel: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(kernel).or_default() += 1;
    }
}

/// What `work` returns, and the kernels that the process launches meanwhile, on whatever CubeCL device.
pub fn launches<T>(work: impl FnOnce() -> T) -> (T, Launches) {
    let trace = Arc::new(Trace::default());
    let watching = LaunchObservation::new(trace.clone());
    let result = work();
    drop(watching);
    let launches = std::mem::take(&mut *trace.0.lock().unwrap_or_else(PoisonError::into_inner));
    (result, launches)
}

/// What `two` steps launch more than `one`.
pub fn more(two: Launches, one: &Launches) -> Launches {
    let difference = |(kernel, count): (&'static str, usize)| (kernel, count.saturating_sub(one.get(kernel).copied().unwrap_or(0)));
    two.into_iter().map(difference).filter(|(_, count)| *count > 0).collect()
}
