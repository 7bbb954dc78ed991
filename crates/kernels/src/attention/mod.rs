//! Causal grouped-query attention in tiles: the scores of all pairs are never held (Dao et al. 2022, Rabe and Staats 2021).
//!
//! A block of queries meets the keys it sees a block at a time, with a running maximum and sum of each row. What is kept for the backward
//! pass beside the inputs and the result is the logarithm of each row's sum, from which the probabilities are made once more.

mod backward;
mod blocks;
mod cube;
mod cube_kernels;
mod forward;
mod portable;
mod sizes;
#[cfg(test)]
mod tests;

use burn::backend::tensor::{FloatTensor as Float, IntTensor};
use burn::backend::{AutodiffBackend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Int, Tensor};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use crate::buffers::{all_f32, contiguous, take, tensor, values};
use crate::cpu::machine::{KEYS, worth_a_task};
use crate::cpu::simd;
use crate::decoder::DecoderOps;
use crate::matrices::MatrixOps;
use crate::rows::ids;
use crate::steps::{Autodiff, CheckpointStrategy, recorded};
use backward::{Above, key_grads, query_grads};
use blocks::{Inputs, by_queries, rows_of_task};
pub use cube::MOST_SUMMED;
use forward::forward;
use sizes::Sizes;

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
        portable::attend_grad::<Self>(portable::SCORES, [q, k, v, dy], first, scale)
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

/// The sizes and the first keys, each at most its query's own position, of what our kernels compute.
fn ours<const N: usize>(all: [&FlexTensor; N], first: &FlexTensor) -> Option<(Sizes, Vec<usize>)> {
    let sizes = Sizes::new(all[0], all[1]);
    let first = ids(&contiguous(first.clone())).filter(|_| all_f32(all) && all[0].shape().num_elements() > 0)?;
    Some((sizes, first.into_iter().enumerate().map(|(i, first)| first.min(sizes.position(i % sizes.s))).collect()))
}

impl AttentionOps for Flex {
    fn attend(q: FlexTensor, k: FlexTensor, v: FlexTensor, first: FlexTensor, scale: f64) -> (FlexTensor, FlexTensor) {
        let Some((sizes, seen)) = ours([&q, &k, &v], &first) else {
            return portable::attend::<Self>(portable::SCORES, [q, k, v], first, scale);
        };
        let ([q, k, v], level) = ([q, k, v].map(contiguous), simd::level());
        let Sizes { b, g, group, s, d, .. } = sizes;
        let inputs = Inputs { sizes, q: values(&q), k: values(&k), v: values(&v), first: &seen, scale: scale as f32 };
        let mut y = take(b * g * group * s * d);
        let tasks = by_queries(sizes, rayon::current_num_threads(), &mut y).into_par_iter().with_max_len(1);
        let done: Vec<_> = tasks.map(|rows| (rows.head, rows.queries.start, forward(level, inputs, rows))).collect();
        let mut sums = vec![0.0; b * g * group * s];
        for (head, start, rows) in done {
            for (j, rows) in rows.chunks_exact(rows.len() / group).enumerate() {
                sums[(head * group + j) * s + start..][..rows.len()].copy_from_slice(rows);
            }
        }
        // Token by token in memory, as the map that comes next reads it: what that keeps and what is kept here are then the same block.
        let y = contiguous(tensor(y, [b, g * group, s, d]).transpose(1, 2)).transpose(1, 2);
        (y, tensor(sums, [b, g * group, s]))
    }

    fn attend_grad(
        q: FlexTensor,
        k: FlexTensor,
        v: FlexTensor,
        first: FlexTensor,
        y: FlexTensor,
        sums: FlexTensor,
        dy: FlexTensor,
        scale: f64,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let Some((sizes, seen)) = ours([&q, &k, &v, &y, &sums, &dy], &first) else {
            return portable::attend_grad::<Self>(portable::SCORES, [q, k, v, dy], first, scale);
        };
        let ([q, k, v, y, sums, dy], level) = ([q, k, v, y, sums, dy].map(contiguous), simd::level());
        let Sizes { b, g, group, s, t, d } = sizes;
        let inputs = Inputs { sizes, q: values(&q), k: values(&k), v: values(&v), first: &seen, scale: scale as f32 };
        let dot = |(y, dy): (&[f32], &[f32])| y.iter().zip(dy).map(|(a, b)| a * b).sum::<f32>();
        let dots: Vec<f32> = values(&y).par_chunks(d).zip(values(&dy).par_chunks(d)).with_min_len(worth_a_task(d)).map(dot).collect();
        let above = Above { dy: values(&dy), sums: values(&sums), dots: &dots };

        let (mut dq, mut dk, mut dv) = (take(b * g * group * s * d), take(b * g * t * d), take(b * g * t * d));
        let threads = rayon::current_num_threads();
        let queries = by_queries(sizes, threads, &mut dq).into_par_iter().with_max_len(1);
        queries.for_each(|rows| query_grads(level, inputs, above, rows));
        let size = rows_of_task(KEYS, b * g * t, threads);
        let blocks = dk.par_chunks_mut(t * d).zip(dv.par_chunks_mut(t * d)).enumerate();
        blocks.for_each(|(head, (dk, dv))| {
            let parts = dk.par_chunks_mut(size * d).zip(dv.par_chunks_mut(size * d)).enumerate().with_max_len(1);
            parts.for_each(|(i, (dk, dv))| {
                let keys = i * size..t.min((i + 1) * size);
                let out = [dk, dv].map(|rows| rows.chunks_exact_mut(d).collect());
                key_grads(level, inputs, above, head, keys, out);
            });
        });
        let heads = [b, g * group, s, d];
        (tensor(dq, heads), tensor(dk, [b, g, t, d]), tensor(dv, [b, g, t, d]))
    }
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
