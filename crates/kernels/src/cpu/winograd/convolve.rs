//! Forward pass and gradient of the input: how the work is cut up.
//!
//! The rows of tiles, numbered through the batch, form groups. With many tiles a task is a group: it transforms all its input channels,
//! then for up to two vectors of output channels at a time multiplies and transforms back, in buffers small enough for the second-level
//! cache. With few tiles (deep layers, single images) groups would be too small to pay for reading all the filters, or there would be
//! fewer groups than threads: then all tasks first transform blocks of input channels of a shared buffer, and then each multiplies for
//! some of the output channels. Either way the arithmetic of an output does not depend on the division.
//!
//! Scratch: per thread the transformed input of a group, part of a cache or one row of
//! tiles (shared: less than [`FEW_TILES`] tiles per thread), its products with two vectors of output channels, and a few rows of pixels.

use std::ops::Range;

use rayon::prelude::*;

use super::super::machine::{FEW_TILES, machine};
use super::super::scratch;
use super::super::shape::Epilogue;
use super::super::simd::{self, Level};
use super::input::{self, Transform};
use super::output::{Output, output_row};
use super::product::{Product, over_channels};
use super::tiling::{Layout, POINTS, Tiling, pairs, split};
use crate::tasks::task;

/// Convolves `x` with filters that were [transformed](super::filter::Filters::transformed) for this level; writes all of `out`, of which there is some.
pub fn convolve(level: Level, tiling: &Tiling, filters: &[f32], x: &[f32], epilogue: Epilogue<'_>, out: &mut [f32]) {
    let lanes = level.form().lanes;
    let blocks = tiling.shape.in_channels.div_ceil(lanes);
    let vectors = tiling.shape.out_channels.div_ceil(lanes);

    let (shared, groups, parts) = divide(tiling, lanes, rayon::current_num_threads(), machine().group_bytes());
    let groups: Vec<Range<usize>> = split(0..tiling.rows(), groups).collect();
    let parts: Vec<Range<usize>> = split(0..vectors, parts).collect();
    let pieces = distribute(tiling, &groups, &parts, lanes, out).into_par_iter().with_max_len(1);
    if !shared {
        return pieces.for_each(|piece| multiply(level, tiling, piece, filters, epilogue, x, None));
    }
    let layout = |rows: &Range<usize>| Layout::new(rows.len() * tiling.across, lanes);
    let stride = groups.iter().map(|rows| layout(rows).block()).max().unwrap_or(0);
    let mut v = scratch::take(groups.len() * blocks * stride);
    v.par_chunks_exact_mut(stride).enumerate().with_max_len(1).for_each(|(i, out)| {
        let (rows, block) = (groups[i / blocks].clone(), i % blocks);
        let pixels = &mut scratch::take(input::scratch_len(tiling.shape.width, lanes));
        simd::run(level, Transform { tiling, values: x, block, layout: layout(&rows), rows, pixels, out });
    });
    let v = &*v;
    pieces.for_each(|piece| {
        let shared = &v[piece.group * blocks * stride..][..blocks * stride];
        multiply(level, tiling, piece, filters, epilogue, x, Some((shared, stride)));
    });
}

/// Whether all tasks share the transformed input of a group; the groups of tile rows, and the parts of the output channels.
fn divide(tiling: &Tiling, lanes: usize, threads: usize, group_bytes: usize) -> (bool, usize, usize) {
    let (blocks, vectors) = (tiling.shape.in_channels.div_ceil(lanes), tiling.shape.out_channels.div_ceil(lanes));
    let rows = tiling.rows();
    let shared = rows * tiling.across < FEW_TILES * threads;
    let tile_bytes = blocks * lanes * POINTS * size_of::<f32>();
    let fitting = (group_bytes / (tile_bytes * tiling.across)).max(1);
    if !shared {
        return (shared, rows.div_ceil(fitting).next_multiple_of(threads).min(rows), 1);
    }
    // Two tasks per thread, if dividing the output channels does not give as many.
    let groups = (2 * threads).div_ceil(vectors.div_ceil(2)).max(rows.div_ceil(4 * fitting)).min(rows);
    // With few tiles enough parts for every thread.
    (shared, groups, threads.div_ceil(groups).max(vectors.div_ceil(2)).min(vectors))
}

/// What a task computes: a group of tile rows for some vectors of output channels.
struct Piece<'a> {
    group: usize,
    rows: Range<usize>,
    vectors: Range<usize>,
    /// What it writes of the output, by image and channel.
    planes: Vec<&'a mut [f32]>,
}

/// Cuts the output into the pieces of each group and part.
fn distribute<'a>(tiling: &Tiling, groups: &[Range<usize>], parts: &[Range<usize>], lanes: usize, out: &'a mut [f32]) -> Vec<Piece<'a>> {
    let of_group = |(group, rows): (usize, Range<usize>)| {
        parts.iter().map(move |vectors| Piece { group, rows: rows.clone(), vectors: vectors.clone(), planes: Vec::new() })
    };
    let mut pieces: Vec<Piece<'a>> = groups.iter().cloned().enumerate().flat_map(of_group).collect();
    let mut planes = out.chunks_exact_mut(tiling.out_height * tiling.out_width);
    for image in 0..tiling.shape.batch {
        let (start, end) = (image * tiling.down, (image + 1) * tiling.down);
        let touching = groups.iter().enumerate().filter(|(_, g)| g.start < end && start < g.end);
        for (p, part) in parts.iter().enumerate() {
            for mut plane in planes.by_ref().take((part.end * lanes).min(tiling.shape.out_channels) - part.start * lanes) {
                for (g, group) in touching.clone() {
                    let rows = group.end.min(end) - group.start.max(start);
                    let len = (rows * 4 * tiling.out_width).min(plane.len());
                    let (piece, rest) = plane.split_at_mut(len);
                    pieces[g * parts.len() + p].planes.push(piece);
                    plane = rest;
                }
            }
        }
    }
    pieces
}

/// The transformed input of a group, where tasks share it: its blocks, and the stride between them.
type Shared<'a> = Option<(&'a [f32], usize)>;

task! {
    /// Products and inverse transforms of a piece. What is not shared of x it transforms itself.
    fn multiply<S, 'b>(s, t: &'a Tiling, piece: Piece<'b>, filters: &'a [f32], epilogue: Epilogue<'a>, x: &'a [f32], shared: Shared<'a>) {
        let (Piece { rows, vectors: of_piece, mut planes, .. }, l) = (piece, S::LANES);
        let (tiles, blocks) = (rows.len() * t.across, t.shape.in_channels.div_ceil(l));
        let (layout, filter_layout) = (Layout::new(tiles, l), Layout::new(blocks * l, l));
        let own;
        let (v, a_block) = match shared {
            Some(shared) => shared,
            None => {
                let mut transformed = scratch::take(blocks * layout.block());
                let mut pixels = scratch::take(input::scratch_len(t.shape.width, l));
                for (block, out) in transformed.chunks_exact_mut(layout.block()).enumerate() {
                    Transform { tiling: t, values: x, block, rows: rows.clone(), layout, pixels: &mut pixels, out }.run(s);
                }
                own = transformed;
                (&own[..], layout.block())
            }
        };
        let mut m = scratch::take(2.min(of_piece.len()) * layout.block());
        let mut pixels = scratch::take(4 * t.out_width * l);
        let (before, channels) = (of_piece.start * l, (of_piece.end * l).min(t.shape.out_channels) - of_piece.start * l);
        for (vector, vectors) in pairs(of_piece) {
            let filters = &filters[vector * filter_layout.block()..];
            for point in 0..POINTS {
                let (a, b) = (&v[point * layout.point..], &filters[point * filter_layout.point..]);
                let (c, b_vector, c_vector) = (&mut m[point * layout.point..], filter_layout.block(), layout.block());
                over_channels(s, Product { a, a_block, b, b_vector, c, c_vector, vectors, tiles, blocks });
            }
            for (first, m) in (vector * l..).step_by(l).zip(m.chunks_exact(layout.block())).take(vectors) {
                let count = l.min(t.shape.out_channels - first);
                let bias = if let Some(bias) = epilogue.bias { s.load_part(&bias[first..], count) } else { s.zero() };
                let mut tile = 0;
                for (i, (_, top, bottom)) in t.segments(rows.clone()).enumerate() {
                    let planes = &mut planes[i * channels + first - before..][..count];
                    for row in top..bottom {
                        let o = Output { tiling: t, m: &m[tile * l..], layout, bias, silu: epilogue.silu };
                        output_row(s, o, row, planes, (row - top) * 4 * t.out_width, &mut pixels);
                        tile += t.across;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::ConvShape;
    use super::*;

    /// The layers of YOLOv8n at 640 pixels: (channels in, out, size).
    const LAYERS: [(usize, usize, usize); 8] =
        [(16, 16, 160), (32, 32, 80), (64, 64, 40), (128, 128, 20), (64, 64, 80), (128, 64, 40), (256, 64, 20), (64, 64, 20)];

    #[test]
    fn every_thread_has_something_to_do() {
        for (in_channels, out_channels, size) in LAYERS {
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
            let (tiling, lanes) = (Tiling::new(&shape), 16);
            for threads in [1, 2, 16, 64] {
                let (_, groups, parts) = divide(&tiling, lanes, threads, 450 << 10);
                // The smallest layer has 100 tiles.
                let wanted = threads.min(tiling.rows() * tiling.across / 3);
                assert!(groups * parts >= wanted, "{groups} by {parts} tasks for {threads} threads, {shape:?}");
            }
        }
    }
}
