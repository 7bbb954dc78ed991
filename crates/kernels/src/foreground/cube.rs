//! The operations on CubeCL devices, a positive to a thread, or several where there are more than [`THREADS`].
//!
//! Where a positive is, in its logits and in their gradient, is read from memory, and so are its box and its bins: the device checks the indices of these kernels, which are
//! of hundreds or thousands of positives. They lie in slots, some of which may be empty: the host fills each, but what the device finds is fewer than it has room for.

use burn::backend::ops::FloatTensorOps;
use burn::backend::{DType, TensorMetadata};
use burn::tensor::TensorData;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::cube_assign::{NUMBERS, TEN, assign};
use super::formula::{BINS, Corners, ciou, lower_bin, upper_share};
use super::{ForegroundOps, Learning, Positive, SIDES};
use crate::cube::launch::{fold, launch_checked};
use crate::cube::pixels::empty;
use crate::cube::softmax::{Distribution, distribution};

/// What the gradient asks of a positive: image (one more, as it is kept), anchor, class and weight. They go with its slopes, so that it is sent to the device once. Behind all of them is what
/// weights and slopes are multiplied by.
const KEPT: usize = 4;

/// Up to here every whole number is one of f32, which places are kept as.
const EXACT: usize = 1 << 24;

/// Sums in flight: a sum of that many is one thread's work.
const THREADS: usize = 256;

/// Sizes of x, and what terms are multiplied by.
#[derive(CubeLaunch, CubeType)]
struct Sizes {
    count: u32,
    channels: u32,
    anchors: u32,
    on_box: f32,
    on_sides: f32,
}

/// The first logit in x of an anchor of an image.
#[cube]
fn place(image: usize, anchor: usize, sizes: &Sizes) -> usize {
    image * (sizes.channels * sizes.anchors) as usize + anchor
}

/// The distribution over a side's bins.
#[cube]
fn side(x: &Tensor<f32>, first: usize, step: usize) -> Distribution {
    distribution(x, first, step, comptime!(BINS as u32))
}

/// Its cross entropy with the target at this distance.
#[cube]
fn entropy(x: &Tensor<f32>, side: &Distribution, first: usize, step: usize, distance: f32) -> f32 {
    let upper = upper_share(distance);
    let at = first + u32::cast_from(lower_bin(distance)) as usize * step;
    side.sum.ln() + side.most - (1.0f32 - upper) * x[at] - upper * x[at + step]
}

/// Both slopes of a side's logits: those of the box term, whose slope for the side's length is `pull`, and those of the distribution term.
#[cube]
fn side_slopes(
    x: &Tensor<f32>,
    slopes: &mut Tensor<f32>,
    side: &Distribution,
    first: usize,
    step: usize,
    distance: f32,
    pull: f32,
    push: f32,
    to: usize,
    other: usize,
) {
    let lower = lower_bin(distance);
    let upper = upper_share(distance);
    for k in 0..comptime!(BINS as u32) {
        let bin = f32::cast_from(k);
        let p = (x[first + k as usize * step] - side.most).exp() / side.sum;
        let mut spike = 0.0f32;
        if bin == lower {
            spike = 1.0f32 - upper;
        }
        if bin == lower + 1.0f32 {
            spike = upper;
        }
        slopes[to + k as usize] = pull * p * (bin - side.expected);
        slopes[to + other + k as usize] = push * (p - spike);
    }
}

/// Sums of a thread's positives, without gains, and of their weights into `parts [4, threads]`, and their slopes, with gains, with what is kept of each behind them.
#[cube(launch, address_type = "dynamic")]
fn terms_kernel(x: &Tensor<f32>, positives: &Tensor<f32>, parts: &mut Tensor<f32>, slopes: &mut Tensor<f32>, sizes: &Sizes, threads: u32) {
    let thread = ABSOLUTE_POS as u32;
    if thread >= threads {
        terminate!();
    }
    let mut of_box = 0.0f32;
    let mut of_class = 0.0f32;
    let mut of_sides = 0.0f32;
    let mut weights = 0.0f32;
    let step = sizes.anchors as usize;
    let bins = comptime!(BINS) * step;
    let other = sizes.count as usize * comptime!(SIDES);
    let mut i = thread;
    while i < sizes.count {
        let n = i as usize * comptime!(NUMBERS);
        let kept = 2 * other + i as usize * comptime!(KEPT);
        let image = positives[n + 7];
        slopes[kept] = image;
        if image > 0.0f32 {
            let (cx, cy) = (positives[n], positives[n + 1]);
            let (x1, y1) = (positives[n + 2], positives[n + 3]);
            let (x2, y2) = (positives[n + 4], positives[n + 5]);
            let weight = positives[n + 6];
            let at = place(u32::cast_from(image - 1.0f32) as usize, u32::cast_from(positives[n + 8]) as usize, sizes);
            let left = side(x, at, step);
            let top = side(x, at + bins, step);
            let right = side(x, at + 2 * bins, step);
            let bottom = side(x, at + 3 * bins, step);
            let predicted = Corners { x1: cx - left.expected, y1: cy - top.expected, x2: cx + right.expected, y2: cy + bottom.expected };
            let overlap = ciou(predicted, Corners { x1, y1, x2, y2 });
            let pull = -sizes.on_box * weight;
            let push = sizes.on_sides * weight / 4.0f32;
            let to = i as usize * comptime!(SIDES);
            side_slopes(x, slopes, &left, at, step, cx - x1, -pull * overlap.slopes.x1, push, to, other);
            side_slopes(x, slopes, &top, at + bins, step, cy - y1, -pull * overlap.slopes.y1, push, to + comptime!(BINS), other);
            side_slopes(x, slopes, &right, at + 2 * bins, step, x2 - cx, pull * overlap.slopes.x2, push, to + comptime!(2 * BINS), other);
            side_slopes(x, slopes, &bottom, at + 3 * bins, step, y2 - cy, pull * overlap.slopes.y2, push, to + comptime!(3 * BINS), other);
            let class = comptime!(SIDES) + u32::cast_from(positives[n + 9]) as usize;
            slopes[kept + 1] = positives[n + 8];
            slopes[kept + 2] = positives[n + 9];
            slopes[kept + 3] = weight;
            of_box += weight * (1.0f32 - overlap.value);
            of_class += weight * x[at + class * step];
            let near = entropy(x, &left, at, step, cx - x1) + entropy(x, &top, at + bins, step, cy - y1);
            let three = near + entropy(x, &right, at + 2 * bins, step, x2 - cx);
            of_sides += weight / 4.0f32 * (three + entropy(x, &bottom, at + 3 * bins, step, y2 - cy));
            weights += weight;
        }
        i += threads;
    }
    parts[thread as usize] = of_box;
    parts[(threads + thread) as usize] = of_class;
    parts[(2 * threads + thread) as usize] = of_sides;
    parts[(3 * threads + thread) as usize] = weights;
}

/// The three terms from the parts and the sum over all class logits, the gain of that sum, and what weights are multiplied by. Those of the host are over the norm
/// already; those that the device has found are over their sum, or 1 if that is less, and so is the sum over all class logits.
#[cube(launch, address_type = "dynamic")]
fn totals_kernel(
    parts: &Tensor<f32>,
    background: &Tensor<f32>,
    terms: &mut Tensor<f32>,
    of_sum: &mut Tensor<f32>,
    slopes: &mut Tensor<f32>,
    on_box: f32,
    on_class: f32,
    on_sides: f32,
    norm: f32,
    threads: u32,
    end: u32,
    #[comptime] found: bool,
) {
    if ABSOLUTE_POS >= 1 {
        terminate!();
    }
    let t = threads as usize;
    let mut share = 1.0f32;
    let mut of_all = 1.0f32 / norm;
    if comptime!(found) {
        let mut weights = fold(parts, 3 * t, 1usize, threads);
        if weights < 1.0f32 {
            weights = 1.0f32;
        }
        share = 1.0f32 / weights;
        of_all = 1.0f32 / weights;
    }
    terms[0] = on_box * share * fold(parts, 0usize, 1usize, threads);
    terms[1] = on_class * (background[0] * of_all - share * fold(parts, t, 1usize, threads));
    terms[2] = on_sides * share * fold(parts, 2 * t, 1usize, threads);
    of_sum[0] = on_class * of_all;
    slopes[end as usize] = share;
}

/// Adds to the gradient where a positive is: a thread to one of its channels, the last one to its class.
#[cube(launch, address_type = "dynamic")]
fn spread_kernel(slopes: &Tensor<f32>, dy: &Tensor<f32>, grad: &mut Tensor<f32>, sizes: &Sizes, on_class: f32) {
    let channels = comptime!(SIDES + 1);
    let i = ABSOLUTE_POS / channels;
    let c = ABSOLUTE_POS % channels;
    if i >= sizes.count as usize {
        terminate!();
    }
    let other = sizes.count as usize * comptime!(SIDES);
    let kept = 2 * other + i * comptime!(KEPT);
    let share = slopes[2 * other + sizes.count as usize * comptime!(KEPT)];
    let image = slopes[kept];
    if image > 0.0f32 {
        let at = place(u32::cast_from(image - 1.0f32) as usize, u32::cast_from(slopes[kept + 1]) as usize, sizes);
        if c < comptime!(SIDES) {
            let from = i * comptime!(SIDES) + c;
            grad[at + c * sizes.anchors as usize] += share * (dy[0] * slopes[from] + dy[2] * slopes[from + other]);
        } else {
            let class = comptime!(SIDES) + u32::cast_from(slopes[kept + 2]) as usize;
            grad[at + class * sizes.anchors as usize] -= share * (dy[1] * on_class * slopes[kept + 3]);
        }
    }
}

/// [`NUMBERS`] of each positive on x's device, and of one that is not read if there are none.
fn upload(x: &CubeTensor, all: &[Positive]) -> CubeTensor {
    let places = |p: &Positive| [p.image + 1, p.anchor, p.class].map(|n| n as f32);
    let mut numbers: Vec<f32> = all.iter().flat_map(|p| [&p.centre[..], &p.target, &[p.weight], &places(p)].concat()).collect();
    numbers.resize(all.len().max(1) * NUMBERS, 0.0);
    let len = numbers.len();
    CubeBackend::float_from_data(TensorData::new(numbers, [len]), &x.device)
}

/// How many slots there are for positives, and the gains.
fn slots(learning: &Learning) -> (usize, [f32; 3]) {
    match learning {
        Learning::Chosen(chosen) => (chosen.positives.len(), chosen.gains),
        Learning::Assigned(objects) => (objects.all.len() * TEN, objects.gains),
    }
}

fn sizes(learning: &Learning, [_, channels, anchors]: [usize; 3]) -> SizesLaunch {
    let (count, [on_box, _, on_sides]) = slots(learning);
    SizesLaunch::new(count as u32, channels as u32, anchors as u32, on_box, on_sides)
}

impl ForegroundOps for CubeBackend {
    fn foreground_terms(x: CubeTensor, background: CubeTensor, learning: Learning) -> (CubeTensor, CubeTensor, CubeTensor) {
        let x = into_contiguous(x);
        let shape = x.shape().dims::<3>();
        assert!(shape.iter().all(|&side| side <= EXACT), "{shape:?} has places that f32 does not tell apart");
        let (m, [on_box, on_class, on_sides]) = slots(&learning);
        // Of no objects there is nothing to find.
        let (positives, norm) = match &learning {
            Learning::Chosen(chosen) => (upload(&x, &chosen.positives), Some(chosen.norm)),
            Learning::Assigned(_) if m == 0 => (upload(&x, &[]), Some(1.0)),
            Learning::Assigned(objects) => (assign(&x, objects), None),
        };
        let threads = m.clamp(1, THREADS);
        let parts = empty(&x, [4, threads], DType::F32);
        let end = m * (2 * SIDES + KEPT);
        let slopes = empty(&x, [end + 1], DType::F32);
        launch_checked!(terms_kernel, threads, [x, positives, parts, slopes], sizes(&learning, shape), threads as u32);
        let (terms, of_sum) = (empty(&x, [3], DType::F32), empty(&x, [1], DType::F32));
        let found = norm.is_none();
        launch_checked!(
            totals_kernel,
            1,
            [parts, background, terms, of_sum, slopes],
            on_box,
            on_class,
            on_sides,
            norm.unwrap_or(1.0),
            threads as u32,
            end as u32,
            found
        );
        (terms, slopes, of_sum)
    }

    fn foreground_grad(grad: CubeTensor, slopes: CubeTensor, dy: CubeTensor, learning: Learning) -> CubeTensor {
        let (m, [_, on_class, _]) = slots(&learning);
        if m == 0 {
            return grad;
        }
        let (grad, dy) = (into_contiguous(grad), into_contiguous(dy));
        // Only some of its numbers are written. Rows of Burn's copy may have room behind them.
        let grad = if grad.can_mut() { grad } else { into_contiguous(grad.copy()) };
        launch_checked!(spread_kernel, m * (SIDES + 1), [slopes, dy, grad], sizes(&learning, grad.shape().dims()), on_class);
        grad
    }
}
