//! A few rows against a stored weight on CubeCL devices, as a model that speaks has them: as many dot products as the weight has rows, each of which is read
//! once, where and as it lies. No block is made dense, and nothing is rounded to f16: memory decides, as on the processor.

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::cube_values::{EACH, Storage, values};
use super::dots::ROWS;
use super::weight::StoredWeight;
use crate::cube::launch::{UNITS, address_type, addresses, check_reach, grid, is_image_type};
use crate::cube::pixels::{empty, replacement};
use crate::cube::shared_memory_works;
use crate::cube::trace::{note, note_room};
use crate::policy::{Lowering, default_lowering};

/// Threads that share a row of the weight, where they can add up what they have by shared memory.
const LANES: usize = 32;

/// Rows and width of the weight, rank of the branch, and where its inner products begin.
#[derive(CubeLaunch, CubeType)]
struct Sizes {
    out: usize,
    input: usize,
    rank: usize,
    begin: usize,
}

/// What is added to the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct With {
    branch: bool,
    bias: bool,
    onto: bool,
}

/// `y = x Wᵀ (+ inner Bᵀ) (+ bias) (+ onto)` of so many rows; `beside` is the bias or what is added to, and perhaps y.
///
/// # Safety
/// No index is checked: x is `[rows, input]`, y and what is added to `[rows, out]`, a bias `[out]`, B `[out, rank]`, the inner products `[rows, rank]` from
/// number `begin` on; the codes and scales must hold a matrix `[out, input]`, whose rows are whole eights.
#[cube(launch_unchecked, address_type = "dynamic")]
fn few_rows_kernel<W: Numeric>(
    x: &Tensor<f32>,
    codes: &Tensor<W>,
    scales: &Tensor<f32>,
    inner: &Tensor<f32>,
    b: &Tensor<f32>,
    beside: &Tensor<f32>,
    y: &mut Tensor<f32>,
    sizes: &Sizes,
    #[comptime] rows: usize,
    #[comptime] lanes: usize,
    #[comptime] storage: Storage,
    #[comptime] with: With,
    #[define(W)] _type: ElemType,
) {
    let (line, lane) = (ABSOLUTE_POS / lanes, ABSOLUTE_POS % lanes);
    let mut sums = Array::<f32>::new(rows);
    #[unroll]
    for row in 0..rows {
        sums[row] = 0.0f32;
    }
    if line < sizes.out {
        let mut k = lane * EACH;
        while k < sizes.input {
            let values = values::<W>(codes, scales, line * sizes.input + k, sizes.out * sizes.input, sizes.input, EACH, storage);
            #[unroll]
            for row in 0..rows {
                #[unroll]
                for i in 0..EACH {
                    sums[row] += x[row * sizes.input + k + i] * values[i];
                }
            }
            k += comptime!(lanes * EACH);
        }
        if comptime!(with.branch) {
            let mut k = lane;
            while k < sizes.rank {
                #[unroll]
                for row in 0..rows {
                    sums[row] += inner[sizes.begin + row * sizes.rank + k] * b[line * sizes.rank + k];
                }
                k += lanes;
            }
        }
    }
    if comptime!(lanes == 1) {
        #[unroll]
        for row in 0..rows {
            write(sums[row], row, line, beside, y, sizes, with);
        }
    } else {
        let mut room = Shared::<[f32]>::new_slice(comptime!(rows * UNITS as usize));
        #[unroll]
        for row in 0..rows {
            room[comptime!(row * UNITS as usize) + UNIT_POS as usize] = sums[row];
        }
        sync_cube();
        // Each of the first lanes has a row.
        if lane < rows {
            let first = lane * comptime!(UNITS as usize) + UNIT_POS as usize - lane;
            let mut sum = 0.0f32;
            #[unroll]
            for i in 0..lanes {
                sum += room[first + i];
            }
            write(sum, lane, line, beside, y, sizes, with);
        }
    }
}

/// Number `line` of row `row` of y, if it is one, behind what is added to it.
#[cube]
fn write(sum: f32, row: usize, line: usize, beside: &Tensor<f32>, y: &mut Tensor<f32>, sizes: &Sizes, #[comptime] with: With) {
    if line < sizes.out {
        let at = row * sizes.out + line;
        let mut value = sum;
        if comptime!(with.bias) {
            value += beside[line];
        }
        if comptime!(with.onto) {
            value += beside[at];
        }
        y[at] = value;
    }
}

/// The low-rank branch of a product: its inner products, where those of these rows begin, and B.
#[derive(Clone, Copy)]
pub(crate) struct Low<'a> {
    pub(crate) inner: &'a CubeTensor,
    pub(crate) begin: usize,
    pub(crate) b: &'a CubeTensor,
}

/// Whether [`few_rows`] computes a product of so many rows of f32 with this weight, and a bias or what is added to, but not both. A dense one is left to
/// Burn's products where those are used.
pub(crate) fn are_few(rows: usize, x: DType, weight: &StoredWeight<CubeBackend>) -> bool {
    let known = match weight {
        StoredWeight::Dense(weight) => is_image_type(weight.dtype) && default_lowering() == Lowering::Gemm,
        StoredWeight::Blocks { .. } => true,
    };
    let [out, input] = weight.dims();
    known && x == DType::F32 && (1..=ROWS).contains(&rows) && out > 0 && input > 0 && input.is_multiple_of(EACH)
}

/// `x Wᵀ (+ inner Bᵀ) (+ bias) (+ onto)` of a contiguous x `[rows, in]`, where [they are few](are_few).
///
/// # Panics
/// If there are both a bias and what is added to.
#[expect(unsafe_code, reason = "see SAFETY")]
pub(crate) fn few_rows(
    x: &CubeTensor,
    weight: &StoredWeight<CubeBackend>,
    low: Option<Low<'_>>,
    bias: Option<&CubeTensor>,
    onto: Option<CubeTensor>,
) -> CubeTensor {
    const NAME: &str = "few rows";
    assert!(bias.is_none() || onto.is_none(), "{NAME}: no place for a bias beside what is added to");
    let (rows, shape @ [out, input]) = (x.meta.shape()[0], weight.dims());
    let (codes, scales, storage) = match weight {
        StoredWeight::Dense(weight) => (into_contiguous(weight.clone()), None, Storage::Plain),
        StoredWeight::Blocks { codes, scales, form, .. } => (codes.clone(), Some(scales), Storage::of(*form)),
    };
    let element = if storage == Storage::Plain { codes.dtype } else { DType::U32 };
    let rank = low.map_or(0, |low| low.b.meta.shape()[1]);
    let (inner, b) = low.map_or((x, x), |low| (low.inner, low.b));
    let with = With { branch: low.is_some(), bias: bias.is_some(), onto: onto.is_some() };
    let beside = bias.or(onto.as_ref()).unwrap_or(x);
    let scales = scales.unwrap_or(x);
    let [of_codes, of_scales] = storage.reach(shape);
    check_reach(
        NAME,
        [x, &codes, scales, inner, b, beside],
        [
            rows * input,
            of_codes,
            of_scales,
            low.map_or(0, |low| low.begin + rows * rank),
            out * rank,
            if with.bias { out } else { usize::from(with.onto) * rows * out },
        ],
        [DType::F32, if element == DType::U32 { DType::F32 } else { element }, DType::F32, DType::F32, DType::F32, DType::F32],
    );
    let (y, to_y) = match &onto {
        Some(onto) => replacement(onto, 5),
        None => {
            let y = empty(x, [rows, out], DType::F32);
            (y.clone(), y.into_tensor_arg())
        }
    };
    let lanes = if shared_memory_works(&x.device) { LANES } else { 1 };
    let read = low.iter().flat_map(|low| [low.inner, low.b]).chain(bias).chain((storage != Storage::Plain).then_some(scales));
    note(
        NAME,
        // `replacement` has told of y where something is added to.
        [x, &codes].into_iter().chain(read).chain(&onto).chain(onto.is_none().then_some(&y)),
        (2 * rows * out * (input + rank)) as u64,
    );
    note_room(NAME, if lanes > 1 { rows * UNITS as usize * size_of::<f32>() } else { 0 }, 0);
    // SAFETY: `check_reach` has found all numbers that the kernel can reach, and y has the shape of its products.
    unsafe {
        few_rows_kernel::launch_unchecked(
            &x.client,
            grid(out * lanes),
            CubeDim::new_1d(UNITS),
            address_type([x, &codes, scales, inner, b, beside, &y]).max(addresses(out * input.max(lanes))),
            x.clone().into_tensor_arg(),
            codes.clone().into_tensor_arg(),
            scales.clone().into_tensor_arg(),
            inner.clone().into_tensor_arg(),
            b.clone().into_tensor_arg(),
            beside.clone().into_tensor_arg(),
            to_y,
            SizesLaunch::new(out, input, rank, low.map_or(0, |low| low.begin)),
            rows,
            lanes,
            storage,
            with,
            dtype_to_storage_type(element),
        );
    }
    y
}
