//! The operations on Flex, Burn's CPU backend: f32 goes to our kernels, everything else to Burn's own operations.
//!
//! Inputs of which this was the last use become the memory of later outputs (see [`buffers`](crate::buffers)).

use burn::backend::ops::ModuleOps;
use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;

use crate::buffers::{all_f32, contiguous, owned, take, tensor, values, written};
use crate::cpu::{self, ConvShape, Epilogue, Precision};
use crate::cpu_norm::{self, Extent};
use crate::operands::{ConvConfig, Maybe, NormChannels, NormGrads, NormOutput, NormStep};
use crate::ops::KernelOps;
use crate::planes::{Parts, PlaneOps, cut, join};
use crate::portable;

fn extent(x: &FlexTensor) -> Extent {
    let [batch, channels, height, width] = x.shape().dims();
    Extent { batch, channels, plane: height * width }
}

fn constants(NormChannels { mean, variance, gamma, beta }: NormChannels<Flex>, step: NormStep) -> Vec<cpu_norm::Channel> {
    let [mean, variance, gamma, beta] = [mean, variance, gamma, beta].map(contiguous);
    cpu_norm::channels(values(&mean), values(&variance), values(&gamma), values(&beta), step.epsilon)
}

/// With what it is added to.
fn summed(y: FlexTensor, onto: Maybe<Flex>) -> FlexTensor {
    match onto {
        Maybe::Some(onto) => Flex::add(onto, y),
        Maybe::None => y,
    }
}

/// Shape and precision of the convolution of x and a weight of these shapes, if we compute it.
fn method<'a>(
    tensors: impl IntoIterator<Item = &'a FlexTensor>,
    x: [usize; 4],
    weight: [usize; 4],
    config: &ConvConfig,
) -> Option<(ConvShape, Precision)> {
    let precision = config.lowering.precision().filter(|_| all_f32(tensors) && config.groups == 1 && config.dilation == [1; 2])?;
    Some((ConvShape::new(x, weight, config.stride, config.padding), precision))
}

/// `[N, C, H, W]` of what the parts make together.
fn together(parts: &[FlexTensor]) -> [usize; 4] {
    let [n, _, h, w] = parts[0].shape().dims();
    [n, parts.iter().map(|part| part.shape()[1]).sum(), h, w]
}

/// What a kernel reads of the parts.
fn readable(parts: Vec<FlexTensor>, apart: bool) -> Vec<FlexTensor> {
    let parts = if apart { parts } else { vec![join::<Flex>(parts)] };
    parts.into_iter().map(contiguous).collect()
}

/// Convolution of parts side by side, bias and, if asked for, SiLU.
fn forward(x: Vec<FlexTensor>, weight: FlexTensor, bias: Maybe<Flex>, config: ConvConfig, silu: bool) -> FlexTensor {
    let bias = bias.into_option();
    let Some((shape, precision)) = method(x.iter().chain([&weight]), together(&x), weight.shape().dims(), &config) else {
        let y = Flex::conv2d(join::<Flex>(x), weight, bias, config.to_burn());
        return if silu { portable::silu::<Flex>(y) } else { y };
    };
    let x = readable(x, cpu::takes_parts(config.lowering, precision, &shape));
    let (weight, bias) = (contiguous(weight), bias.map(contiguous));
    let dims = [shape.batch, shape.out_channels, shape.out_height(), shape.out_width()];
    let (x, epilogue) = (x.iter().map(values).collect::<Vec<_>>(), Epilogue { bias: bias.as_ref().map(values), silu });
    written(dims, |out| cpu::forward(&shape, config.lowering, precision, &x, values(&weight), epilogue, out))
}

impl KernelOps for Flex {
    fn conv_forward(x: FlexTensor, weight: FlexTensor, bias: Maybe<Self>, config: ConvConfig) -> FlexTensor {
        forward(vec![x], weight, bias, config, false)
    }

    fn conv_joined(x: Parts<Self>, weight: FlexTensor, config: ConvConfig) -> (FlexTensor, Option<FlexTensor>) {
        (forward(x.0, weight, Maybe::None, config, false), None)
    }

    fn conv_silu(x: FlexTensor, weight: FlexTensor, bias: Maybe<Self>, config: ConvConfig) -> FlexTensor {
        forward(vec![x], weight, bias, config, true)
    }

    fn conv_data_grad(
        dy: FlexTensor,
        weight: FlexTensor,
        channels: Vec<usize>,
        input @ [h, w]: [usize; 2],
        config: ConvConfig,
    ) -> Parts<Self> {
        let n = dy.shape()[0];
        let all = vec![channels.iter().sum()];
        let Some((shape, precision)) = method([&dy, &weight], [n, all[0], h, w], weight.shape().dims(), &config) else {
            return Parts(cut::<Self>(portable::conv_data_grad::<Self>(dy, weight, input, config), &channels));
        };
        let apart = cpu::takes_parts(config.lowering, precision, &shape);
        let own = if apart { &channels } else { &all };
        let (dy, weight) = (contiguous(dy), contiguous(weight));
        let mut dx: Vec<Vec<f32>> = own.iter().map(|c| take(n * c * h * w)).collect();
        let mut parts: Vec<&mut [f32]> = dx.iter_mut().map(Vec::as_mut_slice).collect();
        cpu::data_grad(&shape, config.lowering, precision, values(&dy), values(&weight), &mut parts);
        let dx: Vec<_> = dx.into_iter().zip(own).map(|(dx, &c)| tensor(dx, [n, c, h, w])).collect();
        Parts(if apart { dx } else { cut::<Self>(join::<Self>(dx), &channels) })
    }

    fn conv_weight_grad(x: Parts<Self>, dy: FlexTensor, _: Maybe<Self>, kernel @ [kh, kw]: [usize; 2], config: ConvConfig) -> FlexTensor {
        let dims @ [_, ci, ..] = together(&x.0);
        let weight = [dy.shape()[1], ci, kh, kw];
        let Some((shape, precision)) = method(x.0.iter().chain([&dy]), dims, weight, &config) else {
            return portable::conv_weight_grad::<Self>(join::<Self>(x.0), dy, kernel, config);
        };
        let apart = cpu::takes_parts(config.lowering, cpu::weight_grad_precision(&shape, precision), &shape);
        let (x, dy) = (readable(x.0, apart), contiguous(dy));
        let x: Vec<_> = x.iter().map(values).collect();
        written(weight, |dw| cpu::weight_grad(&shape, config.lowering, precision, &x, values(&dy), dw))
    }

    fn norm_act(x: FlexTensor, _: Maybe<Self>, channels: NormChannels<Self>, step: NormStep, onto: Maybe<Self>) -> NormOutput<Self> {
        let true = all_f32([&x, &channels.gamma, &channels.beta]) else { return portable::norm_act::<Self>(x, channels, step, onto) };
        let running = [channels.mean, channels.variance];
        let [x, gamma, beta] = [x, channels.gamma, channels.beta].map(contiguous);
        let (extent, dims) = (extent(&x), x.shape().dims::<4>());
        let mut out = take(extent.batch * extent.channels * extent.plane);
        let (mean, variance) = cpu_norm::forward(extent, values(&x), [&gamma, &beta].map(values), step.epsilon, step.silu, &mut out);
        let [mean, variance] = [mean, variance].map(|moment| tensor(moment, [extent.channels]));
        let [running_mean, running_variance] =
            portable::move_statistics::<Self>(running, [&mean, &variance], step.momentum, NormStep::unbias(dims));
        NormOutput { output: summed(tensor(out, dims), onto), mean, variance, running_mean, running_variance }
    }

    fn norm_act_again(x: FlexTensor, channels: NormChannels<Self>, step: NormStep, onto: Maybe<Self>) -> FlexTensor {
        let true = all_f32([&x].into_iter().chain(channels.all())) else {
            return portable::norm_act_again::<Self>(x, channels, step, onto);
        };
        let (x, channels) = (contiguous(x), constants(channels, step));
        summed(written(x.shape(), |out| cpu_norm::forward_again(extent(&x), values(&x), &channels, step.silu, out)), onto)
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
