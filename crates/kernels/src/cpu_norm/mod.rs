//! Batch normalisation and SiLU on the processor, channel by channel.
//!
//! A channel is passed over twice in each direction, for its sums and for its results, and the second pass finds it in a cache: a channel
//! of a batch is small where the whole tensor is not. The formulas are those of
//! [`KernelOps::norm_act_backward`](crate::ops::KernelOps::norm_act_backward).
//!
//! Sums run in f32 over runs of [`RUN_OF_PLANE`](crate::cpu::machine::RUN_OF_PLANE) values and in f64 over runs, planes and images, always in the same order: the result does not
//! depend on the number of threads. The variance is taken around the channel's first value rather than zero, so a
//! mean far from zero costs no digits.

mod passes;
#[cfg(test)]
mod tests;

use rayon::prelude::*;

use crate::cpu::machine::worth_a_task;
use crate::cpu::simd;
use passes::{input_grad, output, slopes, sums};

pub(crate) use passes::Channel;

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

    /// What `f` returns of each channel; it is given the channel's planes of `x`, each with that of `out`.
    fn each_channel<'a, R: Send>(
        self,
        x: &'a [f32],
        out: &'a mut [f32],
        f: impl Fn(usize, &mut [Planes<'a>]) -> R + Sync + Send,
    ) -> impl IndexedParallelIterator<Item = R> {
        assert_eq!((x.len(), out.len()), (self.len(), self.len()));
        let plane = self.plane.max(1);
        let mut channels: Vec<Vec<Planes<'a>>> = (0..self.channels).map(|_| Vec::with_capacity(self.batch)).collect();
        for (i, planes) in x.chunks_exact(plane).zip(out.chunks_exact_mut(plane)).enumerate() {
            channels[i % self.channels].push(planes);
        }
        let min_channels = worth_a_task(self.batch * self.plane);
        channels.into_par_iter().enumerate().with_min_len(min_channels).map(move |(c, mut planes)| f(c, &mut planes))
    }

    /// Whether channels are too few to keep so many threads busy.
    fn cuts_channels(self, threads: usize) -> bool {
        self.channels < 4 * threads
    }

    /// What `f` returns of each plane, in their order.
    fn each_plane<R: Send>(self, planes: &mut [Planes<'_>], f: impl Fn(&[f32], &mut [f32]) -> R + Sync) -> Vec<R> {
        if self.cuts_channels(rayon::current_num_threads()) {
            planes.par_iter_mut().with_min_len(worth_a_task(self.plane)).map(|(x, out)| f(x, out)).collect()
        } else {
            planes.iter_mut().map(|(x, out)| f(x, out)).collect()
        }
    }

    /// The sum of it.
    fn sum(self, planes: &mut [Planes<'_>], f: impl Fn(&[f32], &mut [f32]) -> [f64; 2] + Sync) -> [f64; 2] {
        self.each_plane(planes, f).into_iter().fold([0.0; 2], |[a, b], [x, y]| [a + x, b + y])
    }
}

/// A plane that is read and the one that is written.
type Planes<'a> = (&'a [f32], &'a mut [f32]);

/// The channels' constants from statistics and parameters, all `[C]`.
pub(crate) fn channels(mean: &[f32], variance: &[f32], gamma: &[f32], beta: &[f32], epsilon: f64) -> Vec<Channel> {
    (0..mean.len()).map(|c| Channel::new(mean[c], variance[c], gamma[c], beta[c], epsilon)).collect()
}

/// `silu(z)`, or z, by the batch's own statistics: (mean, biased variance).
pub(crate) fn forward(
    extent: Extent,
    x: &[f32],
    [gamma, beta]: [&[f32]; 2],
    epsilon: f64,
    silu: bool,
    out: &mut [f32],
) -> (Vec<f32>, Vec<f32>) {
    assert_eq!([gamma.len(), beta.len()], [extent.channels; 2]);
    let (level, samples) = (simd::level(), extent.samples());
    let moments = extent.each_channel(x, out, |c, planes| {
        let centre = planes.first().map_or(0.0, |(x, _)| x[0]);
        let [sum, squares] = extent.sum(planes, |x, _| sums(level, x, centre));
        let mean = sum / samples;
        // Not the larger of it and 0, which of NaN is 0.
        let moments = ((f64::from(centre) + mean) as f32, (squares / samples - mean * mean).clamp(0.0, f64::INFINITY) as f32);
        let channel = Channel::new(moments.0, moments.1, gamma[c], beta[c], epsilon);
        extent.each_plane(planes, |x, out| output(level, x, channel, silu, out));
        moments
    });
    moments.unzip()
}

/// The same output by statistics that are known.
pub(crate) fn forward_again(extent: Extent, x: &[f32], channels: &[Channel], silu: bool, out: &mut [f32]) {
    assert_eq!((x.len(), out.len(), channels.len()), (extent.len(), extent.len(), extent.channels));
    let (level, plane) = (simd::level(), extent.plane.max(1));
    let planes = x.par_chunks_exact(plane).zip(out.par_chunks_exact_mut(plane)).enumerate().with_min_len(worth_a_task(extent.plane));
    planes.for_each(|(i, (x, out))| output(level, x, channels[i % extent.channels], silu, out));
}

/// Turns dy into dx where it stands: `(dgamma, dbeta)`.
pub(crate) fn backward(extent: Extent, x: &[f32], channels: &[Channel], silu: bool, dy: &mut [f32]) -> (Vec<f32>, Vec<f32>) {
    assert_eq!(channels.len(), extent.channels);
    let (level, samples) = (simd::level(), extent.samples());
    let grads = extent.each_channel(x, dy, |c, planes| {
        let channel = channels[c];
        let [sum, centred] = extent.sum(planes, |x, dy| slopes(level, x, dy, channel, silu));
        let (gamma, beta) = ((centred * f64::from(channel.rstd)) as f32, sum as f32);
        let mean_dz = (f64::from(beta) / samples) as f32;
        let slope = (f64::from(gamma) * f64::from(channel.rstd) / samples) as f32;
        extent.each_plane(planes, |x, dz| input_grad(level, x, channel, mean_dz, slope, dz));
        (gamma, beta)
    });
    grads.unzip()
}
