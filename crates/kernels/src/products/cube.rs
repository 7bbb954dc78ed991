//! On CubeCL devices our own product reads weights in words of two bf16s or of four int8s where they lie. Other blocks, and any before a product of Burn's,
//! become a dense matrix in a launch, a thread to a word of their codes.

use burn::backend::DType;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::TensorData;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::cube_file::{EACH, file_kernel};
use super::nf4::{BLOCK, GROUP, LEVELS, MAGNITUDES};
pub(crate) use super::portable::factors;
use super::{Branch, Form, ProductOps, StoredMap, StoredWeight, factor, portable};
use crate::cpu::Precision;
use crate::cube::launch::{is_image_type, launch};
use crate::cube::matrices::product_with;
use crate::cube::packing::Packing;
use crate::cube::pixels::empty;
use crate::policy::{Lowering, default_lowering};

/// The upper half of an f32 is a bf16: two a word.
#[cube(launch_unchecked, address_type = "dynamic")]
fn bf16_kernel(codes: &Tensor<u32>, out: &mut Tensor<f32>, count: usize) {
    let first = ABSOLUTE_POS * 2usize;
    if first >= count {
        terminate!();
    }
    let word = codes[ABSOLUTE_POS];
    out[first] = f32::reinterpret(word << 16u32);
    if first + 1usize < count {
        out[first + 1usize] = f32::reinterpret(word & 0xffff_0000u32);
    }
}

/// [`int8`](super::int8): four a word.
#[cube(launch_unchecked, address_type = "dynamic")]
fn int8_kernel(codes: &Tensor<u32>, scales: &Tensor<f32>, out: &mut Tensor<f32>, count: usize, columns: usize) {
    let first = ABSOLUTE_POS * 4usize;
    if first >= count {
        terminate!();
    }
    let word = codes[ABSOLUTE_POS];
    #[unroll]
    for i in 0..4u32 {
        let at = first + i as usize;
        if at < count {
            let byte = (word >> (i * 8u32)) & 255u32;
            let number = f32::cast_from(byte) - select(byte > 127u32, 256.0f32, 0.0f32);
            out[at] = scales[at / columns] * number;
        }
    }
}

/// [`nf4`](super::nf4): eight a word, the higher half of a byte first. `table` has the levels and then the magnitudes.
#[cube(launch_unchecked, address_type = "dynamic")]
fn nf4_kernel(codes: &Tensor<u32>, scales: &Tensor<f32>, table: &Tensor<f32>, out: &mut Tensor<f32>, count: usize) {
    let first = ABSOLUTE_POS * 8usize;
    if first >= count {
        terminate!();
    }
    let (block, levels) = (first / 64usize, count.div_ceil(8usize));
    let byte = (codes[levels + block / 4usize] >> ((block % 4usize) as u32 * 8u32)) & 255u32;
    let mean = scales[count.div_ceil(64usize).div_ceil(256usize)];
    let magnitude = table[16usize + byte as usize] * scales[block / 256usize] + mean;
    let word = codes[ABSOLUTE_POS];
    #[unroll]
    for i in 0..8u32 {
        let at = first + i as usize;
        if at < count {
            let level = (word >> (i / 2u32 * 8u32 + (1u32 - i % 2u32) * 4u32)) & 15u32;
            out[at] = table[level as usize] * magnitude;
        }
    }
}

/// `x w`, or `x wᵀ`, of a weight in words, if our product computes it: the factors are of the type that dense ones would have.
fn of_words(x: &CubeTensor, weight: &StoredWeight<CubeBackend>, precision: Precision, transposed: bool) -> Option<CubeTensor> {
    let factor =
        in_words(weight).filter(|_| default_lowering() == Lowering::Gemm && is_image_type(portable::factors(precision, x.dtype)))?;
    let product = product_with(rounded(x.clone(), precision), factor, weight.dims(), transposed);
    Some(portable::cast::<CubeBackend>(product, x.dtype))
}

/// A factor of a product with a weight, in the type of such.
pub(crate) fn rounded(values: CubeTensor, precision: Precision) -> CubeTensor {
    let dtype = portable::factors(precision, values.dtype);
    portable::cast::<CubeBackend>(values, dtype)
}

/// The words of a weight that our products take apart as they read them, and the scales of its rows, if it has any.
pub(crate) fn in_words(weight: &StoredWeight<CubeBackend>) -> Option<(CubeTensor, Packing, Option<CubeTensor>)> {
    match weight {
        StoredWeight::Blocks { codes, form: Form::Bf16, .. } => Some((codes.clone(), Packing::Bf16, None)),
        StoredWeight::Blocks { codes, scales, form: Form::Int8, .. } => Some((codes.clone(), Packing::Int8, Some(scales.clone()))),
        _ => None,
    }
}

impl ProductOps for CubeBackend {
    fn linear_forward(x: CubeTensor, StoredMap { weight, bias, branch }: StoredMap<Self>, precision: Precision) -> CubeTensor {
        let (bias, branch) = (bias.into_option(), branch.into_option());
        let y = of_words(&x, &weight, precision, true);
        let y = y.unwrap_or_else(|| portable::by_weight::<Self>(x.clone(), factor(weight), false, precision));
        portable::beside::<Self>(x, y, bias, branch, precision)
    }

    fn linear_data_grad(dy: CubeTensor, weight: StoredWeight<Self>, branch: Branch<Self>, precision: Precision) -> CubeTensor {
        let dx = of_words(&dy, &weight, precision, false);
        let dx = dx.unwrap_or_else(|| portable::by_weight::<Self>(dy.clone(), factor(weight), true, precision));
        portable::beside_grad::<Self>(dy, dx, branch.into_option(), precision)
    }

    fn dense_weight(weight: StoredWeight<Self>) -> CubeTensor {
        let (codes, scales, form, shape) = match weight {
            StoredWeight::Dense(weight) => return portable::cast::<Self>(weight, DType::F32),
            StoredWeight::Blocks { codes, scales, form, shape } => (codes, scales, form, shape),
        };
        let (count, out) = (shape[0] * shape[1], empty(&codes, shape, DType::F32));
        if count == 0 {
            return out;
        }
        match form {
            Form::Bf16 => launch!(bf16_kernel, count.div_ceil(2), [(codes, count.div_ceil(2)), (out, count)], count),
            Form::Int8 => {
                let words = count.div_ceil(4);
                launch!(int8_kernel, words, [(codes, words), (scales, shape[0]), (out, count)], count, shape[1]);
            }
            Form::Nf4 => {
                let table: Vec<f32> = LEVELS.iter().chain(&*MAGNITUDES).copied().collect();
                let table = Self::float_from_data(TensorData::new(table, [272]), &codes.device);
                let (words, blocks) = (count.div_ceil(8), count.div_ceil(BLOCK));
                launch!(
                    nf4_kernel,
                    words,
                    [(codes, words + blocks.div_ceil(4)), (scales, blocks.div_ceil(GROUP) + 1), (table, 272), (out, count)],
                    count
                );
            }
            Form::File(coding) => {
                let words = (count / coding.layout.len() * coding.layout.bytes()).div_ceil(4);
                launch!(file_kernel, count / EACH, [(codes, words), (out, count)], count, coding.layout);
            }
        }
        out
    }
}
