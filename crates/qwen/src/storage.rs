//! How the matrices of a frozen base are stored: as they came, in 16 bits, or in blocks of fewer.
//!
//! Only the linear maps of the layers are ever in blocks. The embedding, and a head of its own, are then in bf16 where the device reads that in
//! place: every token passes through them.

use std::fmt;
use std::str::FromStr;

use bellows_kernels::{Blocks, reads_bf16};
use bellows_learner::memory::Place;
use burn::tensor::{DType, Device, Tensor, TensorData};
use half::f16;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// How the matrices of a frozen base are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BaseDtype {
    /// As on disk: bf16 or f16, the first that holds every value, and the blocks of a GGUF, as far as the device reads them and nothing of the matrix is
    /// trained; else f32. Always the values of the file.
    #[default]
    Auto,
    /// f32.
    F32,
    /// Rounded to bf16.
    Bf16,
    /// Rounded to f16.
    F16,
    /// A whole number from -127 to 127 a value and a scale a row.
    Int8,
    /// 4-bit levels in blocks of 64, their magnitudes in 8 bits (QLoRA, Dettmers et al. 2023).
    Nf4,
    /// The blocks of a GGUF as they are; its tensors that are in no blocks as with `Auto`.
    Gguf,
}

impl BaseDtype {
    /// All of them.
    pub const ALL: [Self; 7] = [Self::Auto, Self::F32, Self::Bf16, Self::F16, Self::Int8, Self::Nf4, Self::Gguf];

    /// What `--base-dtype` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Int8 => "int8",
            Self::Nf4 => "nf4",
            Self::Gguf => "gguf",
        }
    }

    /// Whether the model may compute with other values than those of its file, into which an adapter is merged all the same.
    pub fn rounds(self) -> bool {
        matches!(self, Self::Bf16 | Self::F16 | Self::Int8 | Self::Nf4)
    }

    /// Whether linear maps are in blocks.
    pub fn is_blocks(self) -> bool {
        matches!(self, Self::Int8 | Self::Nf4 | Self::Gguf)
    }

    /// What makes blocks of a frozen linear map's finite values on such a device, if they are to be in such, of every map or of those that it holds
    /// exactly.
    pub(crate) fn encoder(self, device: &Device) -> Option<(Encoder, Holds)> {
        match self {
            Self::Int8 => Some((Blocks::int8, |_| true)),
            Self::Nf4 => Some((Blocks::nf4, |_| true)),
            // Where there is no such type.
            Self::Auto | Self::Gguf if !reads_bf16(device) => Some((Blocks::bf16, is_bf16)),
            _ => None,
        }
    }

    /// A tensor that is in no blocks; matrices (two extents) may be in 16 bits.
    ///
    /// # Errors
    /// A value beyond the range of f16.
    pub(crate) fn tensor<const D: usize>(self, values: Vec<f32>, shape: [usize; D], device: &Device) -> Result<Tensor<D>, OutOfRange> {
        let dtype = match self {
            _ if D != 2 => DType::F32,
            Self::Auto | Self::Gguf if reads_bf16(device) && values.par_iter().copied().all(is_bf16) => DType::BF16,
            Self::Auto | Self::Gguf if reads_bf16(device) && values.par_iter().copied().all(is_f16) => DType::F16,
            Self::Int8 | Self::Nf4 if reads_bf16(device) => DType::BF16,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
            Self::Auto | Self::F32 | Self::Gguf | Self::Int8 | Self::Nf4 => DType::F32,
        };
        if dtype == DType::F16 && values.par_iter().any(|v| v.abs() > F16_MAX) {
            return Err(OutOfRange);
        }
        // Rounded here: on its way to a card an embedding in f32 may be larger than any buffer there.
        Ok(Tensor::from_data(TensorData::new(values, shape), (device, dtype)))
    }
}

/// What a weight of the matrices takes, for plans of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Storage {
    /// Four bytes a weight.
    F32,
    /// bf16 or f16: two.
    Half,
    /// Some matrices in bf16 and others in f32: bytes a weight on average.
    Mixed {
        /// Of the layers' matrices.
        layers: f64,
        /// Of embedding and head.
        rows: f64,
    },
    /// bf16s two to a number, on a device without that type; embedding and head in f32.
    Words,
    /// A byte, and a scale in f32 for each row.
    Int8,
    /// Half a byte, an 8-bit scale for 64 of them, and one in f32 for 256 of those (QLoRA, Dettmers et al. 2023, section 3).
    Nf4,
    /// Blocks as a GGUF has them: so many bytes a weight.
    Blocks {
        /// Of the layers' matrices.
        layers: f64,
        /// Of embedding and head, which are in none.
        rows: f64,
    },
}

impl Storage {
    /// What `base_dtype` says of it; `None` where that follows from the file.
    pub fn asked(dtype: BaseDtype) -> Option<Self> {
        match dtype {
            BaseDtype::Auto | BaseDtype::Gguf => None,
            BaseDtype::F32 => Some(Self::F32),
            BaseDtype::Bf16 | BaseDtype::F16 => Some(Self::Half),
            BaseDtype::Int8 => Some(Self::Int8),
            BaseDtype::Nf4 => Some(Self::Nf4),
        }
    }

    /// What [`BaseDtype::Auto`] makes there of matrices in bf16, whose maps are `frozen` or not.
    pub fn of_bf16(place: Place, frozen: bool) -> Self {
        match (place, frozen) {
            (Place::Processor, _) => Self::Half,
            (Place::Card, true) => Self::Words,
            (Place::Card, false) => Self::F32,
        }
    }

    /// Bytes of a matrix `[rows, columns]`.
    pub fn bytes(self, [rows, columns]: [usize; 2]) -> f64 {
        let n = rows as f64 * columns as f64;
        match self {
            Self::F32 => 4.0 * n,
            Self::Half | Self::Words => 2.0 * n,
            Self::Mixed { layers, .. } | Self::Blocks { layers, .. } => layers * n,
            Self::Int8 => n + 4.0 * rows as f64,
            Self::Nf4 => n * (0.5 + 1.0 / 64.0 + 4.0 / (64.0 * 256.0)),
        }
    }

    /// Whether these are blocks of few bits.
    pub(crate) fn is_blocks(self) -> bool {
        matches!(self, Self::Words | Self::Int8 | Self::Nf4 | Self::Blocks { .. })
    }

    /// How embedding and head are stored beside such matrices, as [`BaseDtype::tensor`] does it: only the maps of the layers are in blocks. (What a
    /// GGUF's blocks stand for is in no 16 bits.)
    pub(crate) fn of_embedding(self, place: Place) -> Self {
        match (self, place) {
            (Self::Int8 | Self::Nf4, Place::Processor) => Self::Half,
            (Self::Blocks { rows, .. }, Place::Processor) => Self::Mixed { layers: rows, rows },
            (Self::Words | Self::Int8 | Self::Nf4 | Self::Blocks { .. }, _) => Self::F32,
            (Self::Mixed { rows, .. }, _) => Self::Mixed { layers: rows, rows },
            (other, _) => other,
        }
    }
}

/// Blocks of a matrix of this shape on this device.
pub(crate) type Encoder = fn(&[f32], [usize; 2], &Device) -> Blocks;

/// Whether values of some type hold this one.
pub(crate) type Holds = fn(f32) -> bool;

/// The largest f16.
const F16_MAX: f32 = 65504.0;

/// A value that f16 does not hold.
#[derive(Debug)]
pub(crate) struct OutOfRange;

/// Whether bf16 holds this value exactly, as it does those of a checkpoint in bf16: kept so, they take half the memory, and products of them have the same
/// bits.
pub(crate) fn is_bf16(value: f32) -> bool {
    value.to_bits() & 0xffff == 0
}

/// Whether f16 does.
pub(crate) fn is_f16(value: f32) -> bool {
    f16::from_f32(value).to_f32().to_bits() == value.to_bits()
}

impl fmt::Display for BaseDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for BaseDtype {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(", ");
        Self::ALL.into_iter().find(|dtype| dtype.name() == text).ok_or_else(|| format!("no base dtype is called {text}: {}", known()))
    }
}
