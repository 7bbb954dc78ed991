//! Dropout without a mask in memory: which value is dropped follows from a key and its place, so each device makes that for itself, the same on all
//! of them, and the backward pass makes it again.

mod autodiff;
mod cube;
mod flex;
mod portable;
#[cfg(test)]
mod tests;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

use crate::draws::bits_at;

/// Dropout by key and place.
#[backend_extension(Flex, Cube, Autodiff)]
pub trait DropoutOps: Backend {
    /// 0 where draw number i (the value's place, row by row) of the stream of `key` is below p, x / (1 - p) elsewhere (Srivastava et al. 2014). Any
    /// shape, p in [0, 1). Its gradient is the same of dy.
    fn dropout(x: FloatTensor<Self>, key: u64, p: f64) -> FloatTensor<Self> {
        portable::dropout::<Self>(x, Mask::new(key, p))
    }
}

/// [`DropoutOps::dropout`], differentiable.
///
/// # Panics
/// If p is not in [0, 1).
pub fn dropout<const D: usize>(x: Tensor<D>, key: u64, p: f64) -> Tensor<D> {
    assert!((0.0..1.0).contains(&p), "a dropout of {p}");
    Tensor::from_dispatch(Dispatch::dropout(x.into_dispatch(), key, p))
}

/// Which values are dropped, and what the others are multiplied by.
#[derive(Clone, Copy, Debug)]
struct Mask {
    key: u64,
    /// A value is dropped whose draw's upper 53 bits are less than this: that is to say, whose draw is below p.
    limit: u64,
    scale: f32,
}

impl Mask {
    fn new(key: u64, p: f64) -> Self {
        Self { key, limit: (p * (1u64 << 53) as f64).ceil() as u64, scale: (1.0 / (1.0 - p)) as f32 }
    }

    /// The factor of value number `i`.
    fn at(self, i: usize) -> f32 {
        if bits_at(self.key, i as u64) >> 11 < self.limit { 0.0 } else { self.scale }
    }
}
