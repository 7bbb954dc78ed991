//! Gradients of the plane operations. All but pooling keep no tensor, and what they only move or copy is moved again in the backward
//! pass rather than kept twice (see the notes on recomputation in [`crate::autodiff`]).

use burn::backend::tensor::IntTensor;
use burn::backend::{AutodiffBackend, Scalar, TensorMetadata};

use super::{HALF_GRADIENTS, Parts, PlaneOps};
use crate::operands::Maybe;
use crate::steps::{Autodiff, CheckpointStrategy, Float, recomputed, recorded};

/// Joins exactly N tensors.
fn concat<B: PlaneOps, C: CheckpointStrategy, const N: usize>(parts: Vec<Float<Autodiff<B, C>>>) -> Float<Autodiff<B, C>> {
    let Ok(parts) = <[_; N]>::try_from(parts) else { unreachable!("as many parts as were counted") };
    let channels = parts.each_ref().map(|part: &Float<Autodiff<B, C>>| part.shape()[1]);
    let join = |parts: [Float<B>; N]| B::concat_channels(Parts(parts.into()));
    recomputed::<B, C, N>(parts, &[], join, join, move |dy, mut parents| {
        let mut start = 0;
        for (parent, channels) in channels.into_iter().enumerate() {
            parents.give::<B>(parent, || B::slice_channels(dy.clone(), start, channels));
            start += channels;
        }
    })
}

impl<B: PlaneOps, C: CheckpointStrategy> PlaneOps for Autodiff<B, C> {
    fn of_bytes(words: IntTensor<Self>, bytes: [usize; 4], channels: usize) -> Float<Self> {
        Self::from_inner(B::of_bytes(words, bytes, channels))
    }

    fn concat_channels(mut parts: Parts<Self>) -> Float<Self> {
        // The number of parents is part of a step's type.
        match parts.0.len() {
            1 => concat::<B, C, 1>(parts.0),
            2 => concat::<B, C, 2>(parts.0),
            3 => concat::<B, C, 3>(parts.0),
            4 => concat::<B, C, 4>(parts.0),
            5 => concat::<B, C, 5>(parts.0),
            _ => {
                let rest = parts.0.split_off(4);
                parts.0.push(Self::concat_channels(Parts(rest)));
                concat::<B, C, 5>(parts.0)
            }
        }
    }

    fn add(a: Float<Self>, b: Float<Self>) -> Float<Self> {
        let add = |[a, b]: [Float<B>; 2]| B::add(a, b);
        recomputed::<B, C, 2>([a, b], &[], add, add, |dy, parents| parents.give_all::<B>([dy.clone(), dy]))
    }

    fn slice_channels(x: Float<Self>, start: usize, len: usize) -> Float<Self> {
        let total = x.shape()[1];
        let slice = move |[x]: [Float<B>; 1]| B::slice_channels(x, start, len);
        recomputed::<B, C, 1>([x], &[], slice, slice, move |dy, mut parents| {
            parents.give_onto::<B>(0, |held| match held {
                Some(held) => B::add_to_channels(held, dy, start),
                None => B::pad_channels(dy, start, total),
            });
        })
    }

    fn max_pool_same(x: Float<Self>, kernel: usize) -> Float<Self> {
        let (id, y) = (x.id(), B::max_pool_same(x.clone().into_primitive(), kernel));
        recorded::<B, C, 1>([x.node()], &[&x], y, move |dy, mut parents| {
            let x = parents.kept::<B>(id);
            parents.give::<B>(0, || B::max_pool_same_grad(x, dy, kernel));
        })
    }

    fn widen(x: Float<Self>) -> Float<Self> {
        let dtype = x.dtype();
        recorded::<B, C, 1>([x.node()], &[], B::widen(x.into_primitive()), move |dy, mut parents| {
            parents.give::<B>(0, || B::float_cast(B::float_mul_scalar(dy, Scalar::Float(HALF_GRADIENTS.into())), dtype.into()));
        })
    }

    fn total(x: Float<Self>) -> Float<Self> {
        let shape = x.shape();
        recorded::<B, C, 1>([x.node()], &[], B::total(x.into_primitive()), move |dy, mut parents| {
            parents.give::<B>(0, || B::float_expand(dy, shape));
        })
    }

    fn bias_grad(dy: Float<Self>, _: Maybe<Self>) -> Float<Self> {
        Self::from_inner(B::bias_grad(dy.into_primitive(), Maybe::None))
    }

    fn double(x: Float<Self>) -> Float<Self> {
        let double = |[x]: [Float<B>; 1]| B::double(x);
        recomputed::<B, C, 1>([x], &[], double, double, |dy, mut parents| parents.give::<B>(0, || B::double_grad(dy)))
    }
}
