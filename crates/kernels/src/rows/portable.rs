//! The row operations in Burn's own words.

use burn::backend::tensor::{FloatTensor as Float, IntTensor};
use burn::backend::{Backend, Scalar, TensorMetadata};
use burn::tensor::{IndexingUpdateOp, Shape};

pub(crate) fn cross_entropy<B: Backend>(logits: Float<B>, targets: IntTensor<B>) -> (Float<B>, Float<B>) {
    let n = logits.shape()[0];
    let targets = B::int_reshape(targets, Shape::new([n, 1]));
    let centred = B::float_sub(logits.clone(), B::float_max_dim(logits, 1));
    let exp = B::float_exp(centred.clone());
    let sum = B::float_sum_dim(exp.clone(), 1);
    let loss = B::float_sub(B::float_log(sum.clone()), B::float_gather(1, centred, targets.clone()));
    let minus_one = B::float_full(Shape::new([n, 1]), Scalar::Float(-1.0), &exp.device(), exp.dtype().into());
    let grad = B::float_scatter(1, B::float_div(exp, sum), targets, minus_one, IndexingUpdateOp::Add);
    (B::float_reshape(loss, Shape::new([n])), grad)
}
