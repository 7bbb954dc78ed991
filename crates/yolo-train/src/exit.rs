//! From an error to the one message a user reads and the code a script sees.

use std::io::Write;

use bellows_device::{DeviceError, RequestError};
use bellows_learner::LearnError;
use bellows_runs::{LoadError, LockError, RunDirError};
use bellows_yolo::TrainError;
use bellows_yolo::config::ConfigError;
use bellows_yolo::data::DataError;

/// The input or the command line is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const FINAL_SAVE: u8 = 3;
const DIVERGED: u8 = 4;

/// Prints the chain of causes once, on one line, to stderr.
pub(crate) fn complain(error: &anyhow::Error) {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        // A transparent error says the same as its source.
        if !message.contains(&cause) {
            message = if message.is_empty() { cause } else { format!("{message}: {cause}") };
        }
    }
    if writeln!(std::io::stderr(), "error: {message}").is_err() {
        tracing::debug!("stderr is closed");
    }
}

/// The exit code of an error: see the head of `main.rs`.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(learn) = cause.downcast_ref::<LearnError>() {
            match learn {
                LearnError::FinalSave(_) => return FINAL_SAVE,
                LearnError::Diverged { .. } => return DIVERGED,
                LearnError::Mismatch { .. } | LearnError::Load(_) | LearnError::Config(_) => return USAGE,
                _ => {}
            }
        }
        if cause.is::<Usage>()
            || cause.is::<ConfigError>()
            || cause.is::<DataError>()
            || cause.is::<RequestError>()
            || cause.is::<DeviceError>()
            || cause.is::<LoadError>()
            || cause.is::<LockError>()
            || cause.is::<RunDirError>()
            || matches!(cause.downcast_ref::<TrainError>(), Some(TrainError::Weights { .. }))
        {
            return USAGE;
        }
    }
    FAILED
}
