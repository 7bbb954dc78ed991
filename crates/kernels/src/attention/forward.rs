//! The forward pass: a block of queries, with the running maximum and sum of each row, meets its keys block by block.

use std::ops::Range;

use super::blocks::{Inputs, Panels, Rows, Tiles};
use crate::cpu::machine::ACROSS;
use crate::cpu::scratch;
use crate::cpu::simd::{MAX_LANES, Simd};
use crate::decoder::BLOCKED;
use crate::products::{Operand, Stored};
use crate::tasks::task;

task! {
    /// Computes the result of some queries, and the logarithms of their sums, by row.
    pub(super) fn forward<S>(s, inputs: Inputs<'a>, rows: Rows<'a>) -> Vec<f32> {
        let Inputs { sizes, scale, .. } = inputs;
        let (first, Range { start, end }) = inputs.met(&rows);
        let Rows { head, queries, mut out } = rows;
        let [keys, values] = [inputs.k, inputs.v].map(|of| inputs.keys(of, head));
        let (d, group, count) = (sizes.d, sizes.group, queries.len());

        let panels: Vec<Panels> = (0..group)
            .map(|j| Panels::of(s, &inputs.queries(inputs.q, head * group + j)[queries.start * d..queries.end * d], d))
            .collect();
        let mut p = Panels::new(s, count, ACROSS);
        let mut tiles = Tiles::new(s, d.max(ACROSS), d.max(ACROSS));
        let mut scores = scratch::take(group * count * ACROSS);
        let mut running = vec![(BLOCKED, 0.0); group * count];
        for from in (start..end).step_by(ACROSS) {
            let to = end.min(from + ACROSS);
            tiles.fill(s, Operand::lines(Stored::F32(keys), d), 0..d, from..to);
            let mut rows: Vec<&mut [f32]> = scores.chunks_exact_mut(ACROSS).collect();
            for (panels, rows) in panels.iter().zip(rows.chunks_mut(count)) {
                panels.times(s, &tiles, rows, false);
            }
            for (i, ((row, running), y)) in rows.iter_mut().zip(&mut running).zip(out.iter_mut()).enumerate() {
                let query = i % count;
                let seen = visible(first[query]..sizes.position(queries.start + query) + 1, from..to);
                soften(s, &mut row[..to - from], seen, scale, running, y);
            }
            tiles.fill(s, Operand::terms(Stored::F32(values), d), from..to, 0..d);
            for (scores, y) in scores.chunks_exact(count * ACROSS).zip(out.chunks_mut(count)) {
                p.fill(s, Operand::lines(Stored::F32(scores), ACROSS), count, to - from);
                p.times(s, &tiles, y, from > start);
            }
        }
        let finish = |(y, (max, sum)): (&mut &mut [f32], (f32, f32))| {
            let factor = 1.0 / sum;
            y.iter_mut().for_each(|v| *v *= factor);
            max + sum.ln()
        };
        out.iter_mut().zip(running).map(finish).collect()
    }
}

/// The part of the keys `block` that lies in `seen`, counted from the block's first.
#[inline(always)]
pub(super) fn visible(seen: Range<usize>, block: Range<usize>) -> Range<usize> {
    let clip = |at: usize| at.clamp(block.start, block.end) - block.start;
    clip(seen.start)..clip(seen.end).max(clip(seen.start))
}

/// Scores to `exp(scale score - max)`, 0 where no key is seen. The maximum grows: what has been summed up so far, `y` included, shrinks with it.
#[inline(always)]
fn soften<S: Simd>(s: S, row: &mut [f32], seen: Range<usize>, scale: f32, (max, sum): &mut (f32, f32), y: &mut [f32]) {
    row[..seen.start].fill(0.0);
    row[seen.end..].fill(0.0);
    let row = &mut row[seen];
    if row.is_empty() {
        return;
    }
    let new = (largest(s, row) * scale).max(*max);
    let shrink = (*max - new).exp();
    if *max > BLOCKED && shrink != 1.0 {
        y.iter_mut().for_each(|v| *v *= shrink);
    }
    let (factor, shift) = (s.splat(scale), s.splat(-new));
    let mut sums = s.zero();
    let mut parts = row.chunks_exact_mut(S::LANES);
    for part in &mut parts {
        let e = s.exp(s.mul_add(s.load(part), factor, shift));
        s.store(e, part);
        sums = s.add(sums, e);
    }
    let rest = parts.into_remainder();
    let e = s.exp(s.mul_add(s.load_part(rest, rest.len()), factor, shift));
    s.store_part(e, rest, rest.len());
    let mut lanes = [0.0; MAX_LANES];
    s.store(sums, &mut lanes);
    let total = lanes[..S::LANES].iter().sum::<f32>() + rest.iter().sum::<f32>();
    (*max, *sum) = (new, *sum * shrink + total);
}

/// The largest value, or another where one is NaN: the exponentials will say so.
#[inline(always)]
fn largest<S: Simd>(s: S, row: &[f32]) -> f32 {
    let parts = row.chunks_exact(S::LANES);
    let rest = parts.remainder();
    let (mut vector, mut lanes) = (s.splat(f32::NEG_INFINITY), [0.0; MAX_LANES]);
    for part in parts {
        vector = s.max(vector, s.load(part));
    }
    s.store(vector, &mut lanes);
    rest.iter().chain(&lanes[..S::LANES]).copied().fold(f32::NEG_INFINITY, f32::max)
}
