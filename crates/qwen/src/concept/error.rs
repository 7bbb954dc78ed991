//! Why a concept cannot be found, scored or taken out.

use std::path::PathBuf;

use bellows_chat::{ChatError, Fault};
use bellows_exit::{Coded, Exit};
use bellows_plots::PlotError;
use bellows_runs::{PathError, StoreError};
use bellows_weights::WeightsError;

use crate::export::ExportError;
use crate::generate::GenerateError;

/// See the variants.
#[derive(Debug, thiserror::Error)]
pub enum ConceptError {
    /// A prompt, the template or the tokenizer.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// Prompt sets of which no direction can be made.
    #[error("{}: {reason}", path.display())]
    Sets {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A setting out of its range.
    #[error("{0}")]
    Setting(String),
    /// A file of an earlier step that does not fit.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file that cannot be read within its budget.
    #[error(transparent)]
    Open(#[from] PathError),
    /// A weight file.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A file that cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A picture.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// A model's files.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// An answer.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// An edit that made the model worse at the guard's text than it may.
    #[error("the perplexity of the guard's text rose by {:.1} %, more than {:.1}: take fewer layers or a lower strength", 100.0 * rise, 100.0 * most)]
    Guard {
        /// By which share it rose.
        rise: f64,
        /// By which it may.
        most: f64,
    },
    /// What the device cannot hand back.
    #[error("reading {what} back from the device: {reason}")]
    Device {
        /// What was read.
        what: String,
        /// Why not.
        reason: String,
    },
}

impl From<Fault> for ConceptError {
    fn from(fault: Fault) -> Self {
        Self::Chat(fault.into())
    }
}

impl Coded for ConceptError {
    fn exit(&self) -> Exit {
        match self {
            Self::Chat(error) => error.exit(),
            Self::Sets { .. } | Self::Setting(_) | Self::File { .. } | Self::Open(_) => Exit::Usage,
            Self::Weights(error) => error.exit(),
            Self::Store(error) => error.exit(),
            Self::Export(error) => error.exit(),
            Self::Generate(error) => error.exit(),
            Self::Plot(_) | Self::Guard { .. } | Self::Device { .. } => Exit::Failed,
        }
    }
}
