//! The operations in Burn's own words.

use std::ops::Range;

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{Shape, Slice, TensorData};

pub(super) fn softplus_sum<B: Backend>(x: Float<B>, start: usize, len: usize) -> (Float<B>, Float<B>) {
    let x = B::float_slice(x, &[Slice::full(), Slice::from(start..start + len)]);
    let sum = B::float_sum(B::log_sigmoid(B::float_neg(x.clone())));
    (B::float_neg(sum), B::sigmoid(x))
}

pub(super) fn softplus_sum_grad<B: Backend>(slope: Float<B>, dy: Float<B>, start: usize, total: usize) -> Float<B> {
    let [b, len, a] = slope.shape().dims();
    let zeros = B::float_zeros(Shape::new([b, total, a]), &slope.device(), slope.dtype().into());
    let grad = B::float_mul(slope, B::float_reshape(dy, Shape::new([1; 3])));
    B::float_slice_assign(zeros, &[Slice::full(), Slice::from(start..start + len)], grad)
}

/// [`LogitOps::predictions`](super::LogitOps::predictions), `sides` being what x's sides expect.
pub(super) fn predictions<B: Backend>(x: Float<B>, sides: Float<B>, centres: Float<B>, strides: Float<B>, chosen: Vec<i32>) -> Float<B> {
    let [b, c, a] = x.shape().dims();
    let of = |range: Range<usize>| B::float_slice(sides.clone(), &[Slice::full(), Slice::from(range)]);
    let low = B::float_sub(centres.clone(), of(0..2));
    let high = B::float_add(centres, of(2..4));
    let corners = B::float_mul(B::float_cat(vec![low, high], 1), strides);
    let corners = B::float_reshape(corners, Shape::new([4 * b, a]));
    if chosen.is_empty() {
        return corners;
    }
    let n = chosen.len();
    let chosen = B::int_from_data(TensorData::new(chosen, [n]), &x.device());
    let scores = B::sigmoid(B::float_select(B::float_reshape(x, Shape::new([b * c, a])), 0, chosen));
    B::float_cat(vec![corners, scores], 0)
}

pub(super) fn expectation<B: Backend>(x: Float<B>, sides: usize, bins: usize) -> Float<B> {
    let [b, _, a] = x.shape().dims();
    let x = B::float_slice(x, &[Slice::full(), Slice::from(0..sides * bins)]);
    let x = B::float_reshape(x, Shape::new([b, sides, bins, a]));
    let distances = TensorData::new((0..bins).map(|k| k as f32).collect(), [1, 1, bins, 1]).convert_dtype(x.dtype());
    let distances = B::float_from_data(distances, &x.device());
    let e = B::float_exp(B::float_sub(x.clone(), B::float_max_dim(x, 2)));
    let sum = B::float_sum_dim(B::float_mul(e.clone(), distances), 2);
    B::float_reshape(B::float_div(sum, B::float_sum_dim(e, 2)), Shape::new([b, sides, a]))
}
