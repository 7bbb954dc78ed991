//! The run's own linear maps, some rows through each, with the matrix stored as the run stores it: words of bf16s and of int8s are read where they lie,
//! NF4 is made dense before each product, and each of these ways has kernels of its own.

use crate::made::{numbers, pattern, tensor};
use bellows_kernels::{Blocks, Precision, Weight, linear, linear_data_grad};
use burn::tensor::{DType, Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Rows that are computed.
const SOME: usize = 64;

/// How the matrix of a frozen map is stored, where that is not in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// In f16.
    F16,
    /// In bf16.
    Bf16,
    /// In bf16s two to a word, for devices that have no such type.
    Words,
    /// In whole numbers of 8 bits, with a scale a row.
    Int8,
    /// In 4 bits a value.
    Nf4,
}

impl Storage {
    /// The type that a device must have for it.
    pub(crate) fn needs(self) -> Option<DType> {
        match self {
            Self::F16 => Some(DType::F16),
            Self::Bf16 => Some(DType::BF16),
            Self::Words | Self::Int8 | Self::Nf4 => None,
        }
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Words => "words of bf16",
            Self::Int8 => "int8",
            Self::Nf4 => "nf4",
        })
    }
}

/// A matrix `[out, in]`; in f32 if nothing else is said.
fn weight(shape: [usize; 2], storage: Option<Storage>, device: &Device) -> Weight {
    // Numbers that 16 bits hold: how a driver rounds to them is not what is asked here.
    let values: Vec<f32> = pattern(81, shape[0] * shape[1]).into_iter().map(|v| (v * 128.0).round() / 128.0).collect();
    match storage {
        Some(Storage::Words) => Weight::Blocks(Blocks::bf16(&values, shape, device)),
        Some(Storage::Int8) => Weight::Blocks(Blocks::int8(&values, shape, device)),
        Some(Storage::Nf4) => Weight::Blocks(Blocks::nf4(&values, shape, device)),
        None | Some(Storage::F16 | Storage::Bf16) => {
            let dense = Tensor::<2>::from_data(TensorData::new(values, shape), device);
            Weight::Dense(dense.cast(storage.and_then(Storage::needs).unwrap_or(DType::F32)))
        }
    }
}

/// `x Wᵀ` of a map `[out, in]`.
pub(crate) fn forward(shape: [usize; 2], storage: Option<Storage>, device: &Device, precision: Precision) -> Vec<f32> {
    numbers(linear(tensor::<2>(80, [SOME, shape[1]], device), weight(shape, storage, device), None, precision))
}

/// Its gradient for x.
pub(crate) fn gradient(shape: [usize; 2], storage: Option<Storage>, device: &Device, precision: Precision) -> Vec<f32> {
    numbers(linear_data_grad(tensor::<2>(82, [SOME, shape[0]], device), weight(shape, storage, device), precision))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 16 bits hold the matrix, 8 and 4 do not: a check of those is of other numbers.
    #[test]
    fn a_matrix_is_stored_as_it_is_said() {
        let device = Device::flex();
        for pass in [forward, gradient] {
            let of = |storage| pass([33, 70], storage, &device, Precision::F32);
            let dense = of(None);
            let error = |storage| of(Some(storage)).iter().zip(&dense).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
            for exact in [Storage::F16, Storage::Bf16, Storage::Words] {
                assert!(error(exact) < 1e-5, "{exact}");
            }
            let [int8, nf4] = [Storage::Int8, Storage::Nf4].map(error);
            assert!(int8 > 1e-3 && int8 < nf4 && nf4 < 5.0, "{int8} {nf4}");
        }
    }
}
