//! The operations on Flex: f32 through our loops, everything else through Burn's own.

use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::{LogitOps, portable};
use crate::buffers::{all_f32, contiguous, take, tensor, values, written};
use crate::cpu::machine::{RUN, TASK, worth_a_task};
use crate::cpu::simd::{self, MAX_LANES};
use crate::tasks::task;

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
}

task! {
    /// `out[j] = Σ k e_k / Σ e_k` with `e_k = exp(x[k * stride + j] - max)`, over `bins` rows.
    fn expectation<S>(simd, x: &'a [f32], stride: usize, bins: usize, out: &'a mut [f32]) {
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
        if !all_f32([&slope, &dy]) || b * len * a == 0 {
            return portable::softplus_sum_grad::<Self>(slope, dy, start, total);
        }
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
            tasks.into_par_iter().for_each(|(x, out)| expectation(level, x, a, bins, out));
        })
    }
}
