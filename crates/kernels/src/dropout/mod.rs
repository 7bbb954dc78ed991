//! Dropout without a mask in memory: which value is dropped follows from a key and its place, so each device makes that for itself, the same on all
//! of them, and the backward pass makes it again. Noise is drawn in the same way.

mod autodiff;
mod cube;
mod flex;
mod mask;
mod portable;
#[cfg(test)]
mod tests;

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

/// Dropout by key and place.
#[backend_extension(Flex, Cube, Autodiff)]
pub trait DropoutOps: Backend {
    /// 0 where draw number i (the value's place, row by row) of the stream of `key` is below p, x / (1 - p) elsewhere (Srivastava et al. 2014). Any
    /// shape, p in [0, 1). Its gradient is the same of dy.
    fn dropout(x: Float<Self>, key: u64, p: f64) -> Float<Self>;

    /// x + scale (2 u - 1), where u is draw number i of the stream of `key`. Any shape; no gradient is changed by it.
    fn add_noise(x: Float<Self>, key: u64, scale: f64) -> Float<Self> {
        portable::add_noise::<Self>(x, key, scale)
    }
}

/// [`DropoutOps::add_noise`]
pub fn add_noise<const D: usize>(x: Tensor<D>, key: u64, scale: f64) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::add_noise(x.into_dispatch(), key, scale))
}

/// [`DropoutOps::dropout`], differentiable; p from 0 to below 1.
pub fn dropout<const D: usize>(x: Tensor<D>, key: u64, p: f64) -> Tensor<D> {
    assert!((0.0..1.0).contains(&p), "a dropout of {p}");
    Tensor::from_dispatch(Dispatch::dropout(x.into_dispatch(), key, p))
}
