//! Bounds on what a file may cost us. Each is far above what real checkpoints need and far below what hurts.

use crate::error::Fault;

/// Largest `data.pkl`. YOLOv8n's has 100 KB.
pub(crate) const PICKLE_BYTES: u64 = 64 << 20;
/// Opcodes executed, and so objects created and values pushed.
pub(crate) const OPCODES: usize = 1_000_000;
/// Memo slots.
pub(crate) const MEMO: usize = 1_000_000;
/// Open marks: how deep containers are nested while they are built.
pub(crate) const MARKS: usize = 1000;
/// Values on the stack. Python writes containers in batches of 1000 pairs, so 2000 values lie there in a normal file.
pub(crate) const STACK: usize = 10_000;
/// Modules inside modules.
pub(crate) const MODULE_DEPTH: usize = 64;
/// Dictionary entries looked at while walking a pickled module. The memo lets a small pickle
/// describe an exponentially large tree; this is what ends it.
pub(crate) const WALK_STEPS: u64 = 10_000_000;
/// Dimensions of a tensor.
pub(crate) const RANK: usize = 16;
/// Bytes of a tensor's name.
pub(crate) const NAME_BYTES: usize = 1024;
/// Elements of a tensor that is turned into metadata text (`stride`).
pub(crate) const FACT_ELEMENTS: usize = 64;
/// Bytes of a safetensors header, as in the format's reference implementation.
pub(crate) const HEADER_BYTES: u64 = 100_000_000;
/// Bytes of a checkpoint's index: a hundred a tensor, and models have thousands.
pub(crate) const INDEX_BYTES: u64 = 64 << 20;
/// Metadata entries of a GGUF file, and tensors. Models have dozens and thousands.
pub(crate) const GGUF_ENTRIES: u64 = 1 << 20;
/// Bytes of a GGUF metadata key, from the format's definition.
pub(crate) const GGUF_KEY_BYTES: u64 = (1 << 16) - 1;
/// Alignment of a GGUF file's tensors. Files have 32.
pub(crate) const GGUF_ALIGNMENT: u32 = 1 << 20;

/// Bytes of an ONNX file: no message of protobuf may have more.
pub(crate) const ONNX_BYTES: u64 = i32::MAX as u64;
/// Initializers and metadata entries of an ONNX file. Models have hundreds and a dozen.
pub(crate) const ONNX_ENTRIES: usize = 1 << 20;

/// Counts down something a file spends.
#[derive(Debug)]
pub(crate) struct Budget {
    what: &'static str,
    spent: u64,
    limit: u64,
}

impl Budget {
    pub(crate) fn new(what: &'static str, limit: u64) -> Self {
        Budget { what, spent: 0, limit }
    }

    /// Bytes of results kept from a file of this size: twice the file.
    pub(crate) fn bytes_of(file_size: u64) -> Self {
        Budget::new("bytes of tensors and names", file_size.saturating_mul(2))
    }

    pub(crate) fn spend(&mut self, amount: usize) -> Result<(), Fault> {
        let size = self.spent.saturating_add(amount as u64);
        at_most(self.what, size, self.limit)?;
        self.spent = size;
        Ok(())
    }
}

pub(crate) fn at_most(what: impl Into<String>, size: u64, limit: u64) -> Result<(), Fault> {
    if size <= limit { Ok(()) } else { Err(Fault::TooLarge { what: what.into(), size, limit }) }
}
