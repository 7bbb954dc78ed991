//! Batch normalisation of a batch of which this device holds a part: its statistics, and the sums of its backward pass, are of all parts.
//!
//! There is no kernel of its own for it. Moments of parts make those of the whole, and its output is the one that is made again from
//! statistics anyway. In the backward pass what the other parts change of dx is an affine function of x, so it is one more normalisation,
//! which is added. Where all of a batch is here, nothing of this is computed.

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Backend, Scalar, TensorMetadata};
use burn::tensor::{DType, TensorData, try_read_sync};

use crate::operands::{Maybe, NormChannels, NormGrads, NormOutput, NormStep};
use crate::ops::KernelOps;
use crate::parts::{has_others, of_all_parts};
use crate::planes::HALF_GRADIENTS;
use crate::portable::move_statistics;
use crate::reads::note_read;

/// [`KernelOps::norm_act`] by the statistics of all parts.
///
/// Of parts of M_i values, means m_i and variances v_i: `m = Σ M_i m_i / M`, `v = Σ M_i (v_i + (m_i - m)²) / M` (Chan, Golub and LeVeque 1983).
pub(crate) fn norm_act<B: KernelOps>(
    x: Float<B>,
    moments: Maybe<B>,
    channels: NormChannels<B>,
    step: NormStep,
    onto: Maybe<B>,
) -> NormOutput<B> {
    if !has_others() {
        return B::norm_act(x, moments, channels, step, onto);
    }
    let (device, values) = (x.device(), values(&x));
    let own = B::norm_act(x.clone(), moments, channels.clone(), step, Maybe::None);
    let NormChannels { mean: old_mean, variance: old_variance, gamma, beta } = channels;
    let channels = own.mean.shape()[0];
    let parts = of_all_parts([vec![values], on_host::<B>(own.mean), on_host::<B>(own.variance)].concat());
    let all: f64 = parts.iter().map(|part| part[0]).sum();
    let moments = (1..=channels).map(|c| {
        let mean = parts.iter().map(|part| part[0] * part[c]).sum::<f64>() / all;
        let spread = |part: &Vec<f64>| part[0] * (part[channels + c] + (part[c] - mean).powi(2));
        (mean, parts.iter().map(spread).sum::<f64>() / all)
    });
    let (mean, variance): (Vec<f64>, Vec<f64>) = moments.unzip();
    let [mean, variance] = [mean, variance].map(|moment| on_device::<B>(&moment, &device));
    let [running_mean, running_variance] =
        move_statistics::<B>([old_mean, old_variance], [&mean, &variance], step.momentum, all / (all - 1.0).max(1.0));
    let channels = NormChannels::<B> { mean: mean.clone(), variance: variance.clone(), gamma, beta };
    let output = B::norm_act_again(x, channels, step, onto);
    NormOutput { output, mean, variance, running_mean, running_variance }
}

/// [`KernelOps::norm_act_backward`] by the sums of all parts; the gradients of gamma and beta are those of this part.
///
/// Of a part alone, `dx' = gamma rstd (dz - dbeta_i / M_i - x^ dgamma_i / M_i)`; with those of the whole in their place it is `dx' + gamma rstd
/// (dbeta_i / M_i - dbeta / M + x^ (dgamma_i / M_i - dgamma / M))`.
pub(crate) fn norm_act_backward<B: KernelOps>(x: Float<B>, channels: NormChannels<B>, dy: Float<B>, step: NormStep) -> NormGrads<B> {
    if !has_others() {
        return B::norm_act_backward(x, channels, dy, step);
    }
    let (device, values) = (x.device(), values(&x));
    let own = B::norm_act_backward(x.clone(), channels.clone(), dy, step);
    let sums = [vec![values], on_host::<B>(own.gamma.clone()), on_host::<B>(own.beta.clone())].concat();
    let parts = of_all_parts(sums.clone());
    let all: f64 = parts.iter().map(|part| part[0]).sum();
    // dx of half precision is too large by so much, and the sums are not.
    let scale = if x.dtype() == DType::F32 { 1.0 } else { f64::from(HALF_GRADIENTS) };
    let missing: Vec<f64> =
        (1..sums.len()).map(|i| scale * (sums[i] / values - parts.iter().map(|part| part[i]).sum::<f64>() / all)).collect();
    let (tilt, shift) = missing.split_at(missing.len() / 2);
    let NormChannels { mean, variance, gamma, .. } = channels;
    let rstd = B::float_recip(B::float_sqrt(B::float_add_scalar(variance.clone(), Scalar::Float(step.epsilon))));
    let steep = B::float_mul(gamma, rstd);
    let [tilt, shift] = [tilt, shift].map(|by| B::float_mul(steep.clone(), on_device::<B>(by, &device)));
    let missing = NormChannels::<B> { mean, variance, gamma: tilt, beta: shift };
    NormGrads { x: B::norm_act_again(x, missing, NormStep { silu: false, ..step }, Maybe::Some(own.x)), ..own }
}

/// N H W of `[N, C, H, W]`.
fn values<T: TensorMetadata>(x: &T) -> f64 {
    let [n, _, h, w] = x.shape().dims();
    (n * h * w) as f64
}

/// The numbers of `[C]`.
///
/// # Panics
/// With the device's words if it hands nothing back, as Burn's own reads do in the middle of a pass.
fn on_host<B: Backend>(tensor: Float<B>) -> Vec<f64> {
    note_read();
    let read = try_read_sync(B::float_into_data(tensor)).unwrap_or_else(|| panic!("batch statistics: the device does not wait"));
    let values = read.unwrap_or_else(|error| panic!("batch statistics: {error}")).try_into_vec_as::<f32>();
    values.unwrap_or_else(|error| panic!("batch statistics: {error}")).into_iter().map(f64::from).collect()
}

fn on_device<B: Backend>(values: &[f64], device: &B::Device) -> Float<B> {
    let values: Vec<f32> = values.iter().map(|&value| value as f32).collect();
    let len = values.len();
    B::float_from_data(TensorData::new(values, [len]), device)
}
