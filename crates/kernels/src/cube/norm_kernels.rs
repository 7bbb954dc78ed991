//! The device side of batch normalisation and SiLU: images of any float type, everything else f32.
//!
//! Sums over a channel take two launches: threads add up parts of it in registers, and then the parts are added. Shared memory is used for nothing but the latter sum
//! of the statistics, and not there where it cannot be trusted (see [`shared`](super::shared)); there is no atomic and no choice by time, so results repeat bit for bit.
//! Neighbouring threads read neighbours: pixels of a channel, or channels of a pixel where those are what memory holds side by side (`channels_last`).

#![allow(clippy::too_many_arguments, reason = "a kernel has no struct of borrowed tensors to take them in")]

use super::launch::fold;
use super::sums::sum_of_channel;
use cubecl::prelude::*;

/// Sizes, and into how many parts a channel's sums are cut: `inner` times over its pixels, `outer` times over the images.
#[derive(CubeLaunch, CubeType)]
pub(crate) struct Extent {
    images: u32,
    channels: u32,
    pixels: u32,
    inner: u32,
    outer: u32,
}

/// Steps of a tensor from one image, channel and pixel to the next.
#[derive(CubeLaunch, CubeType)]
pub(crate) struct Steps {
    image: usize,
    channel: usize,
    pixel: usize,
}

/// What is added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pass {
    /// `Σ d` and `Σ d²` of `d = x - mean`.
    Moments,
    /// `Σ dz` and `Σ dz (x - mean)`.
    Gradient {
        /// Whether dz is behind a SiLU.
        silu: bool,
    },
}

/// A channel's constants: `z = (x - mean) scale + beta`.
#[derive(CubeType)]
struct Channel {
    mean: f32,
    scale: f32,
    beta: f32,
}

/// dz of one number: dy, or `dy s (1 + z (1 - s))`, `s = sigmoid(z)`.
#[cube]
fn slope(channel: &Channel, centred: f32, dy: f32, #[comptime] silu: bool) -> f32 {
    let mut dz = dy;
    if comptime!(silu) {
        let z = centred * channel.scale + channel.beta;
        let s = 1.0f32 / (1.0f32 + (-z).exp());
        dz *= s * (1.0f32 + z * (1.0f32 - s));
    }
    dz
}

/// One term of both sums.
#[cube]
fn add_term(x: f32, dy: f32, channel: &Channel, sums: &mut Array<f32>, #[comptime] pass: Pass) {
    let centred = x - channel.mean;
    let mut weight = centred;
    if let Pass::Gradient { silu } = comptime!(pass) {
        weight = slope(channel, centred, dy, silu);
    }
    sums[0] += weight;
    sums[1] += weight * centred;
}

/// Pixels in flight at a time, see [`launch::AHEAD`](super::launch::AHEAD); few, since a small plane has few to a part.
const AHEAD: u32 = 4;

/// Both sums of one part, plane by plane, so that no run of additions is long.
#[cube]
fn add_up<E: Float>(
    x: &Tensor<E>,
    dy: &Tensor<E>,
    totals: &mut Array<f32>,
    part: u32,
    channel: &Channel,
    x_base: usize,
    dy_base: usize,
    extent: &Extent,
    x_steps: &Steps,
    dy_steps: &Steps,
    #[comptime] pass: Pass,
) {
    totals[0] = 0.0f32;
    totals[1] = 0.0f32;
    let mut sums = Array::<f32>::new(2usize);
    let mut image = part / extent.inner;
    while image < extent.images {
        let x_at = x_base + image as usize * x_steps.image;
        let dy_at = dy_base + image as usize * dy_steps.image;
        sums[0] = 0.0f32;
        sums[1] = 0.0f32;
        let mut pixel = part % extent.inner;
        while pixel + comptime!(AHEAD - 1) * extent.inner < extent.pixels {
            #[unroll]
            for i in 0..AHEAD {
                let p = (pixel + i * extent.inner) as usize;
                add_term(
                    f32::cast_from(x[x_at + p * x_steps.pixel]),
                    f32::cast_from(dy[dy_at + p * dy_steps.pixel]),
                    channel,
                    &mut sums,
                    pass,
                );
            }
            pixel += AHEAD * extent.inner;
        }
        while pixel < extent.pixels {
            let p = pixel as usize;
            add_term(f32::cast_from(x[x_at + p * x_steps.pixel]), f32::cast_from(dy[dy_at + p * dy_steps.pixel]), channel, &mut sums, pass);
            pixel += extent.inner;
        }
        totals[0] += sums[0];
        totals[1] += sums[1];
        image += extent.outer;
    }
}

/// `1 / sqrt(variance + epsilon)`.
#[cube]
fn rstd(variance: f32, epsilon: f32) -> f32 {
    1.0f32 / (variance + epsilon).sqrt()
}

/// The channel of this thread, of `count` to a channel.
#[cube]
fn channel_of(channels: u32, count: u32, #[comptime] channels_last: bool) -> u32 {
    let unit = ABSOLUTE_POS as u32;
    if comptime!(channels_last) { unit % channels } else { unit / count }
}

/// Its number among those of the channel.
#[cube]
fn index_of(channels: u32, count: u32, #[comptime] channels_last: bool) -> u32 {
    let unit = ABSOLUTE_POS as u32;
    if comptime!(channels_last) { unit / channels } else { unit % count }
}

/// Of each part of a channel the mean, `Σ (x - mean)²` and how many values it has, into `parts [3, channels, parts]`, a thread to a part. It reads them twice: the
/// second time around their mean, which is corrected by what rounding has left of `Σ (x - mean)`. No value is as good a guess of it: the first is at a border.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn norm_moments_kernel<E: Float>(
    x: &Tensor<E>,
    parts: &mut Tensor<f32>,
    extent: &Extent,
    steps: &Steps,
    #[comptime] channels_last: bool,
    #[define(E)] _type: ElemType,
) {
    let count = extent.inner * extent.outer;
    if ABSOLUTE_POS >= (extent.channels * count) as usize {
        terminate!();
    }
    let c = channel_of(extent.channels, count, channels_last);
    let part = index_of(extent.channels, count, channels_last);
    let base = c as usize * steps.channel;
    let pixels = (extent.pixels - 1 - part % extent.inner) / extent.inner + 1;
    let images = (extent.images - 1 - part / extent.inner) / extent.outer + 1;
    let values = f32::cast_from(images * pixels);

    let mut totals = Array::<f32>::new(2usize);
    let zero = Channel { mean: 0.0f32, scale: 0.0f32, beta: 0.0f32 };
    add_up::<E>(x, x, &mut totals, part, &zero, base, base, extent, steps, steps, Pass::Moments);
    let mean = totals[0] / values;
    let channel = Channel { mean, scale: 0.0f32, beta: 0.0f32 };
    add_up::<E>(x, x, &mut totals, part, &channel, base, base, extent, steps, steps, Pass::Moments);
    let at = (c * count + part) as usize;
    let all = (extent.channels * count) as usize;
    parts[at] = mean + totals[0] / values;
    parts[all + at] = totals[1];
    parts[2 * all + at] = values;
}

/// How running statistics move: `keep running + momentum new`, the new variance times `unbias`.
#[derive(CubeLaunch, CubeType)]
pub(crate) struct Momenta {
    keep: f32,
    momentum: f32,
    unbias: f32,
}

/// Mean and variance from `parts [3, channels, blocks]`, of blocks of w_i values their mean m_i, their sum of squared differences q_i, and w_i; and the running ones
/// moved towards them. The mean is `m_0 + Σ w_i (m_i - m_0) / M`, and the variance around it `Σ (q_i + w_i (m_i - mean)²) / M` (Chan, Golub and LeVeque 1983). Not
/// around m_0: the first block is at the border of an image, and may be unlike all others. So many `threads` to a channel: a workgroup, or one where
/// shared memory cannot be trusted. Devices bind no more tensors than these.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn norm_statistics_kernel(
    parts: &Tensor<f32>,
    mean: &mut Tensor<f32>,
    variance: &mut Tensor<f32>,
    old_mean: &Tensor<f32>,
    old_variance: &Tensor<f32>,
    running_mean: &mut Tensor<f32>,
    running_variance: &mut Tensor<f32>,
    extent: &Extent,
    blocks: u32,
    momenta: &Momenta,
    #[comptime] threads: u32,
) {
    let c = ABSOLUTE_POS / comptime!(threads as usize);
    let channels = extent.channels as usize;
    if c >= channels {
        terminate!();
    }
    let samples = f32::cast_from(extent.images * extent.pixels);
    let means = c * blocks as usize;
    let squares = (channels + c) * blocks as usize;
    let counts = (2 * channels + c) * blocks as usize;
    let first = UNIT_POS % threads;
    let mut own = 0.0f32;
    let mut block = first;
    while block < blocks {
        own += parts[counts + block as usize] * (parts[means + block as usize] - parts[means]);
        block += threads;
    }
    let offset = sum_of_channel(own, threads) / samples;
    let mut own = 0.0f32;
    let mut block = first;
    while block < blocks {
        let difference = parts[means + block as usize] - parts[means] - offset;
        own += parts[squares + block as usize] + parts[counts + block as usize] * difference * difference;
        block += threads;
    }
    let spread = sum_of_channel(own, threads) / samples;
    if first == 0u32 {
        let new_mean = parts[means] + offset;
        mean[c] = new_mean;
        variance[c] = spread;
        running_mean[c] = old_mean[c] * momenta.keep + new_mean * momenta.momentum;
        running_variance[c] = old_variance[c] * momenta.keep + spread * momenta.unbias * momenta.momentum;
    }
}

/// `z = gamma (x - mean) rstd + beta`, through SiLU and added to `onto` if asked; a thread to a pixel of a channel, for all images.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn norm_output_kernel<E: Float>(
    x: &Tensor<E>,
    mean: &Tensor<f32>,
    variance: &Tensor<f32>,
    gamma: &Tensor<f32>,
    beta: &Tensor<f32>,
    onto: &Tensor<E>,
    y: &mut Tensor<E>,
    extent: &Extent,
    x_steps: &Steps,
    onto_steps: &Steps,
    y_steps: &Steps,
    epsilon: f32,
    #[comptime] sums: bool,
    #[comptime] silu: bool,
    #[comptime] channels_last: bool,
    #[define(E)] _type: ElemType,
) {
    if ABSOLUTE_POS >= (extent.channels * extent.pixels) as usize {
        terminate!();
    }
    let c = channel_of(extent.channels, extent.pixels, channels_last) as usize;
    let pixel = index_of(extent.channels, extent.pixels, channels_last) as usize;
    let (mean, scale, beta) = (mean[c], gamma[c] * rstd(variance[c], epsilon), beta[c]);
    let from = c * x_steps.channel + pixel * x_steps.pixel;
    let beside = c * onto_steps.channel + pixel * onto_steps.pixel;
    let to = c * y_steps.channel + pixel * y_steps.pixel;
    for image in 0..extent.images {
        let mut z = (f32::cast_from(x[from + image as usize * x_steps.image]) - mean) * scale + beta;
        if comptime!(silu) {
            z /= 1.0f32 + (-z).exp();
        }
        if comptime!(sums) {
            z += f32::cast_from(onto[beside + image as usize * onto_steps.image]);
        }
        y[to + image as usize * y_steps.image] = E::cast_from(z);
    }
}

/// Parts of each channel's `Σ dz` and `Σ dz (x - mean)`, `parts [2, parts, channels]`, a thread to a part.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn norm_gradient_kernel<E: Float>(
    x: &Tensor<E>,
    dy: &Tensor<E>,
    mean: &Tensor<f32>,
    variance: &Tensor<f32>,
    gamma: &Tensor<f32>,
    beta: &Tensor<f32>,
    parts: &mut Tensor<f32>,
    extent: &Extent,
    x_steps: &Steps,
    dy_steps: &Steps,
    epsilon: f32,
    #[comptime] silu: bool,
    #[comptime] channels_last: bool,
    #[define(E)] _type: ElemType,
) {
    let count = extent.inner * extent.outer;
    if ABSOLUTE_POS >= (extent.channels * count) as usize {
        terminate!();
    }
    let channel = channel_of(extent.channels, count, channels_last);
    let part = index_of(extent.channels, count, channels_last);
    let at = (part * extent.channels + channel) as usize;
    let c = channel as usize;
    let scale = gamma[c] * rstd(variance[c], epsilon);
    let channel = Channel { mean: mean[c], scale, beta: beta[c] };
    let (x_base, dy_base) = (c * x_steps.channel, c * dy_steps.channel);
    let pass = comptime!(Pass::Gradient { silu });
    let mut totals = Array::<f32>::new(2usize);
    add_up::<E>(x, dy, &mut totals, part, &channel, x_base, dy_base, extent, x_steps, dy_steps, pass);
    parts[at] = totals[0];
    parts[at + (extent.channels * count) as usize] = totals[1];
}

/// dgamma and dbeta, times `true_scale`, and `factors [3, channels]` from the parts, a thread to a channel: gamma rstd, dbeta / M and dgamma rstd / M.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn norm_gradient_sums_kernel(
    parts: &Tensor<f32>,
    variance: &Tensor<f32>,
    gamma: &Tensor<f32>,
    dgamma: &mut Tensor<f32>,
    dbeta: &mut Tensor<f32>,
    factors: &mut Tensor<f32>,
    extent: &Extent,
    epsilon: f32,
    true_scale: f32,
) {
    let c = ABSOLUTE_POS;
    let channels = extent.channels as usize;
    if c >= channels {
        terminate!();
    }
    let count = extent.inner * extent.outer;
    let samples = f32::cast_from(extent.images) * f32::cast_from(extent.pixels);
    let rstd = rstd(variance[c], epsilon);
    let shift = fold(parts, c, channels, count);
    let stretch = fold(parts, c + count as usize * channels, channels, count) * rstd;
    dbeta[c] = shift * true_scale;
    dgamma[c] = stretch * true_scale;
    factors[c] = gamma[c] * rstd;
    factors[channels + c] = shift / samples;
    factors[2 * channels + c] = stretch * rstd / samples;
}

/// `dx = scale (dz - dbeta / M - (x - mean) dgamma rstd / M)`; a thread to a pixel of a channel, for all images.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn norm_input_gradient_kernel<E: Float>(
    x: &Tensor<E>,
    dy: &Tensor<E>,
    mean: &Tensor<f32>,
    beta: &Tensor<f32>,
    factors: &Tensor<f32>,
    dx: &mut Tensor<E>,
    extent: &Extent,
    x_steps: &Steps,
    dy_steps: &Steps,
    dx_steps: &Steps,
    #[comptime] silu: bool,
    #[comptime] channels_last: bool,
    #[define(E)] _type: ElemType,
) {
    if ABSOLUTE_POS >= (extent.channels * extent.pixels) as usize {
        terminate!();
    }
    let c = channel_of(extent.channels, extent.pixels, channels_last) as usize;
    let pixel = index_of(extent.channels, extent.pixels, channels_last) as usize;
    let channels = extent.channels as usize;
    let channel = Channel { mean: mean[c], scale: factors[c], beta: beta[c] };
    let (mean_dz, tilt) = (factors[channels + c], factors[2 * channels + c]);
    let x_at = c * x_steps.channel + pixel * x_steps.pixel;
    let dy_at = c * dy_steps.channel + pixel * dy_steps.pixel;
    let dx_at = c * dx_steps.channel + pixel * dx_steps.pixel;
    for image in 0..extent.images {
        let centred = f32::cast_from(x[x_at + image as usize * x_steps.image]) - channel.mean;
        let dz = slope(&channel, centred, f32::cast_from(dy[dy_at + image as usize * dy_steps.image]), silu);
        dx[dx_at + image as usize * dx_steps.image] = E::cast_from(channel.scale * (dz - mean_dz - centred * tilt));
    }
}
