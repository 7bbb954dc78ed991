//! The operations in Burn's own words.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{Shape, Slice};

/// [`LogitOps::softplus_sum`](super::LogitOps::softplus_sum)
pub(super) fn softplus_sum<B: Backend>(x: FloatTensor<B>, start: usize, len: usize) -> (FloatTensor<B>, FloatTensor<B>) {
    let x = B::float_slice(x, &[Slice::full(), Slice::from(start..start + len)]);
    let sum = B::float_sum(B::log_sigmoid(B::float_neg(x.clone())));
    (B::float_neg(sum), B::sigmoid(x))
}

/// [`LogitOps::softplus_sum_grad`](super::LogitOps::softplus_sum_grad)
pub(super) fn softplus_sum_grad<B: Backend>(slope: FloatTensor<B>, dy: FloatTensor<B>, start: usize, total: usize) -> FloatTensor<B> {
    let [b, len, a] = slope.shape().dims();
    let zeros = B::float_zeros(Shape::new([b, total, a]), &slope.device(), slope.dtype().into());
    let grad = B::float_mul(slope, B::float_reshape(dy, Shape::new([1; 3])));
    B::float_slice_assign(zeros, &[Slice::full(), Slice::from(start..start + len)], grad)
}
