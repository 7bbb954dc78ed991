//! From an error to the code a script sees: see the head of `main.rs`.

use bellows_chat::{ChatError, Fault};
use bellows_cli::Usage;
use bellows_device::{DeviceError, RequestError};
use bellows_learner::LearnError;
use bellows_qwen::base::BaseError;
use bellows_qwen::export::ExportError;
use bellows_qwen::peft::PeftError;
use bellows_qwen::train::FinetuneError;
use bellows_runs::{LockError, RunDirError};
use bellows_settings::SettingsError;

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const FINAL_SAVE: u8 = 3;
const DIVERGED: u8 = 4;

pub(crate) fn code(error: &anyhow::Error) -> u8 {
    error.chain().find_map(code_of).unwrap_or(FAILED)
}

/// Transparent errors hide what they hold from the chain, so this looks inside them.
fn code_of(cause: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(error) = cause.downcast_ref::<FinetuneError>() {
        return match error {
            FinetuneError::Learn(learn) => code_of_learner(learn),
            FinetuneError::Peft(PeftError::Device { .. }) => None,
            _ => Some(USAGE),
        };
    }
    if let Some(learn) = cause.downcast_ref::<LearnError>() {
        return code_of_learner(learn);
    }
    let usage = cause.is::<Usage>()
        || cause.is::<SettingsError>()
        || cause.is::<BaseError>()
        || cause.is::<ChatError>()
        || cause.is::<Fault>()
        || cause.is::<PeftError>()
        || matches!(cause.downcast_ref(), Some(ExportError::Adapter(_) | ExportError::NotFinite(_)))
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
