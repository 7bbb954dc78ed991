//! The updates in Burn's own words: their definition, and the way of types other than f32.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Scalar};

use super::rules::{Adam, Sgd};

fn times<B: Backend>(x: FloatTensor<B>, by: f64) -> FloatTensor<B> {
    B::float_mul_scalar(x, Scalar::Float(by))
}

pub(super) fn sgd_step<B: Backend>(
    weight: FloatTensor<B>,
    grad: FloatTensor<B>,
    buffer: FloatTensor<B>,
    step: Sgd,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let grad = B::float_add(grad, times::<B>(weight.clone(), step.decay));
    let buffer = B::float_add(times::<B>(buffer, step.momentum), grad.clone());
    let ahead = B::float_add(grad, times::<B>(buffer.clone(), step.momentum));
    (B::float_sub(weight, times::<B>(ahead, step.lr)), buffer)
}

pub(super) fn adam_step<B: Backend>(
    weight: FloatTensor<B>,
    grad: FloatTensor<B>,
    first: FloatTensor<B>,
    second: FloatTensor<B>,
    step: Adam,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let weight = times::<B>(weight, step.keep);
    let grad = B::float_add(grad, times::<B>(weight.clone(), step.decay));
    let first = blend::<B>(first, grad.clone(), step.beta1, 1.0 - step.beta1);
    let second = blend::<B>(second, B::float_mul(grad.clone(), grad), step.beta2, 1.0 - step.beta2);
    let scaled = B::float_div_scalar(B::float_sqrt(second.clone()), Scalar::Float(step.root));
    let moved = B::float_div(first.clone(), B::float_add_scalar(scaled, Scalar::Float(step.epsilon)));
    (B::float_sub(weight, times::<B>(moved, step.rate)), first, second)
}

pub(super) fn blend<B: Backend>(old: FloatTensor<B>, new: FloatTensor<B>, a: f64, b: f64) -> FloatTensor<B> {
    B::float_add(times::<B>(old, a), times::<B>(new, b))
}

pub(super) fn sum_of_squares<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    B::float_sum(B::float_mul(x.clone(), x))
}
