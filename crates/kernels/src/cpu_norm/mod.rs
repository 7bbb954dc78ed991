//! Batch normalisation and SiLU on the processor, in four passes over memory: statistics, output, gradient sums, input gradient.
//!
//! Each pass reads what it must and nothing twice; the sigmoid is computed anew in each backward pass, because a vector
//! unit does that faster than memory delivers a stored one. The formulas are those of
//! [`KernelOps::norm_act_backward`](crate::ops::KernelOps::norm_act_backward).
//!
//! Sums run in f32 over runs of [`RUN`] values and in f64 over runs, planes and images, always in the same order: the result does not
//! depend on the number of threads. The variance is taken around the channel's first value rather than zero, so a
//! mean far from zero costs no digits.

mod passes;
#[cfg(test)]
mod tests;

use rayon::prelude::*;

use crate::cpu::simd::{self, Level};
use passes::{GradSums, InputGrad, Output, Sums};

/// Values summed in f32 before the f64 total takes over.
const RUN: usize = 2048;
/// Values per task below which splitting costs more than it brings.
const TASK: usize = 16 * 1024;

/// The shape `[batch, channels, plane]` of contiguous values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) batch: usize,
    pub(crate) channels: usize,
    /// H W.
    pub(crate) plane: usize,
}

impl Extent {
    fn len(self) -> usize {
        self.batch * self.channels * self.plane
    }

    /// M: the values a channel's statistics are over.
    fn samples(self) -> f64 {
        (self.batch * self.plane) as f64
    }

    fn min_planes(self) -> usize {
        TASK.div_ceil(self.plane.max(1))
    }

    /// For each channel the sum over its planes of what `f(channel, plane)` returns, planes in order.
    fn per_channel(self, f: impl Fn(usize, std::ops::Range<usize>) -> [f64; 2] + Sync) -> Vec<[f64; 2]> {
        let mut planes = Vec::new();
        (0..self.batch * self.channels)
            .into_par_iter()
            .with_min_len(self.min_planes())
            .map(|i| f(i % self.channels, i * self.plane..(i + 1) * self.plane))
            .collect_into_vec(&mut planes);
        let sum = |c: usize| planes[c..].iter().step_by(self.channels).fold([0.0; 2], |[a, b], [x, y]| [a + x, b + y]);
        (0..self.channels).map(sum).collect()
    }
}

/// What normalising one channel needs: `z = (x - mean) scale + beta` with `scale = gamma rstd`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Channel {
    mean: f32,
    rstd: f32,
    scale: f32,
    beta: f32,
}

/// The channels' constants from statistics and parameters, all `[C]`.
pub(crate) fn channels(mean: &[f32], variance: &[f32], gamma: &[f32], beta: &[f32], epsilon: f64) -> Vec<Channel> {
    (0..mean.len())
        .map(|c| {
            let rstd = 1.0 / (f64::from(variance[c]) + epsilon).sqrt();
            Channel { mean: mean[c], rstd: rstd as f32, scale: (f64::from(gamma[c]) * rstd) as f32, beta: beta[c] }
        })
        .collect()
}

/// Mean and biased variance of each channel.
pub(crate) fn statistics(extent: Extent, x: &[f32]) -> (Vec<f32>, Vec<f32>) {
    assert_eq!(x.len(), extent.len());
    let level = simd::level();
    let centre = |c: usize| x.get(c * extent.plane).copied().unwrap_or(0.0);
    let sums = extent.per_channel(|c, plane| simd::run(level, Sums { x: &x[plane], centre: centre(c) }));
    let samples = extent.samples();
    let moments = |(c, [sum, squares]): (usize, [f64; 2])| {
        let mean = sum / samples;
        ((f64::from(centre(c)) + mean) as f32, (squares / samples - mean * mean).max(0.0) as f32)
    };
    sums.into_iter().enumerate().map(moments).unzip()
}

/// `silu(z)`, or z.
pub(crate) fn output(extent: Extent, x: &[f32], channels: &[Channel], silu: bool, out: &mut [f32]) {
    assert_eq!((x.len(), out.len(), channels.len()), (extent.len(), extent.len(), extent.channels));
    let level = simd::level();
    planes_mut(extent, out, |i, out| {
        let x = &x[i * extent.plane..][..extent.plane];
        simd::run(level, Output { x, channel: channels[i % extent.channels], silu, out });
    });
}

/// `(dgamma, dbeta)`.
pub(crate) fn grad_sums(extent: Extent, x: &[f32], dy: &[f32], channels: &[Channel], silu: bool) -> (Vec<f32>, Vec<f32>) {
    assert_eq!((x.len(), dy.len(), channels.len()), (extent.len(), extent.len(), extent.channels));
    let level: Level = simd::level();
    let sums =
        extent.per_channel(|c, plane| simd::run(level, GradSums { x: &x[plane.clone()], dy: &dy[plane], channel: channels[c], silu }));
    let scaled = |([beta, centred], channel): ([f64; 2], &Channel)| ((centred * f64::from(channel.rstd)) as f32, beta as f32);
    sums.into_iter().zip(channels).map(scaled).unzip()
}

/// Turns dy into dx where it stands.
pub(crate) fn input_grad(extent: Extent, x: &[f32], channels: &[Channel], gamma: &[f32], beta: &[f32], silu: bool, dy: &mut [f32]) {
    assert_eq!((x.len(), dy.len(), channels.len()), (extent.len(), extent.len(), extent.channels));
    let level = simd::level();
    let samples = extent.samples();
    planes_mut(extent, dy, |i, dy| {
        let c = i % extent.channels;
        let x = &x[i * extent.plane..][..extent.plane];
        let mean_dz = (f64::from(beta[c]) / samples) as f32;
        let slope = (f64::from(gamma[c]) * f64::from(channels[c].rstd) / samples) as f32;
        simd::run(level, InputGrad { x, channel: channels[c], mean_dz, slope, silu, dy });
    });
}

/// Calls `f` with each plane and its number.
fn planes_mut(extent: Extent, out: &mut [f32], f: impl Fn(usize, &mut [f32]) + Sync) {
    if extent.plane > 0 {
        out.par_chunks_mut(extent.plane).enumerate().with_min_len(extent.min_planes()).for_each(|(i, plane)| f(i, plane));
    }
}
