//! The exit codes of this program's own errors; those of what it shares with others are `bellows_cli`'s.

use std::error::Error;

use bellows_chat::{ChatError, Fault};
use bellows_cli::{FINAL_SAVE, USAGE, code_of_learner};
use bellows_qwen::base::BaseError;
use bellows_qwen::export::ExportError;
use bellows_qwen::generate::GenerateError;
use bellows_qwen::hub::HubError;
use bellows_qwen::peft::PeftError;
use bellows_qwen::train::FinetuneError;

/// Transparent errors hide what they hold from the chain, so this looks inside them.
pub(crate) fn code_of(cause: &(dyn Error + 'static)) -> Option<u8> {
    if cause.is::<BaseError>() || cause.is::<HubError>() || cause.is::<PeftError>() {
        return Some(USAGE);
    }
    if let Some(chat) = cause.downcast_ref::<ChatError>() {
        return code_of_fault(&chat.fault);
    }
    if let Some(fault) = cause.downcast_ref() {
        return code_of_fault(fault);
    }
    if let Some(export) = cause.downcast_ref() {
        return code_of_export(export);
    }
    if let Some(GenerateError::Setting { .. } | GenerateError::Empty) = cause.downcast_ref() {
        return Some(USAGE);
    }
    match cause.downcast_ref::<FinetuneError>()? {
        FinetuneError::FinalSave(_) => Some(FINAL_SAVE),
        FinetuneError::Learn(learn) => code_of_learner(learn),
        FinetuneError::Export(export) => code_of_export(export),
        FinetuneError::Peft(PeftError::Device { .. }) => None,
        _ => Some(USAGE),
    }
}

fn code_of_export(error: &ExportError) -> Option<u8> {
    match error {
        ExportError::Adapter(_) | ExportError::NotFinite(_) => Some(USAGE),
        ExportError::Vocabulary(fault) | ExportError::Chat(ChatError { fault, .. }) => code_of_fault(fault),
        ExportError::File { .. } | ExportError::Weights(_) | ExportError::Device(_) => None,
    }
}

/// Data and tokenizers are the user's; that they cannot be written is not.
fn code_of_fault(fault: &Fault) -> Option<u8> {
    (!matches!(fault, Fault::Save(_))).then_some(USAGE)
}
