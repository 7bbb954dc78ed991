//! Causal grouped-query attention in tiles: the scores of all pairs are never held (Dao et al. 2022, Rabe and Staats 2021).
//!
//! A block of queries meets the keys it sees a block at a time, with a running maximum and sum of each row. What is kept for the backward
//! pass beside the inputs and the result is the logarithm of each row's sum, from which the probabilities are made once more.

mod backward;
mod blocks;
mod cube;
mod cube_kernels;
mod flex;
mod forward;
mod portable;
mod sizes;
#[cfg(test)]
mod tests;

use burn::backend::tensor::{FloatTensor as Float, IntTensor};
use burn::backend::{AutodiffBackend, Dispatch, backend_extension};
use burn::tensor::{Int, Tensor};

use crate::decoder::DecoderOps;
use crate::matrices::MatrixOps;
use crate::steps::{Autodiff, CheckpointStrategy, recorded};

/// Attention of queries `[B, H, S, d]` to keys and values `[B, G, T, d]`; each of the G key heads serves H / G query heads, in order. Query s
/// is at position `T - S + s`, and sees the keys from `first[b, s]` to its own position; `first` is `[B, S]`, each from 0 to the query's position.
#[backend_extension(Flex, Cube, Autodiff)]
pub trait AttentionOps: DecoderOps + MatrixOps {
    /// `softmax(scale q kᵀ) v` over the keys a query sees, `[B, H, S, d]`, and the logarithm of the sum of each row, `[B, H, S]`.
    fn attend(q: Float<Self>, k: Float<Self>, v: Float<Self>, first: IntTensor<Self>, scale: f64) -> (Float<Self>, Float<Self>);

    /// The gradients of q, k and v from what [`attend`](Self::attend) gave, y and `sums`. With p the probabilities and dp = dy vᵀ:
    /// `ds = scale p (dp - Σ y dy)`, `dq = ds k`, `dk = dsᵀ q`, `dv = pᵀ dy`.
    #[allow(clippy::too_many_arguments)]
    fn attend_grad(
        q: Float<Self>,
        k: Float<Self>,
        v: Float<Self>,
        first: IntTensor<Self>,
        y: Float<Self>,
        sums: Float<Self>,
        dy: Float<Self>,
        scale: f64,
    ) -> (Float<Self>, Float<Self>, Float<Self>) {
        let _ = (y, sums);
        portable::attend_grad::<Self>(portable::SCORES, q, k, v, first, dy, scale)
    }
}

/// [`AttentionOps::attend`]'s result, differentiable in q, k and v.
///
/// # Panics
/// If the shapes do not fit each other, or the scale is no number above 0: of a negative one the greatest product of a row is its least score.
pub fn attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, first: Tensor<2, Int>, scale: f64) -> Tensor<4> {
    sizes::expect_fit(q.dims(), k.dims(), v.dims(), first.dims());
    assert!(scale > 0.0 && scale.is_finite(), "attention with a scale of {scale}");
    if q.dims().contains(&0) {
        return q;
    }
    let [q, k, v] = [q, k, v].map(Tensor::into_dispatch);
    Tensor::from_dispatch(Dispatch::attend(q, k, v, first.into_dispatch(), scale).0)
}

impl<B: AttentionOps, C: CheckpointStrategy> AttentionOps for Autodiff<B, C> {
    fn attend(q: Float<Self>, k: Float<Self>, v: Float<Self>, first: IntTensor<Self>, scale: f64) -> (Float<Self>, Float<Self>) {
        let nodes = [q.node(), k.node(), v.node()];
        let [q, k, v] = [q, k, v].map(|t| t.into_primitive());
        let (y, sums) = B::attend(q.clone(), k.clone(), v.clone(), first.clone(), scale);
        let made = (y.clone(), sums.clone());
        let y = recorded::<B, C, 3>(nodes, &[], y, move |dy, parents| {
            let (dq, dk, dv) = B::attend_grad(q, k, v, first, made.0, made.1, dy, scale);
            parents.give_all::<B>([dq, dk, dv]);
        });
        (y, Self::from_inner(sums))
    }
}
