//! Forward pass and gradient of the input: how the work is cut up.
//!
//! The rows of tiles, numbered through the batch, form groups. With many tiles a task is a group: it transforms all its input channels,
//! then for up to three vectors of output channels at a time multiplies and transforms back, in buffers small enough for the second-level
//! cache. With few tiles (deep layers, single images) groups would be too small to pay for reading all the filters, or there would be
//! fewer groups than threads: then all tasks first transform blocks of input channels of a shared buffer, and then each multiplies for
//! some of the output channels. Either way the arithmetic of an output does not depend on the division.
//!
//! Scratch: the transformed filters, 4 times the weights; per thread the transformed input of a group, [`GROUP_BYTES`] or one row of
//! tiles (shared: less than [`FEW_TILES`] tiles per thread), its products with two vectors of output channels, and a few rows of pixels.

use rayon::prelude::*;

use super::super::scratch;
use super::super::shape::Epilogue;
use super::super::simd::{self, Simd, Task};
use super::filter::{self, Filters};
use super::input::{self, Input};
use super::output::{self, Output, output_row};
use super::product::{Product, over_channels};
use super::tiling::{Layout, POINTS, Tiling, pairs, split};

/// Bytes of transformed input that a group may have.
const GROUP_BYTES: usize = 450 << 10;

/// Fewer tiles than this per thread are shared among the threads.
const FEW_TILES: usize = 128;

/// Convolves `x` with `filters`; writes all of `out`.
pub fn convolve(tiling: &Tiling, filters: Filters<'_>, x: &[f32], epilogue: Epilogue<'_>, out: &mut [f32]) {
    if out.is_empty() {
        return;
    }
    let level = simd::level();
    let lanes = level.form().lanes;
    let threads = rayon::current_num_threads();
    let blocks = tiling.in_channels.div_ceil(lanes);
    let vectors = tiling.out_channels.div_ceil(lanes);

    let filter_layout = Layout::new(blocks * lanes, lanes);
    let mut transformed = scratch::take(vectors * filter_layout.block());
    transformed.par_chunks_exact_mut(filter_layout.block()).enumerate().with_max_len(1).for_each(|(vector, out)| {
        simd::run(level, filter::Forward { filters, vector, layout: filter_layout, out });
    });
    let transformed = &*transformed;

    let rows = tiling.rows();
    let shared = rows * tiling.across < FEW_TILES * threads;
    let tile_bytes = blocks * lanes * POINTS * size_of::<f32>();
    let fitting = (GROUP_BYTES / (tile_bytes * tiling.across)).max(1);
    let groups = if shared {
        // Two tasks per thread, if dividing the output channels does not give as many.
        (2 * threads).div_ceil(vectors.div_ceil(2)).max(rows.div_ceil(4 * fitting)).min(rows)
    } else {
        rows.div_ceil(fitting).next_multiple_of(threads).min(rows)
    };
    let groups: Vec<(usize, usize)> = split(0, rows, groups).map(|(first, len)| (first, first + len)).collect();
    // Parts of the output channels, as vectors: with few tiles enough of them for every thread.
    let parts = if shared { (threads.div_ceil(groups.len())).max(vectors.div_ceil(2)).min(vectors) } else { 1 };
    let parts: Vec<(usize, usize)> = split(0, vectors, parts).map(|(first, len)| (first, first + len)).collect();

    let multiply = |(group, part): (usize, usize), planes| Multiply {
        tiling,
        rows: groups[group],
        vectors: parts[part],
        blocks,
        filters: transformed,
        filter_layout,
        epilogue,
        planes,
    };
    let planes = distribute(tiling, &groups, &parts, lanes, out);
    if shared {
        let layouts: Vec<Layout> = groups.iter().map(|g| Layout::new((g.1 - g.0) * tiling.across, lanes)).collect();
        let block = layouts.iter().map(|l| l.block()).max().unwrap_or(0);
        let mut v = scratch::take(groups.len() * blocks * block);
        v.par_chunks_exact_mut(block).enumerate().with_max_len(1).for_each(|(i, out)| {
            let (group, block) = (i / blocks, i % blocks);
            let pixels = &mut scratch::take(input::scratch_len(tiling.width, lanes));
            simd::run(level, Input { tiling, x, block, rows: groups[group], layout: layouts[group], pixels, out });
        });
        let v = &*v;
        planes.into_par_iter().with_max_len(1).for_each(|(at, planes)| {
            let v = &v[at.0 * blocks * block..][..blocks * block];
            simd::run(level, Shared { multiply: multiply(at, planes), v, layout: layouts[at.0], block });
        });
    } else {
        planes.into_par_iter().with_max_len(1).for_each(|(at, planes)| {
            simd::run(level, Whole { multiply: multiply(at, planes), x });
        });
    }
}

/// (group, part) and the pieces of the output that belong to it.
type Piece<'a> = ((usize, usize), Vec<&'a mut [f32]>);

/// Cuts the output into the pieces of channels that each group and part writes: by image, then by channel.
fn distribute<'a>(
    tiling: &Tiling,
    groups: &[(usize, usize)],
    parts: &[(usize, usize)],
    lanes: usize,
    out: &'a mut [f32],
) -> Vec<Piece<'a>> {
    let mut pieces: Vec<Piece<'a>> = (0..groups.len()).flat_map(|g| (0..parts.len()).map(move |p| ((g, p), Vec::new()))).collect();
    let mut planes = out.chunks_exact_mut(tiling.out_height * tiling.out_width);
    for image in 0..tiling.batch {
        let (start, end) = (image * tiling.down, (image + 1) * tiling.down);
        let touching = groups.iter().enumerate().filter(|(_, g)| g.0 < end && start < g.1);
        for (p, part) in parts.iter().enumerate() {
            for mut plane in planes.by_ref().take((part.1 * lanes).min(tiling.out_channels) - part.0 * lanes) {
                for (g, group) in touching.clone() {
                    let rows = group.1.min(end) - group.0.max(start);
                    let len = (rows * 4 * tiling.out_width).min(plane.len());
                    let (piece, rest) = plane.split_at_mut(len);
                    pieces[g * parts.len() + p].1.push(piece);
                    plane = rest;
                }
            }
        }
    }
    pieces
}

/// Products and inverse transforms of a group of tile rows for some of the output channels.
struct Multiply<'a> {
    tiling: &'a Tiling,
    rows: (usize, usize),
    /// The vectors of output channels.
    vectors: (usize, usize),
    /// Blocks of input channels.
    blocks: usize,
    filters: &'a [f32],
    filter_layout: Layout,
    epilogue: Epilogue<'a>,
    /// The pieces to write, by image and channel.
    planes: Vec<&'a mut [f32]>,
}

impl Multiply<'_> {
    #[inline(always)]
    fn run<S: Simd>(&mut self, s: S, v: &[f32], layout: Layout, block: usize) {
        let l = S::LANES;
        let t = self.tiling;
        let tiles = (self.rows.1 - self.rows.0) * t.across;
        let mut m = scratch::take(2.min(self.vectors.1 - self.vectors.0) * layout.block());
        let mut pixels = scratch::take(output::scratch_len(t.out_width, l));
        for (vector, vectors) in pairs(self.vectors.0, self.vectors.1) {
            let filters = &self.filters[vector * self.filter_layout.block()..];
            for point in 0..POINTS {
                let product = Product {
                    a: &v[point * layout.point..],
                    a_block: block,
                    b: &filters[point * self.filter_layout.point..],
                    b_vector: self.filter_layout.block(),
                    c: &mut m[point * layout.point..],
                    c_vector: layout.block(),
                    vectors,
                    tiles,
                    blocks: self.blocks,
                };
                over_channels(s, product);
            }
            for i in 0..vectors {
                self.output(s, vector + i, &m[i * layout.block()..], layout, &mut pixels);
            }
        }
    }

    /// The inverse transform of one vector of output channels.
    #[inline(always)]
    fn output<S: Simd>(&mut self, s: S, vector: usize, m: &[f32], layout: Layout, pixels: &mut [f32]) {
        let l = S::LANES;
        let t = self.tiling;
        let first = vector * l;
        let count = l.min(t.out_channels - first);
        let channels = (self.vectors.1 * l).min(t.out_channels) - self.vectors.0 * l;
        let bias = match self.epilogue.bias {
            Some(bias) => s.load_part(&bias[first..], count),
            None => s.zero(),
        };
        let mut tile = 0;
        for (i, (_, top, bottom)) in t.segments(self.rows).enumerate() {
            let planes = &mut self.planes[i * channels + first - self.vectors.0 * l..][..count];
            for row in top..bottom {
                let o = Output { tiling: t, m: &m[tile * l..], layout, bias, silu: self.epilogue.silu };
                output_row(s, o, row, planes, (row - top) * 4 * t.out_width, pixels);
                tile += t.across;
            }
        }
    }
}

/// A group with its own transformed input.
struct Whole<'a> {
    multiply: Multiply<'a>,
    x: &'a [f32],
}

impl Task for Whole<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let m = &mut self.multiply;
        let (tiling, rows) = (m.tiling, m.rows);
        let layout = Layout::new((rows.1 - rows.0) * tiling.across, S::LANES);
        let mut v = scratch::take(m.blocks * layout.block());
        let mut pixels = scratch::take(input::scratch_len(tiling.width, S::LANES));
        for (block, out) in v.chunks_exact_mut(layout.block()).enumerate() {
            Input { tiling, x: self.x, block, rows, layout, pixels: &mut pixels, out }.run(s);
        }
        m.run(s, &v, layout, layout.block());
    }
}

/// Part of a group whose transformed input is shared.
struct Shared<'a> {
    multiply: Multiply<'a>,
    v: &'a [f32],
    layout: Layout,
    /// Stride between the blocks of `v`.
    block: usize,
}

impl Task for Shared<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        self.multiply.run(s, self.v, self.layout, self.block);
    }
}
