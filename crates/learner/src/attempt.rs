//! Work on a device that may run out of memory.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::LearnError;
use crate::shortage::Shortage;

/// Why work on the device failed.
pub(crate) enum Failure {
    /// It ran out of memory.
    Memory(Shortage),
    /// Anything else.
    Other(LearnError),
}

/// Does `work` on the device and tells a shortage of memory, be it an error or a panic, from other failures, among which a panic with a [`LearnError`] is.
/// Other panics go on.
pub(crate) fn attempt<T>(work: impl FnOnce() -> Result<T, LearnError>) -> Result<T, Failure> {
    static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
    static HOOK: Once = Once::new();
    // A panic that is caught here is told as a notice, not across a progress bar; every other one is printed as ever.
    HOOK.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let caught = info.payload().is::<LearnError>() || Shortage::of_panic(info.payload()).is_some();
            if UNDER_WAY.load(Ordering::Relaxed) == 0 || !caught {
                hook(info);
            }
        }));
    });
    UNDER_WAY.fetch_add(1, Ordering::Relaxed);
    let done = catch_unwind(AssertUnwindSafe(work));
    UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
    match done {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(failure(error)),
        Err(panic) => match panic.downcast::<LearnError>() {
            Ok(error) => Err(failure(*error)),
            Err(panic) => match Shortage::of_panic(&*panic) {
                Some(shortage) => Err(Failure::Memory(shortage)),
                None => resume_unwind(panic),
            },
        },
    }
}

fn failure(error: LearnError) -> Failure {
    Shortage::of(&with_causes(&error)).map_or(Failure::Other(error), Failure::Memory)
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use bellows_exit::{Coded, Exit};

    use super::*;

    #[test]
    fn a_device_that_is_lost_in_the_middle_of_a_step_is_an_error() {
        let step = |words: &str| {
            let error = LearnError::unread("boxes", &LearnError::Config(words.into()));
            attempt::<()>(|| panic_any(error))
        };
        let Err(Failure::Other(error)) = step("gone") else { panic!("no error of the device") };
        assert_eq!((error.to_string().as_str(), error.exit()), ("the device failed: reading boxes: gone", Exit::Device));
        for (words, gone) in [("out of memory", false), ("out of memory, and the device is lost", true)] {
            assert!(matches!(step(words), Err(Failure::Memory(Shortage { lost, .. })) if lost == gone), "{words}");
        }
        assert!(catch_unwind(|| attempt::<()>(|| panic!("a slip"))).is_err(), "other panics go on");
    }
}
