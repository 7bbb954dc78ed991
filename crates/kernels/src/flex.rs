//! The operations on Flex, Burn's CPU backend: f32 goes to our kernels, everything else to Burn's own operations.
//!
//! Inputs of which this was the last use become the memory of later outputs (see [`buffers`](crate::buffers)).

use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;

use crate::buffers::{all_f32, contiguous, owned, take, tensor, values};
use crate::cpu::{self, ConvShape, Epilogue, Precision};
use crate::cpu_norm::{self, Extent};
use crate::operands::{Bias, ConvConfig, Moments, NormChannels, NormGrads, NormOutput, NormStep};
use crate::ops::{Keeps, KernelOps};
use crate::portable;

fn extent(x: &FlexTensor) -> Extent {
    let [batch, channels, height, width] = x.shape().dims();
    Extent { batch, channels, plane: height * width }
}

/// The channels' constants.
fn constants(NormChannels { mean, variance, gamma, beta }: NormChannels<Flex>, step: NormStep) -> Vec<cpu_norm::Channel> {
    let [mean, variance, gamma, beta] = [mean, variance, gamma, beta].map(contiguous);
    cpu_norm::channels(values(&mean), values(&variance), values(&gamma), values(&beta), step.epsilon)
}

/// The precision in which we compute this convolution, if we do.
fn method(tensors: [&FlexTensor; 2], config: &ConvConfig) -> Option<Precision> {
    config.lowering.precision().filter(|_| all_f32(tensors) && config.groups == 1 && config.dilation == [1; 2])
}

/// Convolution, bias and, if asked for, SiLU.
fn forward(x: FlexTensor, weight: FlexTensor, bias: Bias<Flex>, config: ConvConfig, silu: bool) -> FlexTensor {
    let bias = bias.into_option();
    let Some(precision) = method([&x, &weight], &config) else {
        let y = portable::conv_forward::<Flex>(x, weight, bias, config);
        return if silu { portable::silu::<Flex>(y) } else { y };
    };
    let (x, weight, bias) = (contiguous(x), contiguous(weight), bias.map(contiguous));
    let shape = ConvShape::new(x.shape().dims(), weight.shape().dims(), config.stride, config.padding);
    let dims = [shape.batch, shape.out_channels, shape.out_height(), shape.out_width()];
    let mut out = take(dims.iter().product());
    let epilogue = Epilogue { bias: bias.as_ref().map(values), silu };
    cpu::forward(&shape, config.lowering, precision, values(&x), values(&weight), epilogue, &mut out);
    tensor(out, dims)
}

impl Keeps for Flex {
    const KEPT: usize = 0;
}

impl KernelOps for Flex {
    fn conv_forward(x: FlexTensor, weight: FlexTensor, bias: Bias<Self>, config: ConvConfig) -> FlexTensor {
        forward(x, weight, bias, config, false)
    }

    fn conv_silu(x: FlexTensor, weight: FlexTensor, bias: Bias<Self>, config: ConvConfig) -> FlexTensor {
        forward(x, weight, bias, config, true)
    }

    fn conv_data_grad(dy: FlexTensor, weight: FlexTensor, input: [usize; 2], config: ConvConfig) -> FlexTensor {
        let Some(precision) = method([&dy, &weight], &config) else { return portable::conv_data_grad::<Self>(dy, weight, input, config) };
        let (dy, weight) = (contiguous(dy), contiguous(weight));
        let ([batch, ..], [_, ci, ..]) = (dy.shape().dims::<4>(), weight.shape().dims::<4>());
        let dims = [batch, ci, input[0], input[1]];
        let mut dx = take(dims.iter().product());
        let shape = ConvShape::new(dims, weight.shape().dims(), config.stride, config.padding);
        cpu::data_grad(&shape, config.lowering, precision, values(&dy), values(&weight), &mut dx);
        tensor(dx, dims)
    }

    fn conv_weight_grad(x: FlexTensor, dy: FlexTensor, kernel: [usize; 2], config: ConvConfig) -> FlexTensor {
        let Some(precision) = method([&x, &dy], &config) else { return portable::conv_weight_grad::<Self>(x, dy, kernel, config) };
        let (x, dy) = (contiguous(x), contiguous(dy));
        let ([_, ci, ..], [_, co, ..]) = (x.shape().dims::<4>(), dy.shape().dims::<4>());
        let dims = [co, ci, kernel[0], kernel[1]];
        let mut dw = take(dims.iter().product());
        let shape = ConvShape::new(x.shape().dims(), dims, config.stride, config.padding);
        cpu::weight_grad(&shape, config.lowering, precision, values(&x), values(&dy), &mut dw);
        tensor(dw, dims)
    }

    fn norm_act(x: FlexTensor, _: Moments<Self>, channels: NormChannels<Self>, step: NormStep) -> NormOutput<Self> {
        let true = all_f32([&x, &channels.gamma, &channels.beta]) else { return portable::norm_act::<Self>(x, channels, step) };
        let running = [channels.mean, channels.variance];
        let [x, gamma, beta] = [x, channels.gamma, channels.beta].map(contiguous);
        let (extent, dims) = (extent(&x), x.shape().dims::<4>());
        let mut out = take(extent.batch * extent.channels * extent.plane);
        let (mean, variance) = cpu_norm::forward(extent, values(&x), [&gamma, &beta].map(values), step.epsilon, step.silu, &mut out);
        let [mean, variance] = [mean, variance].map(|moment| tensor(moment, [extent.channels]));
        let [running_mean, running_variance] =
            portable::move_statistics::<Self>(running, [&mean, &variance], step.momentum, NormStep::unbias(dims));
        NormOutput { output: tensor(out, dims), mean, variance, running_mean, running_variance }
    }

    fn norm_act_again(x: FlexTensor, channels: NormChannels<Self>, step: NormStep) -> FlexTensor {
        let true = all_f32([&x].into_iter().chain(channels.all())) else { return portable::norm_act_again::<Self>(x, channels, step) };
        let (x, channels) = (contiguous(x), constants(channels, step));
        let mut out = take(values(&x).len());
        cpu_norm::forward_again(extent(&x), values(&x), &channels, step.silu, &mut out);
        tensor(out, x.shape())
    }

    fn norm_act_backward(x: FlexTensor, channels: NormChannels<Self>, dy: FlexTensor, step: NormStep) -> NormGrads<Self> {
        let true = all_f32([&x, &dy].into_iter().chain(channels.all())) else {
            return portable::norm_act_backward::<Self>(x, channels, dy, step);
        };
        let (x, channels, mut dx) = (contiguous(x), constants(channels, step), owned(contiguous(dy)));
        let (dgamma, dbeta) = cpu_norm::backward(extent(&x), values(&x), &channels, step.silu, &mut dx);
        let c = channels.len();
        NormGrads { x: tensor(dx, x.shape()), gamma: tensor(dgamma, [c]), beta: tensor(dbeta, [c]) }
    }
}

#[cfg(test)]
mod tests;
