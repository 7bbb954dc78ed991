//! Why a detector cannot be exported.

use bellows_exit::{Coded, Exit};
use bellows_weights::WeightsError;
use burn::store::burn_pack::Error as ReadError;

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The device cannot hand a tensor back.
    #[error(transparent)]
    Model(#[from] ReadError),
    /// The format cannot hold it.
    #[error(transparent)]
    Write(#[from] WeightsError),
    /// The model came from ONNX.
    #[error("its batch normalisation is folded in, so only ONNX can be made of it: export from the .pt or .safetensors it came from")]
    Folded,
    /// A number that 16 bits cannot hold.
    #[error("{count} values of `{name}` are beyond the range of 16-bit floats (65504): export without --half")]
    Half {
        /// The tensor.
        name: String,
        /// How many.
        count: usize,
    },
    /// A model that does not have a tensor that its layers ask for.
    #[error("the model has no tensor `{0}` of the shape that its layers ask for")]
    Absent(String),
}

impl Coded for ExportError {
    fn exit(&self) -> Exit {
        match self {
            Self::Folded | Self::Half { .. } => Exit::Usage,
            Self::Model(_) | Self::Write(_) | Self::Absent(_) => Exit::Failed,
        }
    }
}
