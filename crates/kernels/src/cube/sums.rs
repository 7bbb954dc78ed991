//! Sums in a fixed order: one of many numbers (parts by as many threads, then sums of parts, then theirs), and one of a workgroup.

use burn::backend::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{UNITS, fold, launch};
use super::pixels::empty;

/// Parts that a sum begins with, a thread to each: about as many as a mid-range GPU has lanes.
pub(crate) const PARTS: usize = 2048;

/// Sums of parts that one thread adds up.
const FEWER: usize = 32;

/// `out[j]` is the sum of the j-th `count` parts.
#[cube(launch_unchecked, address_type = "dynamic")]
fn total_kernel(parts: &Tensor<f32>, out: &mut Tensor<f32>, count: u32) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    out[ABSOLUTE_POS] = fold(parts, ABSOLUTE_POS * count as usize, 1usize, count);
}

/// The sum of `parts`, of which there are a multiple of [`PARTS`]: `[1]`, in two launches.
pub(crate) fn total(parts: &CubeTensor) -> CubeTensor {
    let (fewer, total) = (empty(parts, [FEWER], DType::F32), empty(parts, [1], DType::F32));
    let count = parts.meta.shape().num_elements() / FEWER;
    launch!(total_kernel, FEWER, [(parts, FEWER * count), (fewer, FEWER)], count as u32);
    launch!(total_kernel, 1, [(fewer, FEWER), (total, 1)], FEWER as u32);
    total
}

/// The sum of a number of each of the [`UNITS`] threads of the workgroup, in the order of the threads.
#[cube]
pub(crate) fn sum_of_all(own: f32, shared: &mut Shared<[f32]>) -> f32 {
    sync_cube();
    shared[UNIT_POS as usize] = own;
    sync_cube();
    let mut sum = 0.0f32;
    for unit in 0..UNITS {
        sum += shared[unit as usize];
    }
    sum
}
