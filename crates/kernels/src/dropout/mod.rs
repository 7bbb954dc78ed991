//! Dropout without a mask in memory: which value is dropped follows from a key and its place, so each device makes that for itself, the same on all
//! of them, and the backward pass makes it again. Noise is drawn in the same way.

mod cube;
#[cfg(test)]
mod tests;

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Tensor, TensorData};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use crate::buffers::{all_f32, contiguous, values, written};
use crate::cpu::machine::TASK;
use crate::draws::{bits_at, unit_at};
use crate::planes::PlaneOps;
use crate::steps::{Autodiff, CheckpointStrategy, recorded};

/// Dropout by key and place.
#[backend_extension(Flex, Cube, Autodiff)]
pub trait DropoutOps: Backend {
    /// 0 where draw number i (the value's place, row by row) of the stream of `key` is below p, x / (1 - p) elsewhere (Srivastava et al. 2014). Any
    /// shape, p in [0, 1). Its gradient is the same of dy.
    fn dropout(x: Float<Self>, key: u64, p: f64) -> Float<Self>;

    /// x + scale (2 u - 1), where u is draw number i of the stream of `key`. Any shape; no gradient is changed by it.
    fn add_noise(x: Float<Self>, key: u64, scale: f64) -> Float<Self> {
        composed_noise::<Self>(x, key, scale)
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

/// Dropout in Burn's own words, with numbers from the host.
fn composed<B: Backend>(x: Float<B>, mask: Mask) -> Float<B> {
    let factors = from_host::<B>(&x, |i| mask.at(i));
    B::float_mul(x, factors)
}

/// The same of noise.
fn composed_noise<B: Backend>(x: Float<B>, key: u64, scale: f64) -> Float<B> {
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

impl DropoutOps for Flex {
    fn dropout(x: FlexTensor, key: u64, p: f64) -> FlexTensor {
        let mask = Mask::new(key, p);
        let true = all_f32([&x]) else { return composed::<Self>(x, mask) };
        let x = contiguous(x);
        let task = |(task, (y, x)): (usize, (&mut [f32], &[f32]))| {
            y.iter_mut().zip(x).enumerate().for_each(|(i, (y, x))| *y = x * mask.at(task * TASK + i));
        };
        written(x.shape(), |y| y.par_chunks_mut(TASK).zip(values(&x).par_chunks(TASK)).enumerate().for_each(task))
    }
}

impl<B: DropoutOps + PlaneOps, C: CheckpointStrategy> DropoutOps for Autodiff<B, C> {
    fn dropout(x: Float<Self>, key: u64, p: f64) -> Float<Self> {
        let (nodes, y) = ([x.node()], B::dropout(x.into_primitive(), key, p));
        recorded::<B, C, 1>(nodes, &[], y, move |dy, mut parents| parents.give::<B>(0, || B::dropout(dy, key, p)))
    }
}
