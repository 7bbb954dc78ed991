//! The exit codes of this program's own errors; those of what it shares with others are `bellows_cli`'s.

use std::error::Error;

use bellows_cli::{USAGE, code_of_learner};
use bellows_yolo::TrainError;
use bellows_yolo::data::DataError;

/// Transparent errors hide what they hold from the chain, so this looks inside them.
pub(crate) fn code_of(cause: &(dyn Error + 'static)) -> Option<u8> {
    if cause.is::<DataError>() {
        return Some(USAGE);
    }
    match cause.downcast_ref::<TrainError>()? {
        TrainError::Learn(learn) => code_of_learner(learn),
        TrainError::Validation(_) => None,
        TrainError::Config(_) | TrainError::Data(_) | TrainError::RunDir(_) | TrainError::Weights { .. } => Some(USAGE),
    }
}
