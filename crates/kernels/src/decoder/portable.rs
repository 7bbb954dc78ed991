//! The decoder's operations in Burn's own words: their definition, and the way of devices and types without a kernel.

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Backend, Scalar, TensorMetadata};
use burn::tensor::{Shape, Slice};

use crate::portable::times;

fn plus<B: Backend>(x: Float<B>, by: f64) -> Float<B> {
    B::float_add_scalar(x, Scalar::Float(by))
}

/// w `[K]` as `[1, .., 1, K]`, with as many dimensions as `x`.
fn beside<B: Backend>(weight: Float<B>, x: &Float<B>) -> Float<B> {
    let mut shape = vec![1; x.shape().num_dims() - 1];
    shape.push(weight.shape().num_elements());
    B::float_reshape(weight, Shape::from(shape))
}

/// ρ = 1 / sqrt(mean(x²) + ε), `[.., 1]`.
fn rho<B: Backend>(x: &Float<B>, epsilon: f64) -> Float<B> {
    let last = x.shape().num_dims() - 1;
    let mean = B::float_mean_dim(B::float_mul(x.clone(), x.clone()), last);
    B::float_recip(B::float_sqrt(plus::<B>(mean, epsilon)))
}

pub(super) fn rms_norm<B: Backend>(x: Float<B>, weight: Float<B>, epsilon: f64) -> Float<B> {
    let (rho, weight) = (rho::<B>(&x, epsilon), beside::<B>(weight, &x));
    B::float_mul(B::float_mul(x, rho), weight)
}

pub(super) fn rms_norm_data_grad<B: Backend>(x: Float<B>, weight: Float<B>, dy: Float<B>, epsilon: f64) -> Float<B> {
    let (rho, last) = (rho::<B>(&x, epsilon), x.shape().num_dims() - 1);
    let g = B::float_mul(dy, beside::<B>(weight, &x));
    let mean = B::float_mean_dim(B::float_mul(g.clone(), x.clone()), last);
    let along = B::float_mul(x, B::float_mul(mean, B::float_mul(rho.clone(), rho.clone())));
    B::float_mul(B::float_sub(g, along), rho)
}

pub(super) fn rms_norm_weight_grad<B: Backend>(x: Float<B>, dy: Float<B>, epsilon: f64) -> Float<B> {
    let shape = x.shape();
    let k = shape[shape.num_dims() - 1];
    let rows = shape.num_elements() / k.max(1);
    let normed = B::float_mul(x.clone(), rho::<B>(&x, epsilon));
    let sum = B::float_sum_dim(B::float_reshape(B::float_mul(dy, normed), Shape::new([rows, k])), 0);
    B::float_reshape(sum, Shape::new([k]))
}

pub(super) fn swiglu<B: Backend>(gate: Float<B>, up: Float<B>) -> Float<B> {
    B::float_mul(B::float_mul(gate.clone(), B::sigmoid(gate)), up)
}

pub(super) fn swiglu_grad<B: Backend>(gate: Float<B>, up: Float<B>, dy: Float<B>) -> (Float<B>, Float<B>) {
    let s = B::sigmoid(gate.clone());
    let silu = B::float_mul(gate, s.clone());
    // s (1 + gate (1 - s)) = s + silu (1 - s)
    let slope = B::float_add(s.clone(), B::float_mul(silu.clone(), plus::<B>(times::<B>(s, -1.0), 1.0)));
    (B::float_mul(B::float_mul(dy.clone(), up), slope), B::float_mul(dy, silu))
}

pub(super) fn masked_softmax<B: Backend>(scores: Float<B>, mask: Float<B>, scale: f64) -> Float<B> {
    let scores = B::float_add(times::<B>(scores, scale), mask);
    let exp = B::float_exp(B::float_sub(scores.clone(), B::float_max_dim(scores, 3)));
    B::float_div(exp.clone(), B::float_sum_dim(exp, 3))
}

pub(super) fn masked_softmax_grad<B: Backend>(p: Float<B>, dp: Float<B>, scale: f64) -> Float<B> {
    let along = B::float_sum_dim(B::float_mul(p.clone(), dp.clone()), 3);
    times::<B>(B::float_mul(p, B::float_sub(dp, along)), scale)
}

pub(super) fn rotate<B: Backend>(x: Float<B>, cos: Float<B>, sin: Float<B>) -> Float<B> {
    turn::<B>(B::float_swap_dims(x, 1, 2), cos, sin)
}

pub(super) fn rotate_back<B: Backend>(y: Float<B>, cos: Float<B>, sin: Float<B>) -> Float<B> {
    B::float_swap_dims(turn::<B>(y, cos, B::float_neg(sin)), 1, 2)
}

/// `[x1 cos - x2 sin, x2 cos + x1 sin]` of `[B, n, S, d]`.
fn turn<B: Backend>(x: Float<B>, cos: Float<B>, sin: Float<B>) -> Float<B> {
    let half = x.shape().dims::<4>()[3] / 2;
    let part = |from: usize| B::float_slice(x.clone(), &[Slice::full(), Slice::full(), Slice::full(), Slice::from(from..from + half)]);
    let (x1, x2) = (part(0), part(half));
    let first = B::float_sub(B::float_mul(x1.clone(), cos.clone()), B::float_mul(x2.clone(), sin.clone()));
    let second = B::float_add(B::float_mul(x2, cos), B::float_mul(x1, sin));
    B::float_cat(vec![first, second], 3)
}
