//! The products in Burn's own words: their definition, and the way of devices and types without a kernel.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Scalar, TensorMetadata};
use burn::tensor::Shape;

fn transposed<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    B::float_swap_dims(x, 0, 1)
}

/// In the type of `like`.
fn cast<B: Backend>(x: FloatTensor<B>, like: &FloatTensor<B>) -> FloatTensor<B> {
    if x.dtype() == like.dtype() { x } else { B::float_cast(x, like.dtype().into()) }
}

fn times<B: Backend>(x: FloatTensor<B>, by: f64) -> FloatTensor<B> {
    B::float_mul_scalar(x, Scalar::Float(by))
}

pub(super) fn linear<B: Backend>(x: FloatTensor<B>, weight: FloatTensor<B>, bias: Option<FloatTensor<B>>) -> FloatTensor<B> {
    let weight = cast::<B>(weight, &x);
    let y = B::float_matmul(x, transposed::<B>(weight));
    match bias {
        Some(bias) => {
            let out = bias.shape().num_elements();
            B::float_add(y, B::float_reshape(bias, Shape::new([1, out])))
        }
        None => y,
    }
}

pub(super) fn linear_data_grad<B: Backend>(dy: FloatTensor<B>, weight: FloatTensor<B>) -> FloatTensor<B> {
    let weight = cast::<B>(weight, &dy);
    B::float_matmul(dy, weight)
}

pub(super) fn linear_weight_grad<B: Backend>(x: FloatTensor<B>, dy: FloatTensor<B>) -> FloatTensor<B> {
    B::float_matmul(transposed::<B>(dy), x)
}

pub(super) fn lora_linear<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    a: FloatTensor<B>,
    b: FloatTensor<B>,
    scaling: f64,
) -> FloatTensor<B> {
    let inner = B::float_matmul(x.clone(), transposed::<B>(a));
    let branch = times::<B>(B::float_matmul(inner, transposed::<B>(b)), scaling);
    B::float_add(linear::<B>(x, weight, bias), branch)
}

pub(super) fn lora_data_grad<B: Backend>(
    dy: FloatTensor<B>,
    weight: FloatTensor<B>,
    a: FloatTensor<B>,
    b: FloatTensor<B>,
    scaling: f64,
) -> FloatTensor<B> {
    let inner = times::<B>(B::float_matmul(dy.clone(), b), scaling);
    B::float_add(linear_data_grad::<B>(dy, weight), B::float_matmul(inner, a))
}

pub(super) fn lora_grads<B: Backend>(
    x: FloatTensor<B>,
    dy: FloatTensor<B>,
    a: FloatTensor<B>,
    b: FloatTensor<B>,
    scaling: f64,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let above = times::<B>(B::float_matmul(dy.clone(), b), scaling);
    let inner = times::<B>(B::float_matmul(x.clone(), transposed::<B>(a)), scaling);
    (B::float_matmul(transposed::<B>(above), x), B::float_matmul(transposed::<B>(dy), inner))
}
