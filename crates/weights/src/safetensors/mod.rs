//! safetensors: 8 bytes of header length, a JSON header, then the tensors' bytes without gaps.
//!
//! The header's rules (offsets in order, no hole, no overlap, sizes that fit the shapes) are checked by the
//! `safetensors` crate. Added here: a repeated key is refused instead of the last one winning, data is read and written tensor by
//! tensor instead of through a second copy of the file, and what is written is the same for the same
//! input (the crate writes metadata in hash order).
//! Format: <https://github.com/huggingface/safetensors#format>.

mod checkpoint;
mod header;
mod write;

use std::io::{Cursor, Read};

pub use checkpoint::Checkpoint;
pub use write::{to_safetensors, write_checkpoint, write_safetensors};

use crate::error::{Fault, WeightsError};
use crate::tensor::{Tensor, Weights, insert};

/// The file that says in which file of a sharded checkpoint each tensor is.
const INDEX: &str = "model.safetensors.index.json";
/// The only file of a checkpoint that is not sharded.
const SINGLE: &str = "model.safetensors";

/// Reads safetensors from memory.
///
/// # Errors
/// As [`read`](crate::read()), without a path.
pub fn from_safetensors(bytes: &[u8]) -> Result<Weights, WeightsError> {
    Ok(read(Cursor::new(bytes), bytes.len() as u64)?)
}

pub(crate) fn read(mut file: impl Read, size: u64) -> Result<Weights, Fault> {
    let header = header::read(&mut file, size)?;
    let mut weights = Weights { metadata: header.metadata, ..Weights::default() };
    for entry in header.tensors {
        let mut data = vec![0; entry.place.len()];
        file.read_exact(&mut data)?;
        insert(&mut weights.tensors, entry.name, Tensor { dtype: entry.spec.dtype, shape: entry.spec.shape, data })?;
    }
    Ok(weights)
}
