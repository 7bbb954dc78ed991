//! What a detector's head means: the cross entropy of its class scores, of which all but a few have the target zero, and the distances that
//! its distributions expect.
//!
//! Cross entropy against zero is `softplus(x) = log(1 + exp(x))`, whose slope is `sigmoid(x)`. Composed of Burn's operations each of these is
//! several passes on one core, over as many logits as there are anchors times classes or bins; here it is one pass on all of them.

mod cube;
mod portable;
#[cfg(test)]
mod tests;

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{AutodiffBackend, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::Tensor;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use crate::buffers::{all_f32, contiguous, take, tensor, values, written};
use crate::cpu::machine::{RUN, TASK, worth_a_task};
use crate::cpu::simd::{self, MAX_LANES};
use crate::shapes;
use crate::steps::{Autodiff, CheckpointStrategy};
use crate::tasks::task;

/// Operations on `[B, C, A]`, C rows of A logits.
#[backend_extension(Flex, Cube, Autodiff)]
pub trait LogitOps: Backend {
    /// `Σ softplus(x)` over the rows `start .. start + len` of every image, `[1]`, and there `sigmoid(x)`, `[B, len, A]`, without gradient. The
    /// same bits for any number of threads.
    fn softplus_sum(x: Float<Self>, start: usize, len: usize) -> (Float<Self>, Float<Self>);

    /// The gradient of that sum for x, of C = `total` rows, from sigmoid(x) and dy, `[1]`.
    fn softplus_sum_grad(slope: Float<Self>, dy: Float<Self>, start: usize, total: usize) -> Float<Self> {
        portable::softplus_sum_grad::<Self>(slope, dy, start, total)
    }

    /// What an assigner asks of raw outputs, without gradient: the four corners of every image in pixels, `centre -/+ expected bins` times the
    /// anchor's stride, then `sigmoid(x)` of some of the `B C` rows; `[4 B + chosen, A]`. Centres `[1, 2, A]` (x row, y row), strides `[1, 1, A]`.
    fn predictions(x: Float<Self>, centres: Float<Self>, strides: Float<Self>, chosen: Vec<i32>, bins: usize) -> Float<Self> {
        let sides = Self::expectation(x.clone(), 4, bins);
        portable::predictions::<Self>(x, sides, centres, strides, chosen)
    }

    /// `Σ k softmax(x)_k` over each of the first `sides` groups of `bins` rows, `[B, sides, A]`, without gradient.
    fn expectation(x: Float<Self>, sides: usize, bins: usize) -> Float<Self>;
}

/// What an assigner asks of raw outputs x `[B, C, A]`: see [`LogitOps::predictions`]. `chosen` are rows among the `B C` of x.
pub fn predictions(x: Tensor<3>, centres: Tensor<3>, strides: Tensor<3>, chosen: Vec<i32>, bins: usize) -> Tensor<2> {
    let [b, c, a] = x.dims();
    shapes::within("rows", &(0..4 * bins), c);
    shapes::expect("centres", centres.dims(), [1, 2, a]);
    shapes::expect("strides", strides.dims(), [1, 1, a]);
    assert!(bins > 0 && chosen.iter().all(|&row| (row as usize) < b * c), "rows {chosen:?} of {}", b * c);
    Tensor::from_dispatch(Dispatch::predictions(x.into_dispatch(), centres.into_dispatch(), strides.into_dispatch(), chosen, bins))
}

/// `sigmoid(x)` of the rows of x `[B, C, A]` from `start` on, `[B, C - start, A]`, without gradient: what the loss has as the slope of softplus.
pub fn scores(x: Tensor<3>, start: usize) -> Tensor<3> {
    let [_, c, _] = x.dims();
    shapes::within("rows", &(start..c), c);
    Tensor::from_dispatch(Dispatch::softplus_sum(x.into_dispatch(), start, c - start).1)
}

/// The expected bin of each distribution: the first `sides bins` rows of x `[B, C, A]` are logits, `bins` a side; `[B, sides, A]`, without gradient.
pub fn expectation(x: Tensor<3>, sides: usize, bins: usize) -> Tensor<3> {
    shapes::within("rows", &(0..sides * bins), x.dims()[1]);
    assert!(bins > 0, "distributions over nothing");
    Tensor::from_dispatch(Dispatch::expectation(x.into_dispatch(), sides, bins))
}

task! {
    /// Writes `sigmoid(x)` and returns `Σ softplus(x)`.
    ///
    /// `softplus(x) = max(x, 0) + log(1 + exp(-|x|))`, and a sum of logarithms is the logarithm of a product. What is kept is the product minus one,
    /// so that factors next to one, of which a detector's background is made, lose no digits. A factor is at most 2, so that of
    /// [`RUN`] is below 2^64.
    fn softplus<S>(simd, x: &'a [f32], slope: &'a mut [f32]) -> f64 {
        let mut total = 0.0;
        for (x, slope) in x.chunks(RUN * S::LANES).zip(slope.chunks_mut(RUN * S::LANES)) {
            let (mut positive, mut product) = (simd.zero(), simd.zero());
            for (x, slope) in x.chunks(S::LANES).zip(slope.chunks_mut(S::LANES)) {
                let n = x.len();
                let x = if n == S::LANES {
                    simd.load(x)
                } else {
                    // What is missing adds nothing.
                    let mut rest = [f32::NEG_INFINITY; MAX_LANES];
                    rest[..n].copy_from_slice(x);
                    simd.load(&rest)
                };
                simd.store_part(simd.sigmoid(x), slope, n);
                let e = simd.exp(simd.min(simd.sub(simd.zero(), x), x));
                // (1 + p)(1 + e) - 1 = p + (e p + e)
                product = simd.add(product, simd.mul_add(e, product, e));
                positive = simd.add(positive, simd.max(simd.zero(), x));
            }
            let mut lanes = [[0.0; MAX_LANES]; 2];
            simd.store(positive, &mut lanes[0]);
            simd.store(product, &mut lanes[1]);
            for (&positive, &product) in lanes[0][..S::LANES].iter().zip(&lanes[1]) {
                total += f64::from(positive) + f64::from(product).ln_1p();
            }
        }
        total
    }

    /// `out[j] = Σ k e_k / Σ e_k` with `e_k = exp(x[k * stride + j] - max)`, over `bins` rows.
    fn expected<S>(simd, x: &'a [f32], stride: usize, bins: usize, out: &'a mut [f32]) {
        let rows = || x.chunks(stride).take(bins);
        for (i, out) in out.chunks_mut(S::LANES).enumerate() {
            let (at, n) = (i * S::LANES, out.len());
            let mut max = simd.splat(f32::NEG_INFINITY);
            for row in rows() {
                max = simd.max(max, simd.load_part(&row[at..], n));
            }
            let (mut sum, mut weighted, mut k) = (simd.zero(), simd.zero(), 0.0);
            for row in rows() {
                // Of what is no number, or infinite, this is none, whatever the maximum is.
                let e = simd.exp(simd.sub(simd.load_part(&row[at..], n), max));
                sum = simd.add(sum, e);
                weighted = simd.mul_add(simd.splat(k), e, weighted);
                k += 1.0;
            }
            simd.store_part(simd.div(weighted, sum), out, n);
        }
    }
}

impl LogitOps for Flex {
    fn softplus_sum(x: FlexTensor, start: usize, len: usize) -> (FlexTensor, FlexTensor) {
        let [b, c, a] = x.shape().dims();
        let true = (all_f32([&x]) && b * len * a != 0) else { return portable::softplus_sum::<Self>(x, start, len) };
        let (x, level) = (contiguous(x), simd::level());
        let mut slope = take(b * len * a);
        let images = values(&x).chunks_exact(c * a).zip(slope.chunks_exact_mut(len * a));
        let tasks: Vec<_> = images.flat_map(|(x, slope)| x[start * a..].chunks(TASK).zip(slope.chunks_mut(TASK))).collect();
        let sums: Vec<f64> = tasks.into_par_iter().map(|(x, slope)| softplus(level, &x[..slope.len()], slope)).collect();
        (tensor(vec![sums.iter().sum::<f64>() as f32], [1]), tensor(slope, [b, len, a]))
    }

    fn softplus_sum_grad(slope: FlexTensor, dy: FlexTensor, start: usize, total: usize) -> FlexTensor {
        let [b, len, a] = slope.shape().dims();
        let true = (all_f32([&slope, &dy]) && b * len * a > 0) else { return portable::softplus_sum_grad::<Self>(slope, dy, start, total) };
        let (slope, dy) = (contiguous(slope), contiguous(dy));
        let (slope, dy) = (values(&slope), values(&dy)[0]);
        let fill = |(i, row): (usize, &mut [f32])| match (i % total).checked_sub(start) {
            Some(channel) if channel < len => {
                let slope = &slope[(i / total * len + channel) * a..][..a];
                row.iter_mut().zip(slope).for_each(|(grad, slope)| *grad = slope * dy);
            }
            _ => row.fill(0.0),
        };
        written([b, total, a], |grad| grad.par_chunks_exact_mut(a).enumerate().with_min_len(worth_a_task(a)).for_each(fill))
    }

    fn expectation(x: FlexTensor, sides: usize, bins: usize) -> FlexTensor {
        let [b, c, a] = x.shape().dims();
        let true = (all_f32([&x]) && b * sides * a != 0) else { return portable::expectation::<Self>(x, sides, bins) };
        let (x, level, part) = (contiguous(x), simd::level(), (TASK / bins).max(1));
        written([b, sides, a], |out| {
            let rows = |i: usize| &values(&x)[(i / sides * c + i % sides * bins) * a..][..bins * a];
            let all = out.chunks_exact_mut(a).enumerate().map(|(i, out)| (rows(i), out));
            let pieces = all.flat_map(|(x, out)| out.chunks_mut(part).enumerate().map(move |(i, out)| (&x[i * part..], out)));
            let tasks: Vec<_> = pieces.collect();
            tasks.into_par_iter().for_each(|(x, out)| expected(level, x, a, bins, out));
        })
    }
}

/// Nothing here is differentiable by itself: who uses the sum passes its slope back, see [`foreground`](crate::foreground).
impl<B: LogitOps, C: CheckpointStrategy> LogitOps for Autodiff<B, C> {
    fn softplus_sum(x: Float<Self>, start: usize, len: usize) -> (Float<Self>, Float<Self>) {
        let (sum, slope) = B::softplus_sum(x.into_primitive(), start, len);
        (Self::from_inner(sum), Self::from_inner(slope))
    }

    fn predictions(x: Float<Self>, centres: Float<Self>, strides: Float<Self>, chosen: Vec<i32>, bins: usize) -> Float<Self> {
        Self::from_inner(B::predictions(x.into_primitive(), centres.into_primitive(), strides.into_primitive(), chosen, bins))
    }

    fn expectation(x: Float<Self>, sides: usize, bins: usize) -> Float<Self> {
        Self::from_inner(B::expectation(x.into_primitive(), sides, bins))
    }
}
