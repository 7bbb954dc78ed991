//! Dropout and noise in Burn's own words, with numbers from the host.

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::TensorData;

use super::mask::Mask;
use crate::draws::unit_at;

pub(super) fn dropout<B: Backend>(x: Float<B>, mask: Mask) -> Float<B> {
    let factors = from_host::<B>(&x, |i| mask.at(i));
    B::float_mul(x, factors)
}

pub(super) fn add_noise<B: Backend>(x: Float<B>, key: u64, scale: f64) -> Float<B> {
    let noise = from_host::<B>(&x, |i| ((unit_at(key, i as u64) * 2.0 - 1.0) * scale) as f32);
    B::float_add(x, noise)
}

/// A tensor like x of the values at each place.
fn from_host<B: Backend>(x: &Float<B>, value: impl Fn(usize) -> f32) -> Float<B> {
    let shape = x.shape();
    let values: Vec<f32> = (0..shape.num_elements()).map(value).collect();
    let values = B::float_from_data(TensorData::new(values, shape), &x.device());
    B::float_cast(values, x.dtype().into())
}
