//! Gradient of the weights: `G^T [ sum over tiles (A dY A^T) . (B^T x B) ] G`.
//!
//! At each point the sum is a matrix product `[ci][tile] * [tile][co]`. Tiles are taken in groups whose transformed data fit the
//! caches, and the 36 products of a pair of channel ranges are summed over all groups in one buffer. That buffer is kept below
//! [`SUM_BYTES`] by cutting the channels into ranges, at the price of transforming the other side once per range.
//!
//! With enough pairs of ranges for the threads, a task is a pair and finishes it. Otherwise the threads divide the tile rows of one pair
//! after another into equal parts, each with its own sums, which are then added in the order of the parts: the result depends on the number
//! of threads, but not on which of them did what. When there are few tiles, more pairs are made instead, since adding up the private
//! sums would cost as much as forming them.
//!
//! Scratch per thread: the sums, at most [`SUM_BYTES`] (or those of 16 by 16 channels), the data of a group, at most as much (or one row
//! of tiles), and five rows of pixels of 16 channels.

use rayon::prelude::*;

use super::super::scratch;
use super::super::simd::{self, Simd, Task};
use super::filter::Gradient;
use super::input::{self, Input, OutputGradient};
use super::product::{Product, over_tiles};
use super::tiling::{Layout, POINTS, Tiling, pairs, split};

/// Bytes of sums that one task may have.
const SUM_BYTES: usize = 1300 << 10;

/// Bytes of transformed input and output gradient that a group of tiles may have; or as many as the sums, which each group reads and
/// writes once.
const GROUP_BYTES: usize = 450 << 10;

/// With fewer tiles than this per thread, the channels are divided rather than the tiles.
const FEW_TILES: usize = 64;

/// Writes all of `dw`.
pub fn weight_grad(tiling: &Tiling, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    if dy.is_empty() {
        dw.fill(0.0);
    }
    if dw.is_empty() || dy.is_empty() {
        return;
    }
    let level = simd::level();
    let lanes = level.form().lanes;
    let threads = rayon::current_num_threads();
    let (blocks, vectors) = (tiling.in_channels.div_ceil(lanes), tiling.out_channels.div_ceil(lanes));
    let few = tiling.rows() * tiling.across < FEW_TILES * threads;

    let (mut block_parts, mut vector_parts) = (1, 1);
    loop {
        let (b, v) = (blocks.div_ceil(block_parts), vectors.div_ceil(vector_parts));
        let too_large = b * v * lanes * lanes * POINTS * size_of::<f32>() > SUM_BYTES;
        let too_few = few && block_parts * vector_parts < threads;
        if (b, v) == (1, 1) || !(too_large || too_few) {
            break;
        }
        // The longer side: the other is then transformed twice.
        if b >= v { block_parts = (2 * block_parts).min(blocks) } else { vector_parts = (2 * vector_parts).min(vectors) }
    }
    let block_parts: Vec<(usize, usize)> = split(0, blocks, block_parts).map(|(first, len)| (first, first + len)).collect();
    let vector_parts: Vec<(usize, usize)> = split(0, vectors, vector_parts).map(|(first, len)| (first, first + len)).collect();
    let parts = distribute(tiling, &block_parts, &vector_parts, lanes, dw);
    let all = (0, tiling.rows());

    if parts.len() >= threads {
        parts.into_par_iter().with_max_len(1).for_each(|pair| {
            let mut sums = scratch::take(pair.sums_len(lanes));
            let Pair { blocks, vectors, mut rows } = pair;
            simd::run(level, Accumulate { tiling, x, dy, blocks, vectors, rows: all, sums: &mut sums });
            let layout = sums_layout(blocks, lanes);
            for (sums, rows) in sums.chunks_exact(layout.block()).zip(rows.chunks_mut(lanes)) {
                simd::run(level, Gradient { sums: &[sums], layout, rows });
            }
        });
        return;
    }
    for pair in parts {
        let len = pair.sums_len(lanes);
        let mut sums = scratch::take(threads * len);
        let Pair { blocks, vectors, mut rows } = pair;
        sums.par_chunks_exact_mut(len).zip(split(0, all.1, threads).collect::<Vec<_>>()).with_max_len(1).for_each(|(sums, part)| {
            simd::run(level, Accumulate { tiling, x, dy, blocks, vectors, rows: (part.0, part.0 + part.1), sums });
        });
        let layout = sums_layout(blocks, lanes);
        let sums = &*sums;
        rows.par_chunks_mut(lanes).enumerate().with_max_len(1).for_each(|(vector, rows)| {
            let sums: Vec<&[f32]> = sums.chunks_exact(len).map(|s| &s[vector * layout.block()..][..layout.block()]).collect();
            simd::run(level, Gradient { sums: &sums, layout, rows });
        });
    }
}

/// A range of blocks of input channels with one of vectors of output channels.
struct Pair<'a> {
    blocks: (usize, usize),
    vectors: (usize, usize),
    /// The gradient's part: by output channel, `[ci][9]` over the input channels.
    rows: Vec<&'a mut [f32]>,
}

impl Pair<'_> {
    /// Floats of the pair's sums, `[vector][point][ci][LANES]`.
    fn sums_len(&self, lanes: usize) -> usize {
        (self.vectors.1 - self.vectors.0) * sums_layout(self.blocks, lanes).block()
    }
}

/// The sums of one vector of output channels.
fn sums_layout(blocks: (usize, usize), lanes: usize) -> Layout {
    Layout::new((blocks.1 - blocks.0) * lanes, lanes)
}

/// Cuts the gradient into pairs of channel ranges.
fn distribute<'a>(
    tiling: &Tiling,
    block_parts: &[(usize, usize)],
    vector_parts: &[(usize, usize)],
    lanes: usize,
    dw: &'a mut [f32],
) -> Vec<Pair<'a>> {
    let mut pairs: Vec<Pair<'a>> = Vec::new();
    let mut filters = dw.chunks_exact_mut(tiling.in_channels * 9);
    for &vectors in vector_parts {
        let first = pairs.len();
        pairs.extend(block_parts.iter().map(|&blocks| Pair { blocks, vectors, rows: Vec::new() }));
        for mut row in filters.by_ref().take((vectors.1 - vectors.0) * lanes) {
            for pair in &mut pairs[first..] {
                let channels = (pair.blocks.1 * lanes).min(tiling.in_channels) - pair.blocks.0 * lanes;
                let (part, rest) = row.split_at_mut(channels * 9);
                pair.rows.push(part);
                row = rest;
            }
        }
    }
    pairs
}

/// Forms the sums of a pair over some rows of tiles.
struct Accumulate<'a> {
    tiling: &'a Tiling,
    x: &'a [f32],
    dy: &'a [f32],
    blocks: (usize, usize),
    vectors: (usize, usize),
    rows: (usize, usize),
    /// `[vector][point][ci][LANES]`, overwritten.
    sums: &'a mut [f32],
}

impl Task for Accumulate<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let l = S::LANES;
        let t = self.tiling;
        self.sums.fill(0.0);
        let sums_layout = sums_layout(self.blocks, l);
        let (blocks, vectors) = (self.blocks.1 - self.blocks.0, self.vectors.1 - self.vectors.0);
        let row_bytes = (blocks + vectors) * l * POINTS * size_of::<f32>() * t.across;
        let per_group = (GROUP_BYTES.max(size_of_val(&*self.sums)) / row_bytes).max(1);
        let longest = Layout::new(per_group.min(self.rows.1 - self.rows.0) * t.across, l);
        let mut v = scratch::take(blocks * longest.block());
        let mut y = scratch::take(vectors * longest.block());
        let mut pixels = scratch::take(input::scratch_len(t.width.max(t.out_width), l));
        let rows = self.rows.1 - self.rows.0;
        for (first, len) in split(self.rows.0, self.rows.1, rows.div_ceil(per_group)) {
            let rows = (first, first + len);
            let tiles = len * t.across;
            let layout = Layout::new(tiles, l);
            for (i, out) in v.chunks_exact_mut(layout.block()).take(blocks).enumerate() {
                Input { tiling: t, x: self.x, block: self.blocks.0 + i, rows, layout, pixels: &mut pixels, out }.run(s);
            }
            for (i, out) in y.chunks_exact_mut(layout.block()).take(vectors).enumerate() {
                OutputGradient { tiling: t, dy: self.dy, block: self.vectors.0 + i, rows, layout, pixels: &mut pixels, out }.run(s);
            }
            for (vector, count) in pairs(0, vectors) {
                for point in 0..POINTS {
                    let product = Product {
                        a: &v[point * layout.point..],
                        a_block: layout.block(),
                        b: &y[vector * layout.block() + point * layout.point..],
                        b_vector: layout.block(),
                        c: &mut self.sums[vector * sums_layout.block() + point * sums_layout.point..],
                        c_vector: sums_layout.block(),
                        vectors: count,
                        tiles,
                        blocks,
                    };
                    over_tiles(s, product);
                }
            }
        }
    }
}
