//! The updates on CubeCL devices: f32 in one launch each (the sum of squares in one more than arenas), everything else through Burn's own operations.
//!
//! A result goes into the memory of the tensor it replaces if nobody else holds that.

use burn::backend::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::portable::Moved;
use super::{Adam, Ranges, Segments, Sgd, UpdateOps, check_ranges, portable};
use crate::cube::launch::{AHEAD, covers, launch};
use crate::cube::pixels::{empty, replacement, view};
use crate::cube::sums::{PARTS, total};
use crate::planes::Parts;

/// [`Sgd`] as a kernel takes it.
#[derive(CubeLaunch, CubeType)]
struct SgdScalars {
    lr: f32,
    momentum: f32,
    decay: f32,
}

/// [`Adam`] as a kernel takes it; `rest` is 1 - β, rounded once.
#[derive(CubeLaunch, CubeType)]
struct AdamScalars {
    rate: f32,
    beta1: f32,
    rest1: f32,
    beta2: f32,
    rest2: f32,
    root: f32,
    epsilon: f32,
    decay: f32,
    keep: f32,
}

/// Whether number i is in range r of those that end there, each from the end of the one before on.
#[cube]
fn is_in(i: usize, ends: &Sequence<usize>, #[comptime] r: usize) -> bool {
    let below = i < *ends.index(r);
    if comptime!(r == 0) { below } else { below & (i >= *ends.index(comptime!(r - 1))) }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn sgd_kernel(
    weight: &Tensor<f32>,
    grad: &Tensor<f32>,
    buffer: &Tensor<f32>,
    new_weight: &mut Tensor<f32>,
    new_buffer: &mut Tensor<f32>,
    ends: &Sequence<usize>,
    steps: &Sequence<SgdScalars>,
) {
    let i = ABSOLUTE_POS;
    #[unroll]
    for r in 0..comptime![ends.len()] {
        if is_in(i, ends, r) {
            let step = steps.index(r);
            let w = weight[i];
            let g = grad[i] + w * step.decay;
            let b = buffer[i] * step.momentum + g;
            new_buffer[i] = b;
            new_weight[i] = w - (g + b * step.momentum) * step.lr;
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn adam_kernel(
    weight: &Tensor<f32>,
    grad: &Tensor<f32>,
    first: &Tensor<f32>,
    second: &Tensor<f32>,
    new_weight: &mut Tensor<f32>,
    new_first: &mut Tensor<f32>,
    new_second: &mut Tensor<f32>,
    ends: &Sequence<usize>,
    steps: &Sequence<AdamScalars>,
) {
    let i = ABSOLUTE_POS;
    #[unroll]
    for r in 0..comptime![ends.len()] {
        if is_in(i, ends, r) {
            let step = steps.index(r);
            let w = weight[i] * step.keep;
            let g = grad[i] + w * step.decay;
            let m = first[i] * step.beta1 + g * step.rest1;
            let v = second[i] * step.beta2 + g * g * step.rest2;
            new_first[i] = m;
            new_second[i] = v;
            new_weight[i] = w - m / (v.sqrt() / step.root + step.epsilon) * step.rate;
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn blend_kernel(old: &Tensor<f32>, new: &Tensor<f32>, out: &mut Tensor<f32>, a: f32, b: f32) {
    let i = ABSOLUTE_POS;
    if i >= new.len() {
        terminate!();
    }
    out[i] = old[i] * a + new[i] * b;
}

/// `parts[p] = sum of x[i]²` over `i = p, p + parts, ...`, by eights.
#[cube(launch_unchecked, address_type = "dynamic")]
fn squares_kernel(x: &Tensor<f32>, parts: &mut Tensor<f32>) {
    let count = parts.len();
    if ABSOLUTE_POS >= count {
        terminate!();
    }
    let mut total = 0.0f32;
    let mut i = ABSOLUTE_POS;
    while i + comptime!(AHEAD as usize - 1) * count < x.len() {
        let mut sum = 0.0f32;
        #[unroll]
        for ahead in 0..comptime!(AHEAD as usize) {
            let value = x[i + ahead * count];
            sum += value * value;
        }
        total += sum;
        i += comptime!(AHEAD as usize) * count;
    }
    while i < x.len() {
        total += x[i] * x[i];
        i += count;
    }
    parts[ABSOLUTE_POS] = total;
}

/// `out = x min(1, most / (√squares + 1e-6))`, x where squares is not finite.
#[cube(launch_unchecked, address_type = "dynamic")]
fn clip_kernel(x: &Tensor<f32>, squares: &Tensor<f32>, out: &mut Tensor<f32>, most: f32) {
    let i = ABSOLUTE_POS;
    if i >= out.len() {
        terminate!();
    }
    let sum = squares[0];
    let largest = f32::max_value();
    let factor = most / (sum.sqrt() + 1e-6f32);
    // Not its root, which a driver may make a number of NaN. What is not finite is left as it is: the caller looks at the sum.
    out[i] = if sum <= largest && factor < 1.0f32 { x[i] * factor } else { x[i] };
}

impl UpdateOps for CubeBackend {
    fn sgd_step(weight: CubeTensor, grad: CubeTensor, buffer: CubeTensor, steps: Ranges<Sgd>) -> (CubeTensor, CubeTensor) {
        if !covers([&weight, &grad, &buffer]) {
            return portable::sgd_step::<Self>(weight, grad, buffer, &steps);
        }
        let [weight, grad, buffer] = [weight, grad, buffer].map(into_contiguous);
        let (new_weight, to_weight) = replacement(&weight, 0);
        let (new_buffer, to_buffer) = replacement(&buffer, 2);
        let len = grad.meta.shape().num_elements();
        check_ranges(&steps, len);
        let scalars = |step: Sgd| SgdScalarsLaunch::new(step.lr as f32, step.momentum as f32, step.decay as f32);
        let ends = steps.iter().map(|range| range.0).collect();
        launch!(
            sgd_kernel,
            len,
            [(weight, len), (grad, len), (buffer, len)],
            to_weight,
            to_buffer,
            ends,
            steps.into_iter().map(|(_, step)| scalars(step)).collect()
        );
        (new_weight, new_buffer)
    }

    fn adam_step(weight: CubeTensor, grad: CubeTensor, first: CubeTensor, second: CubeTensor, steps: Ranges<Adam>) -> Moved<Self> {
        if !covers([&weight, &grad, &first, &second]) {
            return portable::adam_step::<Self>(weight, grad, first, second, &steps);
        }
        let [weight, grad, first, second] = [weight, grad, first, second].map(into_contiguous);
        let (new_weight, to_weight) = replacement(&weight, 0);
        let (new_first, to_first) = replacement(&first, 2);
        let (new_second, to_second) = replacement(&second, 3);
        let len = grad.meta.shape().num_elements();
        check_ranges(&steps, len);
        let scalars = |step: Adam| {
            AdamScalarsLaunch::new(
                step.rate as f32,
                step.beta1 as f32,
                (1.0 - step.beta1) as f32,
                step.beta2 as f32,
                (1.0 - step.beta2) as f32,
                step.root as f32,
                step.epsilon as f32,
                step.decay as f32,
                step.keep as f32,
            )
        };
        let ends = steps.iter().map(|range| range.0).collect();
        launch!(
            adam_kernel,
            len,
            [(weight, len), (grad, len), (first, len), (second, len)],
            to_weight,
            to_first,
            to_second,
            ends,
            steps.into_iter().map(|(_, step)| scalars(step)).collect()
        );
        (new_weight, new_first, new_second)
    }

    fn blend(old: CubeTensor, new: CubeTensor, a: f64, b: f64) -> CubeTensor {
        if !covers([&old, &new]) {
            return portable::blend::<Self>(old, new, a, b);
        }
        let [old, new] = [old, new].map(into_contiguous);
        let (blended, to_blended) = replacement(&old, 0);
        let len = new.meta.shape().num_elements();
        launch!(blend_kernel, len, [(old, len), (new, len)], to_blended, a as f32, b as f32);
        blended
    }

    fn sum_of_squares(arenas: Parts<Self>, segments: Segments) -> CubeTensor {
        if !covers(&arenas.0) {
            return portable::sum_of_squares::<Self>(arenas, &segments);
        }
        let arenas: Vec<CubeTensor> = arenas.0.into_iter().map(into_contiguous).collect();
        let sums = empty(&arenas[0], [PARTS * arenas.len()], DType::F32);
        for (i, x) in arenas.iter().enumerate() {
            // Of its own range: what an allocation that failed left unwritten is told of the memory it was to fill.
            launch!(squares_kernel, PARTS, [(x, x.meta.shape().num_elements()), (view(&sums, i * PARTS, PARTS), PARTS)]);
        }
        total(&sums)
    }

    fn clip_to_norm(x: CubeTensor, squares: CubeTensor, most: f64) -> CubeTensor {
        if !covers([&x, &squares]) {
            return portable::clip_to_norm::<Self>(x, squares, most);
        }
        let x = into_contiguous(x);
        let (clipped, to_clipped) = replacement(&x, 0);
        let len = x.meta.shape().num_elements();
        launch!(clip_kernel, len, [(x, len), (squares, 1)], to_clipped, most as f32);
        clipped
    }
}
