//! Attention on Flex: f32 in tiles, everything else composed.

use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::backward::{Above, Keys, query_grads};
use super::blocks::{Inputs, by_queries, rows_of_task};
use super::forward::forward;
use super::sizes::Sizes;
use super::{AttentionOps, portable};
use crate::buffers::{all_f32, contiguous, take, tensor, values};
use crate::cpu::machine::{KEYS, worth_a_task};
use crate::cpu::simd;
use crate::rows::ids;

/// The first keys, each at most its query's own position.
fn firsts(first: &FlexTensor, sizes: Sizes) -> Option<Vec<usize>> {
    let first = ids(first)?;
    Some(first.into_iter().enumerate().map(|(i, first)| first.min(sizes.position(i % sizes.s))).collect())
}

impl AttentionOps for Flex {
    fn attend(q: FlexTensor, k: FlexTensor, v: FlexTensor, first: FlexTensor, scale: f64) -> (FlexTensor, FlexTensor) {
        let (sizes, first) = (Sizes::new(&q, &k), contiguous(first));
        let (true, Some(seen)) = (all_f32([&q, &k, &v]) && q.shape().num_elements() > 0, firsts(&first, sizes)) else {
            return portable::attend::<Self>(portable::SCORES, q, k, v, first, scale);
        };
        let ([q, k, v], level) = ([q, k, v].map(contiguous), simd::level());
        let Sizes { b, g, group, s, d, .. } = sizes;
        let inputs = Inputs { sizes, q: values(&q), k: values(&k), v: values(&v), first: &seen, scale: scale as f32 };
        let mut y = take(b * g * group * s * d);
        let done: Vec<(usize, usize, Vec<f32>)> = by_queries(sizes, rayon::current_num_threads(), &mut y)
            .into_par_iter()
            .with_max_len(1)
            .map(|rows| (rows.head, rows.queries.start, forward(level, inputs, rows)))
            .collect();
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
        let (sizes, first) = (Sizes::new(&q, &k), contiguous(first));
        let all = all_f32([&q, &k, &v, &y, &sums, &dy]) && q.shape().num_elements() > 0;
        let (true, Some(seen)) = (all, firsts(&first, sizes)) else {
            return portable::attend_grad::<Self>(portable::SCORES, q, k, v, first, dy, scale);
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
                simd::run(level, Keys { inputs, above, head, keys, out });
            });
        });
        let heads = [b, g * group, s, d];
        (tensor(dq, heads), tensor(dk, [b, g, t, d]), tensor(dv, [b, g, t, d]))
    }
}
