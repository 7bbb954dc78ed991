//! Dropout in Burn's own words, with a mask from the host.

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::TensorData;

use super::mask::Mask;

/// [`DropoutOps::dropout`](super::DropoutOps::dropout)
pub(super) fn dropout<B: Backend>(x: Float<B>, mask: Mask) -> Float<B> {
    let shape = x.shape();
    let factors: Vec<f32> = (0..shape.num_elements()).map(|i| mask.at(i)).collect();
    let factors = B::float_from_data(TensorData::new(factors, shape), &x.device());
    let dtype = x.dtype().into();
    B::float_mul(x, B::float_cast(factors, dtype))
}
