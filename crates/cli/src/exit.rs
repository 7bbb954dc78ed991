//! From an error to the one message a user reads and the code a script sees: 1 failed while running, 2 the input or the command line is
//! wrong, 3 the final save failed, 4 training diverged.

use std::error::Error;
use std::io::Write;

use bellows_device::{DeviceError, RequestError};
use bellows_learner::LearnError;
use bellows_runs::{LockError, RunDirError};
use bellows_settings::SettingsError;

const FAILED: u8 = 1;
/// The code for a wrong input or command line.
pub const USAGE: u8 = 2;
/// The code for a run that is done and whose result could not be saved.
pub const FINAL_SAVE: u8 = 3;
const DIVERGED: u8 = 4;

/// The input or the command line is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Prints the chain of causes once, on one line, to stderr.
pub(crate) fn complain(error: &anyhow::Error) {
    if writeln!(std::io::stderr(), "error: {}", message(error)).is_err() {
        tracing::debug!("stderr is closed");
    }
}

fn message(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        // A transparent error says the same as its source.
        if !message.contains(&cause) {
            message = if message.is_empty() { cause } else { format!("{message}: {cause}") };
        }
    }
    message
}

/// The exit code: of the first cause that has one, by the program's own `code_of` or as below.
pub(crate) fn code(error: &anyhow::Error, code_of: impl Fn(&(dyn Error + 'static)) -> Option<u8>) -> u8 {
    error.chain().find_map(|cause| code_of(cause).or_else(|| code_of_shared(cause))).unwrap_or(FAILED)
}

fn code_of_shared(cause: &(dyn Error + 'static)) -> Option<u8> {
    if let Some(learn) = cause.downcast_ref::<LearnError>() {
        return code_of_learner(learn);
    }
    let usage = cause.is::<Usage>()
        || cause.is::<SettingsError>()
        || cause.is::<RequestError>()
        || cause.is::<DeviceError>()
        || cause.is::<LockError>()
        || cause.is::<RunDirError>();
    usage.then_some(USAGE)
}

/// The code of the Learner's errors, for those that hold one transparently and so hide it from the chain.
pub fn code_of_learner(error: &LearnError) -> Option<u8> {
    match error {
        LearnError::FinalSave(_) => Some(FINAL_SAVE),
        LearnError::Diverged { .. } => Some(DIVERGED),
        LearnError::Mismatch { .. } | LearnError::Load(_) | LearnError::Config(_) => Some(USAGE),
        LearnError::Task { .. } | LearnError::Store(_) | LearnError::Log(_) | LearnError::Save(_) => None,
        LearnError::OutOfMemory { .. } | LearnError::Device(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_cause_anywhere_in_the_chain_decides_and_is_told_once() {
        let none = |_: &(dyn Error + 'static)| None;
        let usage = anyhow::Error::from(Usage("no such file".into())).context("reading").context("reading");
        assert_eq!((message(&usage).as_str(), code(&usage, none)), ("reading: no such file", USAGE));
        assert_eq!(code(&anyhow!("the disk is full"), none), FAILED);
        assert_eq!(code(&anyhow!("own"), |cause| (cause.to_string() == "own").then_some(7)), 7);
    }
}
