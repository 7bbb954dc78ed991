//! Gradient of the weights: `G^T [ sum over tiles (A dY A^T) . (B^T x B) ] G`.
//!
//! At each point the sum is a matrix product `[ci][tile] * [tile][co]`. Tiles are taken in groups whose transformed data fit the
//! caches, and the 36 products of a pair of channel ranges are summed over all groups in one buffer. That buffer is kept as small as the
//! second-level cache asks by cutting the channels into ranges, at the price of transforming the other side once per range.
//!
//! With enough pairs of ranges for the threads, a task is a pair and finishes it. Otherwise the tile rows of every pair are divided too, into equal parts, each
//! with its own sums, which are then added in the order of the parts: the result depends on the number of threads, but not on which of them did what. When
//! there are few tiles, more pairs are made first, since adding up the private sums would cost as much as forming them.
//!
//! Scratch per task: the sums (at least those of 16 by 16 channels), the data of a group, at most as much (or one row
//! of tiles), and eight rows of pixels of 16 channels.

use std::ops::Range;

use rayon::prelude::*;

use super::super::machine::{FEW_TILES_OF_WEIGHTS, machine};
use super::super::scratch;
use super::super::shape::ConvShape;
use super::super::simd;
use super::filter::Gradient;
use super::input::{self, Transform};
use super::product::{Product, over_tiles};
use super::tiling::{Layout, POINTS, Tiling, pairs, split};
use crate::tasks::task;

/// Writes all of `dw`. There is some of `dy`.
pub fn weight_grad(shape: &ConvShape, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    let (tiling, level) = (&Tiling::new(shape), simd::level());
    let lanes = level.form().lanes;
    let threads = rayon::current_num_threads();
    let [block_parts, vector_parts, row_parts] = divide(tiling, lanes, threads, machine().sum_bytes());
    let ranges = |all, parts| split(0..all, parts).collect::<Vec<Range<usize>>>();
    let (blocks, vectors) = (tiling.shape.in_channels.div_ceil(lanes), tiling.shape.out_channels.div_ceil(lanes));
    let pairs = distribute(tiling, [&ranges(blocks, block_parts), &ranges(vectors, vector_parts)], lanes, dw);
    let rows = ranges(tiling.rows(), row_parts);
    if let [all] = &rows[..] {
        return pairs.into_par_iter().with_max_len(1).for_each(|pair| {
            let mut sums = scratch::take(pair.sums_len(lanes));
            accumulate(level, tiling, x, dy, &pair, all, &mut sums);
            pair.gradients(&[&sums], lanes).into_iter().for_each(|task| simd::run(level, task));
        });
    }
    let longest = pairs.iter().map(|pair| pair.sums_len(lanes)).max().unwrap_or(0);
    let mut sums = scratch::take(pairs.len() * row_parts * longest);
    sums.par_chunks_exact_mut(longest).enumerate().with_max_len(1).for_each(|(i, sums)| {
        let pair = &pairs[i / row_parts];
        accumulate(level, tiling, x, dy, pair, &rows[i % row_parts], &mut sums[..pair.sums_len(lanes)]);
    });
    let sums = pairs.into_iter().zip(sums.chunks_exact(row_parts * longest));
    let tasks: Vec<_> = sums.flat_map(|(pair, sums)| pair.gradients(&sums.chunks_exact(longest).collect::<Vec<_>>(), lanes)).collect();
    tasks.into_par_iter().with_max_len(1).for_each(|task| simd::run(level, task));
}

/// How the work is cut up: the parts of the channels in, of the channels out, and of the rows of tiles.
fn divide(tiling: &Tiling, lanes: usize, threads: usize, sum_bytes: usize) -> [usize; 3] {
    let (blocks, vectors) = (tiling.shape.in_channels.div_ceil(lanes), tiling.shape.out_channels.div_ceil(lanes));
    let few = tiling.rows() * tiling.across < FEW_TILES_OF_WEIGHTS * threads;
    let (mut block_parts, mut vector_parts) = (1, 1);
    loop {
        let (b, v) = (blocks.div_ceil(block_parts), vectors.div_ceil(vector_parts));
        let too_large = b * v * lanes * lanes * POINTS * size_of::<f32>() > sum_bytes;
        let too_few = few && block_parts * vector_parts < threads;
        if (b, v) == (1, 1) || !(too_large || too_few) {
            break;
        }
        // The longer side: the other is then transformed twice.
        if b >= v { block_parts = (2 * block_parts).min(blocks) } else { vector_parts = (2 * vector_parts).min(vectors) }
    }
    [block_parts, vector_parts, threads.div_ceil(block_parts * vector_parts).min(tiling.rows())]
}

/// A range of blocks of input channels with one of vectors of output channels.
struct Pair<'a> {
    blocks: Range<usize>,
    vectors: Range<usize>,
    /// The gradient's part: by output channel, `[ci][9]` over the input channels.
    rows: Vec<&'a mut [f32]>,
}

impl<'a> Pair<'a> {
    /// The sums of one vector of output channels.
    fn layout(&self, lanes: usize) -> Layout {
        Layout::new(self.blocks.len() * lanes, lanes)
    }

    /// Floats of the pair's sums, `[vector][point][ci][LANES]`.
    fn sums_len(&self, lanes: usize) -> usize {
        self.vectors.len() * self.layout(lanes).block()
    }

    /// What remains to be done with the sums: a task for each vector of output channels and block of input channels.
    fn gradients<'b>(self, sums: &[&'b [f32]], lanes: usize) -> Vec<Gradient<'b, 'a>> {
        let layout = self.layout(lanes);
        let mut tasks: Vec<Gradient<'b, 'a>> = Vec::new();
        for (i, row) in self.rows.into_iter().enumerate() {
            if i % lanes == 0 {
                let sums = || sums.iter().map(|sums| &sums[i / lanes * layout.block()..][..layout.block()]).collect();
                let blocks = (0..row.len() / 9).step_by(lanes);
                tasks.extend(blocks.map(|first| Gradient { sums: sums(), layout, first, rows: Vec::new() }));
            }
            let parts = row.chunks_mut(9 * lanes);
            let of_vector = tasks.len() - parts.len();
            parts.zip(&mut tasks[of_vector..]).for_each(|(part, task)| task.rows.push(part));
        }
        tasks
    }
}

/// Cuts the gradient into pairs of channel ranges.
fn distribute<'a>(tiling: &Tiling, [blocks, vectors]: [&[Range<usize>]; 2], lanes: usize, dw: &'a mut [f32]) -> Vec<Pair<'a>> {
    let mut pairs: Vec<Pair<'a>> = Vec::new();
    let mut filters = dw.chunks_exact_mut(tiling.shape.in_channels * 9);
    for vectors in vectors {
        let first = pairs.len();
        pairs.extend(blocks.iter().map(|blocks| Pair { blocks: blocks.clone(), vectors: vectors.clone(), rows: Vec::new() }));
        for mut row in filters.by_ref().take(vectors.len() * lanes) {
            for pair in &mut pairs[first..] {
                let channels = (pair.blocks.end * lanes).min(tiling.shape.in_channels) - pair.blocks.start * lanes;
                let (part, rest) = row.split_at_mut(channels * 9);
                pair.rows.push(part);
                row = rest;
            }
        }
    }
    pairs
}

task! {
    /// Forms the sums of a pair over some rows of tiles, `[vector][point][ci][LANES]`; they are overwritten.
    fn accumulate<S>(s, t: &'a Tiling, x: &'a [f32], dy: &'a [f32], pair: &'a Pair<'a>, rows: &'a Range<usize>, sums: &'a mut [f32]) {
        let l = S::LANES;
        sums.fill(0.0);
        let sums_layout = pair.layout(l);
        let (blocks, vectors) = (pair.blocks.len(), pair.vectors.len());
        let row_bytes = (blocks + vectors) * l * POINTS * size_of::<f32>() * t.across;
        // The transformed data of a group take their part of the cache, or as much as the sums, which each group reads and writes once.
        let per_group = (machine().group_bytes().max(size_of_val(sums)) / row_bytes).max(1);
        let longest = Layout::new(per_group.min(rows.len()) * t.across, l);
        let mut v = scratch::take(blocks * longest.block());
        let mut y = scratch::take(vectors * longest.block());
        let mut pixels = scratch::take(input::scratch_len(t.shape.width.max(t.out_width), l));
        for rows in split(rows.clone(), rows.len().div_ceil(per_group)) {
            let tiles = rows.len() * t.across;
            let layout = Layout::new(tiles, l);
            for (block, out) in pair.blocks.clone().zip(v.chunks_exact_mut(layout.block())) {
                Transform { tiling: t, values: x, block, rows: rows.clone(), layout, pixels: &mut pixels, out }.run(s);
            }
            for (block, out) in pair.vectors.clone().zip(y.chunks_exact_mut(layout.block())) {
                Transform { tiling: t, values: dy, block, rows: rows.clone(), layout, pixels: &mut pixels, out }.gradient(s);
            }
            for (vector, vectors) in pairs(0..vectors) {
                for point in 0..POINTS {
                    let (a, b) = (&v[point * layout.point..], &y[vector * layout.block() + point * layout.point..]);
                    let c = &mut sums[vector * sums_layout.block() + point * sums_layout.point..];
                    let (a_block, b_vector, c_vector) = (layout.block(), layout.block(), sums_layout.block());
                    over_tiles(s, Product { a, a_block, b, b_vector, c, c_vector, vectors, tiles, blocks });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_something_to_do() {
        for (in_channels, out_channels, size) in [(16, 16, 160), (32, 32, 80), (64, 64, 40), (128, 128, 20), (64, 64, 80), (256, 64, 20)] {
            let shape = ConvShape {
                batch: 4,
                in_channels,
                out_channels,
                height: size,
                width: size,
                kernel: [3; 2],
                stride: [1; 2],
                padding: [1; 2],
            };
            for threads in [1, 2, 16, 64] {
                let division = divide(&Tiling::new(&shape), 16, threads, 1300 << 10);
                let tasks: usize = division.iter().product();
                assert!((threads..3 * threads).contains(&tasks), "{tasks} tasks for {threads} threads, {shape:?}: {division:?}");
            }
        }
    }
}
