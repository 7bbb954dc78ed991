//! From an error to the one message a user reads and the code a script sees.

use std::io::Write;

use bellows_device::{DeviceError, RequestError};
use bellows_learner::LearnError;
use bellows_runs::{LockError, RunDirError};
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
    error.chain().find_map(code_of).unwrap_or(FAILED)
}

/// Transparent errors hide what they hold from the chain, so this looks inside them.
fn code_of(cause: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(train) = cause.downcast_ref::<TrainError>() {
        return match train {
            TrainError::Learn(learn) => code_of_learner(learn),
            TrainError::Validation(_) => None,
            TrainError::Config(_) | TrainError::Data(_) | TrainError::RunDir(_) | TrainError::Weights { .. } => Some(USAGE),
        };
    }
    if let Some(learn) = cause.downcast_ref::<LearnError>() {
        return code_of_learner(learn);
    }
    let usage = cause.is::<Usage>()
        || cause.is::<ConfigError>()
        || cause.is::<DataError>()
        || cause.is::<RequestError>()
        || cause.is::<DeviceError>()
        || cause.is::<LockError>()
        || cause.is::<RunDirError>();
    usage.then_some(USAGE)
}

fn code_of_learner(error: &LearnError) -> Option<u8> {
    match error {
        LearnError::FinalSave(_) => Some(FINAL_SAVE),
        LearnError::Diverged { .. } => Some(DIVERGED),
        LearnError::Mismatch { .. } | LearnError::Load(_) | LearnError::Config(_) => Some(USAGE),
        LearnError::Task { .. } | LearnError::Store(_) | LearnError::Log(_) | LearnError::Save(_) | LearnError::Device(_) => None,
    }
}
