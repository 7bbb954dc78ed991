//! The backward pass, in two: by queries for their gradient, by keys for those of keys and values. Both make the probabilities once more.

use std::ops::Range;

use super::blocks::{Inputs, Panels, Rows, Tiles};
use super::forward::visible;
use crate::cpu::machine::{ACROSS, KEYS};
use crate::cpu::scratch;
use crate::products::{Operand, Stored};
use crate::tasks::task;

/// What the backward pass reads beside the inputs: dy, and for each query, `[B, H, S]`, the logarithm of its sum and `Σ y dy`.
#[derive(Clone, Copy)]
pub(super) struct Above<'a> {
    pub dy: &'a [f32],
    pub sums: &'a [f32],
    pub dots: &'a [f32],
}

task! {
    /// Computes the gradient of some queries.
    pub(super) fn query_grads<S>(s, inputs: Inputs<'a>, above: Above<'a>, rows: Rows<'a>) {
        let Inputs { sizes, scale, .. } = inputs;
        let (first, Range { start, end }) = inputs.met(&rows);
        let Rows { head, queries, mut out } = rows;
        let [keys, values] = [inputs.k, inputs.v].map(|of| inputs.keys(of, head));
        let (d, group, count) = (sizes.d, sizes.group, queries.len());

        let pack = |of, j| Panels::of(s, &inputs.queries(of, head * group + j)[queries.start * d..queries.end * d], d);
        let panels: Vec<[Panels; 2]> = (0..group).map(|j| [pack(inputs.q, j), pack(above.dy, j)]).collect();
        let mut ds = Panels::new(s, count, ACROSS);
        let mut tiles = Tiles::new(s, d.max(ACROSS), d.max(ACROSS));
        let [mut scores, mut slopes] = [0, 1].map(|_| scratch::take(group * count * ACROSS));
        for from in (start..end).step_by(ACROSS) {
            let to = end.min(from + ACROSS);
            for (of, (stored, into)) in [(keys, &mut scores), (values, &mut slopes)].into_iter().enumerate() {
                tiles.fill(s, Operand::lines(Stored::F32(stored), d), 0..d, from..to);
                let mut rows: Vec<&mut [f32]> = into.chunks_exact_mut(ACROSS).collect();
                for (panels, rows) in panels.iter().zip(rows.chunks_mut(count)) {
                    panels[of].times(s, &tiles, rows, false);
                }
            }
            for (i, (row, slopes)) in scores.chunks_exact_mut(ACROSS).zip(slopes.chunks_exact(ACROSS)).enumerate() {
                let (head, query) = (head * group + i / count, i % count);
                let at = head * sizes.s + queries.start + query;
                let seen = visible(first[query]..sizes.position(queries.start + query) + 1, from..to);
                let row = &mut row[..to - from];
                row[..seen.start].fill(0.0);
                row[seen.end..].fill(0.0);
                let (sum, dot) = (s.splat(-above.sums[at]), s.splat(above.dots[at]));
                for (x, dp) in row[seen.clone()].chunks_mut(S::LANES).zip(slopes[seen].chunks(S::LANES)) {
                    let n = x.len();
                    let p = s.exp(s.mul_add(s.load_part(x, n), s.splat(scale), sum));
                    let ds = s.mul(s.mul(p, s.sub(s.load_part(dp, n), dot)), s.splat(scale));
                    s.store_part(ds, x, n);
                }
            }
            tiles.fill(s, Operand::terms(Stored::F32(keys), d), from..to, 0..d);
            for (rows, dq) in scores.chunks_exact(count * ACROSS).zip(out.chunks_mut(count)) {
                ds.fill(s, Operand::lines(Stored::F32(rows), ACROSS), count, to - from);
                ds.times(s, &tiles, dq, from > start);
            }
        }
    }

    /// Computes the gradients of some keys of a key head, and of their values: rows of dk and dv.
    pub(super) fn key_grads<S>(s, inputs: Inputs<'a>, above: Above<'a>, key_head: usize, keys: Range<usize>, out: [Vec<&'a mut [f32]>; 2]) {
        let (Inputs { sizes, scale, .. }, mut out) = (inputs, out);
        let (d, group, count) = (sizes.d, sizes.group, keys.len());
        let part = keys.start * d..keys.end * d;
        let panels = [inputs.k, inputs.v].map(|of| Panels::of(s, &inputs.keys(of, key_head)[part.clone()], d));
        let mut weights = Panels::new(s, count, ACROSS);
        let mut tiles = Tiles::new(s, d.max(ACROSS), d.max(ACROSS));
        let mut blocks = [0, 1].map(|_| scratch::take(count * ACROSS));
        out.iter_mut().flatten().for_each(|row| row.fill(0.0));
        // The queries before these do not see the first key of as many as a task has at most.
        let start = (keys.start / KEYS * KEYS + sizes.s).saturating_sub(sizes.t);
        for j in 0..group {
            let head = key_head * group + j;
            let of_queries = [inputs.q, above.dy].map(|of| inputs.queries(of, head));
            for from in (start..sizes.s).step_by(ACROSS) {
                let queries = from..sizes.s.min(from + ACROSS);
                if inputs.first(key_head)[queries.clone()].iter().all(|&first| first >= keys.end) {
                    continue;
                }
                for ((panels, block), queried) in panels.iter().zip(&mut blocks).zip(of_queries) {
                    tiles.fill(s, Operand::lines(Stored::F32(queried), d), 0..d, queries.clone());
                    let mut rows: Vec<&mut [f32]> = block.chunks_exact_mut(ACROSS).collect();
                    panels.times(s, &tiles, &mut rows, false);
                }
                let [p, ds] = &mut blocks;
                for (key, (p, ds)) in keys.clone().zip(p.chunks_exact_mut(ACROSS).zip(ds.chunks_exact_mut(ACROSS))) {
                    // Queries from this one on are behind the key.
                    let seeing = visible((key + sizes.s).saturating_sub(sizes.t)..sizes.s, queries.clone());
                    p[..seeing.start].fill(0.0);
                    ds[..seeing.start].fill(0.0);
                    let query = queries.start + seeing.start;
                    let (first, at) = (&inputs.first(key_head)[query..], head * sizes.s + query);
                    // Scores become probabilities, and their slopes those of the scores.
                    for (v, (p, ds)) in p[seeing.clone()].chunks_mut(S::LANES).zip(ds[seeing].chunks_mut(S::LANES)).enumerate() {
                        let (n, at) = (p.len(), at + v * S::LANES);
                        let sum = s.load_part(&above.sums[at..], n);
                        s.store_part(s.exp(s.sub(s.mul(s.load_part(p, n), s.splat(scale)), sum)), p, n);
                        // Queries of other documents.
                        p.iter_mut().zip(&first[v * S::LANES..]).filter(|(_, first)| **first > key).for_each(|(p, _)| *p = 0.0);
                        let slope = s.sub(s.load_part(ds, n), s.load_part(&above.dots[at..], n));
                        s.store_part(s.mul(s.mul(s.load_part(p, n), slope), s.splat(scale)), ds, n);
                    }
                }
                // dk from ds and q, dv from p and dy.
                for ((block, out), queried) in blocks.iter().rev().zip(&mut out).zip(of_queries) {
                    weights.fill(s, Operand::lines(Stored::F32(block), ACROSS), count, queries.len());
                    tiles.fill(s, Operand::terms(Stored::F32(queried), d), queries.clone(), 0..d);
                    weights.times(s, &tiles, out, true);
                }
            }
        }
    }
}
