//! The operations in Burn's own words: the definition on any backend, and the fallback of a kernel that does not cover a case.

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Backend, Scalar, TensorMetadata};
use burn::tensor::Shape;

use crate::operands::{ConvConfig, Maybe, NormChannels, NormGrads, NormOutput, NormStep};

pub(crate) fn conv_data_grad<B: Backend>(dy: Float<B>, weight: Float<B>, input: [usize; 2], config: ConvConfig) -> Float<B> {
    let ([n, ..], [_, ci, ..]) = (dy.shape().dims::<4>(), weight.shape().dims::<4>());
    let x = shape_only::<B>(&dy, [n, ci * config.groups, input[0], input[1]]);
    B::conv2d_x_backward(x, weight, dy, config.to_burn())
}

pub(crate) fn conv_weight_grad<B: Backend>(x: Float<B>, dy: Float<B>, kernel: [usize; 2], config: ConvConfig) -> Float<B> {
    let ([_, ci, ..], [_, co, ..]) = (x.shape().dims::<4>(), dy.shape().dims::<4>());
    let weight = shape_only::<B>(&dy, [co, ci / config.groups, kernel[0], kernel[1]]);
    B::conv2d_weight_backward(x, weight, dy, config.to_burn())
}

/// A tensor without memory of its own: Burn's gradients ask for a whole tensor and read its shape.
pub(crate) fn shape_only<B: Backend>(like: &Float<B>, shape: [usize; 4]) -> Float<B> {
    B::float_expand(B::float_zeros(Shape::new([1; 4]), &like.device(), like.dtype().into()), Shape::new(shape))
}

pub(crate) fn norm_act<B: Backend>(x: Float<B>, channels: NormChannels<B>, step: NormStep, onto: Maybe<B>) -> NormOutput<B> {
    let NormChannels { mean, variance, gamma, beta } = channels;
    let unbias = NormStep::unbias(x.shape().dims());
    let y = B::batch_norm_train(x, gamma, beta, step.epsilon);
    let output = finished::<B>(y.output, step, onto);
    let [running_mean, running_variance] = move_statistics::<B>([mean, variance], [&y.mean, &y.variance], step.momentum, unbias);
    NormOutput { output, mean: y.mean, variance: y.variance, running_mean, running_variance }
}

pub(crate) fn move_statistics<B: Backend>(
    [mean, variance]: [Float<B>; 2],
    [new_mean, new_variance]: [&Float<B>; 2],
    momentum: f64,
    unbias: f64,
) -> [Float<B>; 2] {
    let moved = |old, new| B::float_add(times::<B>(old, 1.0 - momentum), times::<B>(new, momentum));
    [moved(mean, new_mean.clone()), moved(variance, times::<B>(new_variance.clone(), unbias))]
}

pub(crate) fn norm_act_again<B: Backend>(x: Float<B>, channels: NormChannels<B>, step: NormStep, onto: Maybe<B>) -> Float<B> {
    finished::<B>(normalised::<B>(x, channels, step), step, onto)
}

fn finished<B: Backend>(z: Float<B>, step: NormStep, onto: Maybe<B>) -> Float<B> {
    let y = if step.silu { silu::<B>(z) } else { z };
    match onto {
        Maybe::Some(onto) => B::float_add(onto, y),
        Maybe::None => y,
    }
}

fn normalised<B: Backend>(x: Float<B>, NormChannels { mean, variance, gamma, beta }: NormChannels<B>, step: NormStep) -> Float<B> {
    B::batch_norm(x, gamma, beta, mean, variance, step.epsilon)
}

pub(crate) fn norm_act_backward<B: Backend>(x: Float<B>, channels: NormChannels<B>, dy: Float<B>, step: NormStep) -> NormGrads<B> {
    let dz = if step.silu {
        let z = normalised::<B>(x.clone(), channels.clone(), step);
        let s = B::sigmoid(z.clone());
        let rest = B::float_add_scalar(B::float_neg(s.clone()), Scalar::Float(1.0));
        let slope = B::float_mul(s, B::float_add_scalar(B::float_mul(z, rest), Scalar::Float(1.0)));
        B::float_mul(dy, slope)
    } else {
        dy
    };
    let NormChannels { mean, variance, gamma, .. } = channels;
    let grads = B::batch_norm_train_backward(x, gamma, mean, variance, step.epsilon, dz);
    NormGrads { x: grads.x_grad, gamma: grads.gamma_grad, beta: grads.beta_grad }
}

pub(crate) fn times<B: Backend>(x: Float<B>, by: f64) -> Float<B> {
    B::float_mul_scalar(x, Scalar::Float(by))
}

pub(crate) fn silu<B: Backend>(z: Float<B>) -> Float<B> {
    B::float_mul(z.clone(), B::sigmoid(z))
}
