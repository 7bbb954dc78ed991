//! On CubeCL devices our own product reads weights in words of two bf16s or of four int8s where they lie, and [that of a few rows](super::cube_few) any. Other
//! blocks, and any before a product of Burn's, become a dense matrix in a launch.

use burn::backend::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::cube_few::{are_few, few_rows};
use super::cube_values::{EACH, Storage, values};
pub(crate) use super::portable::factors;
use super::{Branch, Form, ProductOps, StoredMap, StoredWeight, factor, portable};
use crate::cpu::Precision;
use crate::cube::launch::{is_image_type, launch};
use crate::cube::matrices::product_with;
use crate::cube::packing::Packing;
use crate::cube::pixels::empty;
use crate::policy::{Lowering, default_lowering};

/// A matrix of blocks made dense: a thread to `each` values.
#[cube(launch_unchecked, address_type = "dynamic")]
fn dense_kernel(
    codes: &Tensor<u32>,
    scales: &Tensor<f32>,
    out: &mut Tensor<f32>,
    count: usize,
    columns: usize,
    #[comptime] each: usize,
    #[comptime] storage: Storage,
) {
    let at = ABSOLUTE_POS * each;
    if at >= count {
        terminate!();
    }
    let values = values::<u32>(codes, scales, at, count, columns, each, storage);
    #[unroll]
    for i in 0..each {
        out[at + i] = values[i];
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
        if are_few(x.meta.shape()[0], x.dtype, &weight) {
            let y = few_rows(&into_contiguous(x.clone()), &weight, None, None, None);
            return portable::beside::<Self>(x, y, bias, branch, precision);
        }
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
        let storage = Storage::of(form);
        let ([of_codes, of_scales], each) = (storage.reach(shape), if shape[1].is_multiple_of(EACH) { EACH } else { 1 });
        launch!(dense_kernel, count / each, [(codes, of_codes), (scales, of_scales), (out, count)], count, shape[1], each, storage);
        out
    }
}
