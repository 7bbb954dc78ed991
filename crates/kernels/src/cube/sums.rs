//! Sums in a fixed order: one of many numbers (parts by as many threads, then their sum), one of each channel, and one of a workgroup.

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::geometry::dims4;
use super::launch::{AHEAD, UNITS, fold, launch, reach};
use super::pixels::{Pixels, empty};
use super::shared::shared_memory_works;

/// Parts that a sum begins with, a thread to each: about as many as a mid-range GPU has lanes.
pub(crate) const PARTS: usize = 2048;

/// `out[j]` is the sum of the j-th `count` parts.
#[cube(launch_unchecked, address_type = "dynamic")]
fn total_kernel(parts: &Tensor<f32>, out: &mut Tensor<f32>, count: u32) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    out[ABSOLUTE_POS] = fold(parts, ABSOLUTE_POS * count as usize, 1usize, count);
}

/// `out[0]` is the sum of the parts, `each` to a thread.
#[cube(launch_unchecked, address_type = "dynamic")]
fn whole_kernel(parts: &Tensor<f32>, out: &mut Tensor<f32>, each: u32, #[comptime] threads: u32) {
    if UNIT_POS >= threads {
        terminate!();
    }
    let sum = sum_of_channel(fold(parts, UNIT_POS as usize, comptime!(threads as usize), each), threads);
    if UNIT_POS == 0u32 {
        out[0] = sum;
    }
}

/// The sum of `parts`, of which there are a multiple of [`PARTS`]: `[1]`.
pub(crate) fn total(parts: &CubeTensor) -> CubeTensor {
    let (total, count) = (empty(parts, [1], DType::F32), parts.meta.shape().num_elements());
    let threads = if shared_memory_works(&parts.device) { UNITS } else { 1 };
    launch!(whole_kernel, UNITS as usize, [(parts, count), (total, 1)], count as u32 / threads, threads);
    total
}

/// Images of channels, and the steps from one to the next in memory.
#[derive(CubeLaunch, CubeType)]
struct Channels {
    count: usize,
    /// Of one channel: pixels of an image, and of all.
    pixels: usize,
    all: usize,
    image: usize,
    channel: usize,
    pixel: usize,
}

#[cube]
fn number_of<E: Float>(x: &Tensor<E>, of: &Channels, channel: usize, i: usize) -> f32 {
    f32::cast_from(x[i / of.pixels * of.image + channel * of.channel + i % of.pixels * of.pixel])
}

/// `parts [channels, threads]`: `scale` times what thread t adds up, every threads-th number of its channel from the t-th on, by eights.
#[cube(launch_unchecked, address_type = "dynamic")]
fn channel_parts_kernel<E: Float>(
    x: &Tensor<E>,
    parts: &mut Tensor<f32>,
    of: &Channels,
    threads: usize,
    scale: f32,
    #[define(E)] _type: ElemType,
) {
    if ABSOLUTE_POS >= of.count * threads {
        terminate!();
    }
    let channel = ABSOLUTE_POS / threads;
    let mut i = ABSOLUTE_POS % threads;
    let mut total = 0.0f32;
    while i + comptime!(AHEAD as usize - 1) * threads < of.all {
        let mut sum = 0.0f32;
        #[unroll]
        for k in 0..comptime!(AHEAD as usize) {
            sum += number_of::<E>(x, of, channel, i + k * threads);
        }
        total += sum;
        i += comptime!(AHEAD as usize) * threads;
    }
    while i < of.all {
        total += number_of::<E>(x, of, channel, i);
        i += threads;
    }
    parts[ABSOLUTE_POS] = total * scale;
}

/// `out [c]`: the sums over images and pixels of `scale x [n, c, h, w]`, which is not empty, in one launch where there are few numbers to each, else in two.
pub(crate) fn sums_of_channels(x: CubeTensor, scale: f32, out: CubeTensor) -> CubeTensor {
    /// To a channel at most; each adds up at least [`AHEAD`] numbers, if there are so many.
    const THREADS: usize = 256;
    let [images, count, height, width] = dims4(&x);
    let pixels = height * width;
    let Pixels { tensor: x, image, channel, pixel, .. } = Pixels::new(x);
    let of = ChannelsLaunch::new(count, pixels, images * pixels, image, channel, pixel);
    let threads = (images * pixels / AHEAD as usize).clamp(1, THREADS);
    let len = count * threads;
    let parts = if threads == 1 { out.clone() } else { empty(&x, [len], DType::F32) };
    let dtype = x.dtype;
    launch!(channel_parts_kernel, len, [(x, reach(&x), dtype), (parts, len)], of, threads, scale, dtype_to_storage_type(dtype));
    if threads > 1 {
        launch!(total_kernel, count, [(parts, len), (out, count)], threads as u32);
    }
    out
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

/// The same of a channel that has so many threads: the whole workgroup, or one.
#[cube]
pub(crate) fn sum_of_channel(own: f32, #[comptime] threads: u32) -> f32 {
    let mut sum = own;
    if comptime!(threads == UNITS) {
        let mut shared = Shared::<[f32]>::new_slice(comptime!(UNITS as usize));
        sum = sum_of_all(own, &mut shared);
    }
    sum
}
