//! GGUF: a header, typed metadata, a table of tensors, then their blocks, each at a multiple of an alignment.
//!
//! Versions 2 and 3 (the same bytes on little-endian machines) are read, version 3 is written.
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod cursor;
mod mix;
mod read;
mod value;
mod write;

pub use mix::Preset;
pub use read::Gguf;
pub use value::{Array, Metadata, Value};
pub use write::write;

use crate::blocks::BlockType;
use crate::error::Fault;
use crate::limits;

const MAGIC: [u8; 4] = *b"GGUF";
const ALIGNMENT_KEY: &str = "general.alignment";
/// Dimensions of a ggml tensor.
const MAX_RANK: usize = 4;

/// A tensor of a GGUF file, without its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// How its elements are stored.
    pub kind: BlockType,
    /// Extents in torch order, rows last: `[out, in]` of a matrix. (The file has them the other way round.)
    pub shape: Vec<usize>,
}

impl TensorInfo {
    /// Bytes of its data.
    fn bytes(&self, name: &str) -> Result<usize, Fault> {
        if self.shape.len() > MAX_RANK {
            return Err(Fault::tensor(name, format!("{} dimensions, GGUF tensors have at most {MAX_RANK}", self.shape.len())));
        }
        let (kind, shape) = (self.kind, &self.shape);
        self.kind.bytes_of(shape).ok_or_else(|| {
            let rule = format!("rows must be whole blocks of {}", kind.block_len());
            Fault::tensor(name, format!("shape {shape:?} is impossible for {kind}: {rule}, and the size must fit the address space"))
        })
    }
}

/// The alignment that the metadata asks for.
fn alignment(metadata: &Metadata) -> Result<usize, Fault> {
    const DEFAULT: usize = 32;
    let Some(value) = metadata.get(ALIGNMENT_KEY) else { return Ok(DEFAULT) };
    match value {
        Value::U32(alignment) if alignment.is_power_of_two() && *alignment <= limits::GGUF_ALIGNMENT => Ok(*alignment as usize),
        _ => Err(Fault::Metadata {
            key: ALIGNMENT_KEY.into(),
            what: format!("{value:?}, but it must be a power of two up to {} of kind U32", limits::GGUF_ALIGNMENT),
        }),
    }
}
