//! On CubeCL devices our own product reads weights in words of two bf16s or of four int8s where they lie, and [that of a few rows](super::cube_few) any. Other
//! blocks, and any before a product of Burn's, become dense matrices, of one map or of several of one input in a launch, in the type of the product's factors.

#![allow(clippy::needless_range_loop, reason = "a loop that is unrolled is over numbers")]

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::cube_few::{are_few, few_rows};
use super::cube_values::{EACH, Storage, values};
pub(crate) use super::portable::factors;
use super::{Branch, Form, ProductOps, StoredMap, StoredWeight, portable};
use crate::cpu::Precision;
use crate::cube::launch::{UNITS, address_type, check_reach, grid, is_image_type};
use crate::cube::matrices::product_with;
use crate::cube::packing::Packing;
use crate::cube::pixels::{empty, view};
use crate::cube::trace::note;
use crate::policy::{Lowering, default_lowering};

/// Bytes at whose multiples any device can bind memory.
const BOUND: usize = 256;

/// Where the values of a matrix go, how many they are, and how many to a row.
#[derive(CubeLaunch, CubeType)]
struct Place {
    start: usize,
    count: usize,
    columns: usize,
}

/// How a matrix is taken apart: a thread to `each` values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Member {
    storage: Storage,
    each: usize,
}

/// Matrices of blocks made dense, the threads of one behind those of the other.
///
/// # Safety
/// No index is checked: codes and scales must hold what each matrix's storage reads, `out` the last value of each.
#[cube(launch_unchecked, address_type = "dynamic")]
fn dense_kernel<E: Float>(
    codes: &Sequence<OwnedTensor<u32>>,
    scales: &Sequence<OwnedTensor<f32>>,
    out: &mut Tensor<E>,
    places: &Sequence<Place>,
    #[comptime] members: Vec<Member>,
    #[define(E)] _type: ElemType,
) {
    let count = comptime!(members.len());
    let thread = ABSOLUTE_POS;
    let mut end = 0usize;
    #[unroll]
    for m in 0..count {
        let member = comptime!(members[m]);
        let place = places.index(m);
        let first = end;
        end += place.count / comptime!(member.each);
        if thread >= first && thread < end {
            let at = (thread - first) * comptime!(member.each);
            let codes_of = codes.index(m);
            let scales_of = scales.index(m);
            let values =
                values::<u32>(codes_of, scales_of, at, place.count, place.columns, comptime!(member.each), comptime!(member.storage));
            #[unroll]
            for i in 0..comptime!(member.each) {
                out[place.start + at + i] = E::cast_from(values[i]);
            }
        }
    }
}

/// A matrix of blocks.
pub(crate) struct Coded<'a> {
    codes: &'a CubeTensor,
    scales: &'a CubeTensor,
    storage: Storage,
    shape: [usize; 2],
}

impl<'a> Coded<'a> {
    /// A weight's, if it is one.
    pub(crate) fn of(weight: &'a StoredWeight<CubeBackend>) -> Option<Self> {
        let StoredWeight::Blocks { codes, scales, form, shape } = weight else { return None };
        Some(Self { codes, scales, storage: Storage::of(*form), shape: *shape })
    }

    /// How many values it has.
    pub(crate) fn count(&self) -> usize {
        self.shape[0] * self.shape[1]
    }

    fn member(&self) -> Member {
        Member { storage: self.storage, each: if self.shape[1].is_multiple_of(EACH) { EACH } else { 1 } }
    }
}

/// Matrices of blocks made dense in one launch, in f32 or 16 bits, and in one memory, which is there as long as any of them.
#[expect(unsafe_code, reason = "see SAFETY")]
pub(crate) fn made_dense(matrices: &[Coded<'_>], dtype: DType) -> Vec<CubeTensor> {
    const NAME: &str = "dense_kernel";
    let Some(first) = matrices.first() else { return Vec::new() };
    let (mut starts, mut end) = (Vec::new(), 0usize);
    for matrix in matrices {
        let start = end.next_multiple_of(BOUND / dtype.size());
        starts.push(start);
        end = start + matrix.count();
    }
    let out = empty(first.codes, [end], dtype);
    let part = |(matrix, &start): (&Coded<'_>, &usize)| {
        let part = view(&out, start, matrix.count());
        CubeTensor::new_contiguous(part.client, part.device, matrix.shape.into(), part.handle, part.dtype)
    };
    let parts: Vec<CubeTensor> = matrices.iter().zip(&starts).map(part).collect();
    if end == 0 {
        return parts;
    }
    for (matrix, start) in matrices.iter().zip(&starts) {
        let [of_codes, of_scales] = matrix.storage.reach(matrix.shape);
        let reaches = [of_codes, of_scales, start + matrix.count()];
        check_reach(NAME, [matrix.codes, matrix.scales, &out], reaches, [DType::F32, DType::F32, dtype]);
    }
    let read = || matrices.iter().flat_map(|matrix| [matrix.codes, matrix.scales]);
    note(NAME, read().chain(&parts), 0);
    // SAFETY: `check_reach` has found all that each matrix's threads can reach.
    unsafe {
        dense_kernel::launch_unchecked(
            &out.client,
            grid(matrices.iter().map(|matrix| matrix.count() / matrix.member().each).sum()),
            CubeDim::new_1d(UNITS),
            read().chain([&out]).map(|tensor| address_type([tensor])).max().unwrap_or_default(),
            matrices.iter().map(|matrix| matrix.codes.clone().into_tensor_arg()).collect(),
            matrices.iter().map(|matrix| matrix.scales.clone().into_tensor_arg()).collect(),
            out.clone().into_tensor_arg(),
            matrices.iter().zip(&starts).map(|(matrix, &start)| PlaceLaunch::new(start, matrix.count(), matrix.shape[1])).collect(),
            matrices.iter().map(Coded::member).collect::<Vec<_>>(),
            dtype_to_storage_type(dtype),
        );
    }
    parts
}

/// A weight as a factor of products in `dtype`: as it is, or the values of its blocks, rounded to that where they are written.
pub(crate) fn as_factor(weight: &StoredWeight<CubeBackend>, dtype: DType) -> CubeTensor {
    match weight {
        StoredWeight::Dense(weight) => weight.clone(),
        StoredWeight::Blocks { codes, scales, form, shape } => {
            let matrix = Coded { codes, scales, storage: Storage::of(*form), shape: *shape };
            made_dense(&[matrix], if is_image_type(dtype) { dtype } else { DType::F32 }).remove(0)
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
        if are_few(x.meta.shape()[0], x.dtype, &weight) {
            let y = few_rows(&into_contiguous(x.clone()), &weight, None, None, None);
            return portable::beside::<Self>(x, y, bias, branch, precision);
        }
        let y = of_words(&x, &weight, precision, true);
        let y = y.unwrap_or_else(|| {
            let factor = as_factor(&weight, factors(precision, x.dtype));
            portable::by_weight::<Self>(x.clone(), factor, false, precision)
        });
        portable::beside::<Self>(x, y, bias, branch, precision)
    }

    fn linear_data_grad(dy: CubeTensor, weight: StoredWeight<Self>, branch: Branch<Self>, precision: Precision) -> CubeTensor {
        let dx = of_words(&dy, &weight, precision, false);
        let dx = dx.unwrap_or_else(|| {
            let factor = as_factor(&weight, factors(precision, dy.dtype));
            portable::by_weight::<Self>(dy.clone(), factor, true, precision)
        });
        portable::beside_grad::<Self>(dy, dx, branch, precision)
    }

    fn dense_weight(weight: StoredWeight<Self>) -> CubeTensor {
        portable::cast::<Self>(as_factor(&weight, DType::F32), DType::F32)
    }
}
