//! What the passes share: how rows are divided into tasks, and products of packed blocks.

use std::ops::Range;

use super::sizes::Sizes;
use crate::cpu::machine::most_queries;
use crate::cpu::scratch::{self, Buffer};
use crate::cpu::simd::{Group, MAX_LANES, Simd, Starts, Tile, To};
use crate::products::{Operand, Stored};

/// Rows of a task that has `most` of `all`, halved up to twice where that would leave fewer than two tasks for a thread. Blocks of sums begin where
/// they would for `most` rows, so that results do not depend on it.
pub(super) fn rows_of_task(most: usize, all: usize, threads: usize) -> usize {
    most >> (2 * threads * most / all.max(1)).checked_ilog2().unwrap_or(0).min(2)
}

#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub sizes: Sizes,
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    /// The first key that each query sees, `[B, S]`.
    pub first: &'a [usize],
    pub scale: f32,
}

impl<'a> Inputs<'a> {
    /// The keys or values `[T, d]` of key head `head` (of all of B G).
    pub(super) fn keys(&self, of: &'a [f32], head: usize) -> &'a [f32] {
        let len = self.sizes.t * self.sizes.d;
        &of[head * len..][..len]
    }

    /// The queries (or what has their shape) `[S, d]` of query head `head` (of all of B H).
    pub(super) fn queries(&self, of: &'a [f32], head: usize) -> &'a [f32] {
        let len = self.sizes.s * self.sizes.d;
        &of[head * len..][..len]
    }

    /// The first keys of the queries of the batch that key head `head` belongs to.
    pub(super) fn first(&self, head: usize) -> &'a [usize] {
        let Sizes { g, s, .. } = self.sizes;
        &self.first[head / g * s..][..s]
    }

    /// The first keys of the queries of some rows, and the keys they meet: from the first that any query of the same most rows of a task sees to the
    /// last that the last one of these does.
    pub(super) fn met(&self, rows: &Rows<'_>) -> (&'a [usize], Range<usize>) {
        let (all, most) = (self.first(rows.head), most_queries(self.sizes.group));
        let end = self.sizes.position(rows.queries.end - 1) + 1;
        let block = all.chunks(most).nth(rows.queries.start / most).unwrap_or_default();
        let start = block.iter().copied().min().unwrap_or(0).min(end);
        (&all[rows.queries.clone()], start..end)
    }
}

/// The queries `from..end` of all heads of a group.
pub(super) struct Rows<'a> {
    /// Key head, of all of B G.
    pub head: usize,
    pub queries: Range<usize>,
    /// The result's rows, `d` long, head by head.
    pub out: Vec<&'a mut [f32]>,
}

/// The tasks of a result `[B, H, S, d]`, those that see most keys first.
pub(super) fn by_queries(sizes: Sizes, threads: usize, out: &mut [f32]) -> Vec<Rows<'_>> {
    let Sizes { b, g, group, s, d, .. } = sizes;
    let size = rows_of_task(most_queries(group), b * g * s, threads);
    let blocks = s.div_ceil(size);
    let task = |i: usize| {
        let from = i % blocks * size;
        Rows { head: i / blocks, queries: from..s.min(from + size), out: Vec::with_capacity(group * size) }
    };
    let mut tasks: Vec<Rows<'_>> = (0..b * g * blocks).map(task).collect();
    for (head, plane) in out.chunks_exact_mut(s * d).enumerate() {
        for (i, block) in plane.chunks_mut(size * d).enumerate() {
            tasks[head / group * blocks + i].out.extend(block.chunks_exact_mut(d));
        }
    }
    tasks.sort_by_key(|task| std::cmp::Reverse(task.queries.start));
    tasks
}

/// The left-hand factor.
pub(super) struct Panels {
    values: Buffer,
    panel: usize,
    depth: usize,
}

impl Panels {
    /// Room for so many rows of so many terms.
    #[inline(always)]
    pub(super) fn new<S: Simd>(_: S, rows: usize, depth: usize) -> Self {
        // The last vector of a panel may reach beyond it.
        let panel = depth * S::PANEL + MAX_LANES;
        Self { values: scratch::take(rows.div_ceil(S::PANEL) * panel), panel, depth }
    }

    /// Packs the first `rows` lines of `from`, of `depth` terms each.
    #[inline(always)]
    pub(super) fn fill<S: Simd>(&mut self, s: S, from: Operand<'_>, rows: usize, depth: usize) {
        self.depth = depth;
        for (i, out) in self.values.chunks_exact_mut(self.panel).take(rows.div_ceil(S::PANEL)).enumerate() {
            from.pack(s, 0..depth, i * S::PANEL..rows.min((i + 1) * S::PANEL), S::PANEL, out);
        }
    }

    /// Rows of `depth` terms, packed.
    #[inline(always)]
    pub(super) fn of<S: Simd>(s: S, rows: &[f32], depth: usize) -> Self {
        let count = rows.len() / depth;
        let mut panels = Self::new(s, count, depth);
        panels.fill(s, Operand::lines(Stored::F32(rows), depth), count, depth);
        panels
    }

    /// `out [rows, columns] (+)= panels right`.
    #[inline(always)]
    pub(super) fn times<S: Simd>(&self, s: S, right: &Tiles, out: &mut [&mut [f32]], accumulate: bool) {
        let mut unit = s.unit(S::GROUP, 1);
        for at in (0..right.columns).step_by(S::NR) {
            let cols = S::NR.min(right.columns - at);
            for (i, c) in out.chunks_mut(S::PANEL).enumerate() {
                let a = &self.values[i * self.panel..];
                let b = &right.values[self.depth * at..];
                let (starts, rows, c) = (Starts::Dense(self.depth), c.len(), To::Rows(c, at));
                s.tile(&mut unit, Tile { a, panel: 0, group: Group::ONE, b, starts, c, rows, cols, accumulate, prefetch: false });
            }
        }
    }
}

/// The right-hand factor.
pub(super) struct Tiles {
    values: Buffer,
    columns: usize,
}

impl Tiles {
    /// Room for so many values, columns rounded up to vectors.
    #[inline(always)]
    pub(super) fn new<S: Simd>(_: S, depth: usize, columns: usize) -> Self {
        Self { values: scratch::take(depth * columns.next_multiple_of(S::LANES)), columns: 0 }
    }

    #[inline(always)]
    pub(super) fn fill<S: Simd>(&mut self, s: S, from: Operand<'_>, terms: Range<usize>, lines: Range<usize>) {
        self.columns = lines.len();
        for first in lines.clone().step_by(S::NR) {
            let tile = first..lines.end.min(first + S::NR);
            let (at, width) = (terms.len() * (first - lines.start), tile.len().next_multiple_of(S::LANES));
            from.pack(s, terms.clone(), tile, width, &mut self.values[at..]);
        }
    }
}
