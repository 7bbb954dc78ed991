//! The operations on Flex: f32 through our loop, everything else through Burn's own.

use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::passes::{Expectation, Softplus};
use super::{LogitOps, portable};
use crate::buffers::{all_f32, contiguous, take, tensor, values};
use crate::cpu::machine::{TASK, worth_a_task};
use crate::cpu::simd;

impl LogitOps for Flex {
    fn softplus_sum(x: FlexTensor, start: usize, len: usize) -> (FlexTensor, FlexTensor) {
        let [b, c, a] = x.shape().dims();
        let true = (all_f32([&x]) && b * len * a != 0) else { return portable::softplus_sum::<Self>(x, start, len) };
        let (x, level) = (contiguous(x), simd::level());
        let mut slope = take(b * len * a);
        let images = values(&x).chunks_exact(c * a).zip(slope.chunks_exact_mut(len * a));
        let tasks: Vec<_> = images.flat_map(|(x, slope)| x[start * a..].chunks(TASK).zip(slope.chunks_mut(TASK))).collect();
        let sums: Vec<f64> = tasks.into_par_iter().map(|(x, slope)| simd::run(level, Softplus { x: &x[..slope.len()], slope })).collect();
        (tensor(vec![sums.iter().sum::<f64>() as f32], [1]), tensor(slope, [b, len, a]))
    }

    fn softplus_sum_grad(slope: FlexTensor, dy: FlexTensor, start: usize, total: usize) -> FlexTensor {
        let [b, len, a] = slope.shape().dims();
        if !all_f32([&slope, &dy]) || b * len * a == 0 {
            return portable::softplus_sum_grad::<Self>(slope, dy, start, total);
        }
        let (slope, dy) = (contiguous(slope), contiguous(dy));
        let (slope, dy) = (values(&slope), values(&dy)[0]);
        let mut grad = take(b * total * a);
        grad.par_chunks_exact_mut(a).enumerate().with_min_len(worth_a_task(a)).for_each(|(i, row)| match (i % total).checked_sub(start) {
            Some(channel) if channel < len => {
                let slope = &slope[(i / total * len + channel) * a..][..a];
                row.iter_mut().zip(slope).for_each(|(grad, slope)| *grad = slope * dy);
            }
            _ => row.fill(0.0),
        });
        tensor(grad, [b, total, a])
    }

    fn expectation(x: FlexTensor, sides: usize, bins: usize) -> FlexTensor {
        let [b, c, a] = x.shape().dims();
        let true = (all_f32([&x]) && b * sides * a != 0) else { return portable::expectation::<Self>(x, sides, bins) };
        let (x, level) = (contiguous(x), simd::level());
        let mut out = take(b * sides * a);
        let part = (TASK / bins).max(1);
        let rows =
            out.chunks_exact_mut(a).enumerate().map(|(i, out)| (&values(&x)[(i / sides * c + i % sides * bins) * a..][..bins * a], out));
        let tasks: Vec<_> = rows.flat_map(|(x, out)| out.chunks_mut(part).enumerate().map(move |(i, out)| (&x[i * part..], out))).collect();
        tasks.into_par_iter().for_each(|(x, out)| simd::run(level, Expectation { x, stride: a, bins, out }));
        tensor(out, [b, sides, a])
    }
}
