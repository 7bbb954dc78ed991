//! The plane operations in Burn's own words: the definition on any backend, and what is done with types other than f32.

use burn::backend::ops::{InterpolateMode, InterpolateOptions};
use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Backend, Scalar, TensorMetadata, get_or_init_device_settings};
use burn::tensor::{DType, FloatDType, Shape, Slice};

use crate::portable::shape_only;

pub(super) fn pad_channels<B: Backend>(x: Float<B>, before: usize, total: usize) -> Float<B> {
    let [n, c, h, w] = x.shape().dims();
    let zeros = B::float_zeros(Shape::new([n, total, h, w]), &x.device(), x.dtype().into());
    B::float_slice_assign(zeros, &[Slice::full(), Slice::from(before..before + c)], x)
}

pub(super) fn add_to_channels<B: Backend>(whole: Float<B>, x: Float<B>, before: usize) -> Float<B> {
    let total = whole.shape()[1];
    B::float_add(pad_channels::<B>(x, before, total), whole)
}

/// `dy` in half precision is `times` as large as it should be.
pub(super) fn bias_grad<B: Backend>(dy: Float<B>, times: f32) -> Float<B> {
    let channels = dy.shape()[1];
    let sums = |dy| B::float_reshape(B::float_sum_dims(dy, &[0, 2, 3]), Shape::new([channels]));
    if dy.dtype() == DType::F32 {
        return sums(dy);
    }
    B::float_div_scalar(sums(B::float_cast(dy, FloatDType::F32)), Scalar::Float(times.into()))
}

pub(super) fn max_pool_same<B: Backend>(x: Float<B>, kernel: usize) -> Float<B> {
    B::max_pool2d(x, [kernel; 2], [1; 2], [kernel / 2; 2], [1; 2], false)
}

pub(super) fn max_pool_same_grad<B: Backend>(x: Float<B>, dy: Float<B>, kernel: usize) -> Float<B> {
    let (size, one, reach) = ([kernel; 2], [1; 2], [kernel / 2; 2]);
    let indices = get_or_init_device_settings::<B>(&x.device()).int_dtype;
    let y = B::max_pool2d_with_indices(x.clone(), size, one, reach, one, false, indices);
    B::max_pool2d_with_indices_backward(x, size, one, reach, one, false, dy, y.indices).x_grad
}

pub(super) fn double<B: Backend>(x: Float<B>) -> Float<B> {
    let [_, _, h, w] = x.shape().dims();
    B::interpolate(x, [2 * h, 2 * w], InterpolateOptions::new(InterpolateMode::Nearest))
}

pub(super) fn double_grad<B: Backend>(dy: Float<B>) -> Float<B> {
    let [n, c, h, w] = dy.shape().dims();
    let x = shape_only::<B>(&dy, [n, c, h / 2, w / 2]);
    B::interpolate_backward(x, dy, [h, w], InterpolateOptions::new(InterpolateMode::Nearest))
}
