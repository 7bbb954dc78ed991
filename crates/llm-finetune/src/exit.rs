//! The exit codes of this program's own errors; those of what it shares with others are `bellows_cli`'s.

use std::error::Error;

use bellows_chat::{ChatError, Fault};
use bellows_cli::{USAGE, code_of_learner};
use bellows_qwen::base::BaseError;
use bellows_qwen::export::ExportError;
use bellows_qwen::generate::GenerateError;
use bellows_qwen::peft::PeftError;
use bellows_qwen::train::FinetuneError;

/// Transparent errors hide what they hold from the chain, so this looks inside them.
pub(crate) fn code_of(cause: &(dyn Error + 'static)) -> Option<u8> {
    if cause.is::<BaseError>() || cause.is::<ChatError>() || cause.is::<Fault>() || cause.is::<PeftError>() {
        return Some(USAGE);
    }
    if let Some(ExportError::Adapter(_) | ExportError::NotFinite(_)) = cause.downcast_ref() {
        return Some(USAGE);
    }
    if let Some(GenerateError::Setting { .. } | GenerateError::Empty) = cause.downcast_ref() {
        return Some(USAGE);
    }
    match cause.downcast_ref::<FinetuneError>()? {
        FinetuneError::Learn(learn) => code_of_learner(learn),
        FinetuneError::Export(export) => code_of(export),
        FinetuneError::Peft(PeftError::Device { .. }) => None,
        _ => Some(USAGE),
    }
}
