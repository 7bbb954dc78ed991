//! ggml's block types: 32 or 256 numbers of a row packed together with their scales.
//!
//! Layouts and the rounding of the 32-blocks are ggml's (`ggml-common.h`, `ggml-quants.c`), bit for bit. The encoders of the
//! 256-blocks ("K-quants") search scales of their own (see `search`); any search gives a valid file.
//! Rows are whole blocks, so a tensor is one run of blocks, and blocks are independent: work is shared out over threads
//! without changing a bit.

mod affine;
mod legacy;
mod search;
mod symmetric;

use std::fmt;

use half::{bf16, f16};
use rayon::prelude::*;

use crate::error::Fault;

/// The largest f16, and so the range of the types whose scales are f16.
const F16_MAX: f32 = 65504.0;

/// How a GGUF tensor's elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are ggml's")]
pub enum BlockType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
}

use BlockType::*;

/// What [`BlockType::quantize`] made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantized {
    /// The blocks.
    pub bytes: Vec<u8>,
    /// How many values lay beyond ±65504, the range of f16 and so of the scales, and were moved there. Always 0 for F32 and BF16.
    pub saturated: usize,
}

impl BlockType {
    /// All of them.
    pub const ALL: [BlockType; 11] = [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4K, Q5K, Q6K];

    /// ggml's number of the type, its name, elements of a block, bytes of a block.
    const fn facts(self) -> (u32, &'static str, usize, usize) {
        match self {
            F32 => (0, "F32", 1, 4),
            F16 => (1, "F16", 1, 2),
            BF16 => (30, "BF16", 1, 2),
            Q4_0 => (2, "Q4_0", 32, 18),
            Q4_1 => (3, "Q4_1", 32, 20),
            Q5_0 => (6, "Q5_0", 32, 22),
            Q5_1 => (7, "Q5_1", 32, 24),
            Q8_0 => (8, "Q8_0", 32, 34),
            Q4K => (12, "Q4_K", 256, 144),
            Q5K => (13, "Q5_K", 256, 176),
            Q6K => (14, "Q6_K", 256, 210),
        }
    }

    /// ggml's number of the type.
    pub const fn id(self) -> u32 {
        self.facts().0
    }

    /// ggml's name of the type.
    pub const fn name(self) -> &'static str {
        self.facts().1
    }

    /// Elements of a block.
    pub const fn block_len(self) -> usize {
        self.facts().2
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        self.facts().3
    }

    /// The type with this number, if it is one of ours.
    pub fn from_id(id: u32) -> Option<Self> {
        BlockType::ALL.into_iter().find(|kind| kind.id() == id)
    }

    /// Bytes of a tensor of this shape, in torch order: the last extent is the row.
    /// `None` where the row is no whole number of blocks or the size overflows.
    pub fn bytes_of(self, shape: &[usize]) -> Option<usize> {
        let row = shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(self.block_len()) {
            return None;
        }
        shape
            .iter()
            .try_fold(1usize, |numel, &extent| numel.checked_mul(extent))?
            .checked_div(self.block_len())?
            .checked_mul(self.block_bytes())
    }

    /// The type to use for rows of `row_len` elements where this one was wanted: itself when the rows are whole blocks; else the
    /// 32-block type nearest in bits (Q4_K to Q5_0, Q5_K to Q5_1, Q6_K to Q8_0); F16 when not even those fit.
    pub fn fallback(self, row_len: usize) -> Self {
        if row_len.is_multiple_of(self.block_len()) {
            return self;
        }
        match self {
            Q4K => Q5_0.fallback(row_len),
            Q5K => Q5_1.fallback(row_len),
            Q6K => Q8_0.fallback(row_len),
            _ => F16,
        }
    }

    /// The numbers the blocks stand for. `bytes` past the last whole block are ignored.
    pub fn dequantize(self, bytes: &[u8]) -> Vec<f32> {
        let (len, size) = (self.block_len(), self.block_bytes());
        let mut values = vec![0.0; bytes.len() / size * len];
        let (blocks, chunk) = (&bytes[..values.len() / len * size], blocks_per_chunk(len));
        blocks.par_chunks(chunk * size).zip(values.par_chunks_mut(chunk * len)).for_each(|(bytes, values)| self.decode(bytes, values));
        values
    }

    /// The blocks nearest to `values`, whole rows of a tensor.
    ///
    /// # Errors
    /// Values that are no whole number of blocks, or, for types with scales, a NaN or an infinity: it would spoil its whole block.
    pub fn quantize(self, values: &[f32]) -> Result<Quantized, Fault> {
        let len = self.block_len();
        if !values.len().is_multiple_of(len) {
            return Err(Fault::Blocks { what: format!("{} values are no whole number of {self} blocks of {len}", values.len()) });
        }
        if len > 1
            && let Some(index) = values.iter().position(|x| !x.is_finite())
        {
            return Err(Fault::Blocks {
                what: format!("element {index} is {}, and {self} blocks hold finite numbers only", values[index]),
            });
        }
        Ok(self.encode(values))
    }

    /// Encodes whole blocks.
    pub(crate) fn encode(self, values: &[f32]) -> Quantized {
        let (len, size) = (self.block_len(), self.block_bytes());
        let mut bytes = vec![0; values.len() / len * size];
        let chunk = blocks_per_chunk(len);
        let chunks = values.par_chunks(chunk * len).zip(bytes.par_chunks_mut(chunk * size));
        let saturated = chunks.map(|(values, bytes)| self.encode_chunk(values, bytes)).sum();
        Quantized { bytes, saturated }
    }

    fn decode(self, bytes: &[u8], values: &mut [f32]) {
        self.decoder()(bytes, values);
    }

    /// What makes numbers of some blocks, on the calling thread: as many as both slices have room for.
    pub fn decoder(self) -> fn(&[u8], &mut [f32]) {
        match self {
            F32 => |bytes, values| blocks(bytes, values, |&b, x: &mut [f32; 1]| *x = [f32::from_le_bytes(b)]),
            F16 => |bytes, values| blocks(bytes, values, |&b, x: &mut [f32; 1]| *x = [f16::from_le_bytes(b).to_f32()]),
            BF16 => |bytes, values| blocks(bytes, values, |&b, x: &mut [f32; 1]| *x = [bf16::from_le_bytes(b).to_f32()]),
            Q4_0 => |bytes, values| blocks(bytes, values, legacy::decode_q4_0),
            Q4_1 => |bytes, values| blocks(bytes, values, legacy::decode_q4_1),
            Q5_0 => |bytes, values| blocks(bytes, values, legacy::decode_q5_0),
            Q5_1 => |bytes, values| blocks(bytes, values, legacy::decode_q5_1),
            Q8_0 => |bytes, values| blocks(bytes, values, legacy::decode_q8_0),
            Q4K => |bytes, values| blocks(bytes, values, affine::decode_q4_k),
            Q5K => |bytes, values| blocks(bytes, values, affine::decode_q5_k),
            Q6K => |bytes, values| blocks(bytes, values, symmetric::decode_q6_k),
        }
    }

    /// Returns how many values saturated.
    fn encode_chunk(self, values: &[f32], bytes: &mut [u8]) -> usize {
        let mut saturated = 0;
        let mut in_range = || -> Vec<f32> {
            saturated += values.iter().filter(|x| x.abs() > F16_MAX).count();
            values.iter().map(|x| x.clamp(-F16_MAX, F16_MAX)).collect()
        };
        match self {
            F32 => blocks(values, bytes, |[x]: &[f32; 1], b| *b = x.to_le_bytes()),
            BF16 => blocks(values, bytes, |[x]: &[f32; 1], b| *b = bf16::from_f32(*x).to_le_bytes()),
            F16 => blocks(values, bytes, |[x]: &[f32; 1], b| {
                let (half, clamped) = saturating_f16(*x);
                saturated += usize::from(clamped);
                *b = half.to_le_bytes();
            }),
            Q4_0 => blocks(&in_range(), bytes, legacy::encode_q4_0),
            Q4_1 => blocks(&in_range(), bytes, legacy::encode_q4_1),
            Q5_0 => blocks(&in_range(), bytes, legacy::encode_q5_0),
            Q5_1 => blocks(&in_range(), bytes, legacy::encode_q5_1),
            Q8_0 => blocks(&in_range(), bytes, legacy::encode_q8_0),
            Q4K => blocks(&in_range(), bytes, affine::encode_q4_k),
            Q5K => blocks(&in_range(), bytes, affine::encode_q5_k),
            Q6K => blocks(&in_range(), bytes, symmetric::encode_q6_k),
        }
        saturated
    }
}

impl fmt::Display for BlockType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The nearest f16, and whether `x` was finite and beyond its range.
fn saturating_f16(x: f32) -> (f16, bool) {
    let half = f16::from_f32(x);
    if half.is_infinite() && x.is_finite() { (f16::MAX.copysign(half), true) } else { (half, false) }
}

/// Blocks that one thread takes at a time: 16,384 elements.
fn blocks_per_chunk(block_len: usize) -> usize {
    16_384 / block_len
}

/// `convert` for every block of `from` into its place in `to`.
fn blocks<A, B, const N: usize, const M: usize>(from: &[A], to: &mut [B], mut convert: impl FnMut(&[A; N], &mut [B; M])) {
    for (from, to) in from.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
        convert(from, to);
    }
}
