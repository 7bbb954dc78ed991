//! The gradient of the weights: a product whose sum runs over the pixels.
//!
//! The output's gradient is transposed strip by strip to `[group of channels][pixel][channel]`, so that a vector holds neighbouring
//! channels of one pixel; the input is packed as for the forward pass and read one value at a time. A block of pixels is short enough
//! for its part of the transposed gradient to stay in the first-level cache while all `(channel, tap)` rows of the input pass.
//!
//! Threads divide the pixels (and, when there are many, the output channels) in a fixed way, sum into accumulators of their own, and
//! the accumulators are added in order: the result depends on the number of threads but not on their timing.

use super::super::simd::{self, ReduceTile, Simd, Task};
use super::super::{ConvShape, scratch};
use super::pack::{Ahead, pack_strip};
use super::product::STRIP_LIMIT;
use super::view::{Source, View};
use rayon::prelude::*;

/// Pixels of a block: 24 KB of the transposed gradient at 32 channels.
const BLOCK: usize = 192;

/// What every worker needs.
struct Shared<'a> {
    shape: &'a ConvShape,
    view: &'a View,
    /// Where each `(channel, tap)` row of the packed input starts.
    rows: &'a [u32],
    x: &'a [f32],
    dy: &'a [f32],
    /// Channels of a group (one or two vectors) and number of groups.
    group: usize,
    groups: usize,
}

/// A range of strips (of all images) and of groups.
struct Part<'a, 'b> {
    shared: &'a Shared<'a>,
    strips: std::ops::Range<usize>,
    first_group: usize,
    /// `[group][(channel, tap)][channel of the group]`.
    sums: &'b mut [f32],
}

/// See [`super::super::weight_grad`].
pub fn weight_grad(shape: &ConvShape, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    let level = simd::level();
    let lanes = simd::run(level, Lanes);
    let group = if shape.out_channels > lanes { 2 * lanes } else { lanes };
    let groups = shape.out_channels.div_ceil(group);
    let taps = super::forward_taps(shape);
    let source = Source { channels: shape.in_channels, height: shape.height, width: shape.width };
    let mut view = View::new(source, shape.stride, [1, 1], [shape.out_height(), shape.out_width()], &taps, shape.out_channels);

    // Up to four threads divide the pixels; more of them also divide the groups, for each division of the pixels costs a set of sums.
    let threads = rayon::current_num_threads();
    let group_parts = groups.min(threads.div_ceil(4));
    let pixel_parts = threads.div_ceil(group_parts);
    let groups_per_part = groups.div_ceil(group_parts);
    let group_parts = groups.div_ceil(groups_per_part);
    let strip = strip_rows(&view, shape, pixel_parts);
    view.set_strip(strip);
    let strips = shape.batch * view.rows.div_ceil(strip);
    let pixel_parts = pixel_parts.min(strips).max(1);

    let rows = view.offset_table(&taps);
    let shared = Shared { shape, view: &view, rows: &rows, x, dy, group, groups };
    let size = rows.len() * group;
    let mut sums = scratch::take(pixel_parts * groups * size);
    let mut parts = Vec::new();
    for (p, sums) in sums.chunks_exact_mut(groups * size).enumerate() {
        let strips = p * strips / pixel_parts..(p + 1) * strips / pixel_parts;
        for (g, sums) in sums.chunks_mut(groups_per_part * size).enumerate() {
            parts.push(Part { shared: &shared, strips: strips.clone(), first_group: g * groups_per_part, sums });
        }
    }
    debug_assert_eq!(parts.len(), pixel_parts * group_parts);
    parts.into_par_iter().with_max_len(1).for_each(|part| simd::run(level, part));

    let depth = rows.len();
    let reduce =
        |(g, dw): (usize, &mut [f32])| simd::run(level, Reduce { sums: &sums, stride: groups * size, first: g * size, group, depth, dw });
    let chunks = dw.chunks_mut(group * depth).enumerate();
    if depth * shape.out_channels < 1 << 15 {
        chunks.for_each(reduce);
    } else {
        let chunks: Vec<_> = chunks.collect();
        chunks.into_par_iter().with_max_len(1).for_each(reduce);
    }
}

/// Output rows of a strip: both operands within the cache limit, and at least two strips for every thread's share of the images.
fn strip_rows(view: &View, shape: &ConvShape, parts: usize) -> usize {
    let width = shape.out_channels * view.pitch;
    let len = |rows: usize| view.strip_len(rows).max(rows * width);
    let most = (1..=view.rows.max(1)).rev().find(|&rows| len(rows) <= STRIP_LIMIT).unwrap_or(1);
    let wanted = if shape.batch.is_multiple_of(parts) { 1 } else { (2 * parts).div_ceil(shape.batch) };
    let strips = view.rows.div_ceil(most).max(wanted.min(view.rows)).max(1);
    view.rows.div_ceil(strips).max(1)
}

/// Asks an instruction set for its width.
struct Lanes;

impl Task for Lanes {
    type Out = usize;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> usize {
        S::LANES
    }
}

impl Task for Part<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Shared { shape, view, rows, x: all_x, dy, group, groups } = *self.shared;
        self.sums.fill(0.0);
        let size = rows.len() * group;
        let part_groups = self.sums.len() / size;
        let image_len = shape.in_channels * shape.height * shape.width;
        let gradient_plane = shape.out_height() * shape.out_width();
        let strips_per_image = view.rows.div_ceil(view.strip);
        let longest = view.run(view.strip);
        let mut buffer = scratch::take(if view.direct { 0 } else { view.strip_len(view.strip) });
        let mut transposed = scratch::take(part_groups * longest * group);
        // Rows per tile: as even as the limit allows.
        let tiles = rows.len().div_ceil(S::REDUCE_ROWS);
        let tile_rows = rows.len().div_ceil(tiles);
        debug_assert!(self.first_group + part_groups <= groups);
        for strip in self.strips.clone() {
            let (image, row) = (strip / strips_per_image, strip % strips_per_image * view.strip);
            let count = view.strip.min(view.rows - row);
            let x = &all_x[image * image_len..][..image_len];
            let source = if view.direct {
                &x[row..]
            } else {
                pack_strip(s, view, x, row, count, &mut buffer);
                &buffer[..]
            };
            let run = view.run(count);
            for (g, block) in transposed.chunks_exact_mut(longest * group).enumerate() {
                transpose_gradient(s, self.shared, image, row, count, self.first_group + g, block);
            }
            let blocks = run.div_ceil(BLOCK);
            let (mut x_ahead, mut dy_ahead) = (Ahead::nothing(), Ahead::nothing());
            // Unpacked, the input is read in long runs, which the processor foresees itself.
            if strip + 1 < self.strips.end && !view.direct {
                let (image, row) = ((strip + 1) / strips_per_image, (strip + 1) % strips_per_image * view.strip);
                let count = view.strip.min(view.rows - row);
                let (source, y) = (view.source, view.source_rows(row, count));
                x_ahead = Ahead::new(
                    &all_x[image * image_len..][..image_len],
                    source.height * source.width,
                    y.start * source.width..y.end * source.width,
                );
                let dy = &dy[image * shape.out_channels * gradient_plane..][..shape.out_channels * gradient_plane];
                let channels = self.first_group * group..shape.out_channels.min((self.first_group + part_groups) * group);
                let dy = &dy[channels.start * gradient_plane..channels.end * gradient_plane];
                dy_ahead = Ahead::new(dy, gradient_plane, row * view.cols..(row + count) * view.cols);
            }
            let share = |ahead: &Ahead<'_>| ahead.len().div_ceil(blocks * part_groups).next_multiple_of(16);
            let shares = (share(&x_ahead), share(&dy_ahead));
            let length = run.div_ceil(blocks.max(1));
            for from in (0..run).step_by(length.max(1)) {
                let length = length.min(run - from);
                for (b, sums) in transposed.chunks_exact(longest * group).zip(self.sums.chunks_exact_mut(size)) {
                    x_ahead.advance(s, shares.0);
                    dy_ahead.advance(s, shares.1);
                    let b = &b[from * group..][..length * group];
                    for (rows, c) in rows.chunks(tile_rows).zip(sums.chunks_mut(tile_rows * group)) {
                        s.reduce_tile(ReduceTile {
                            a: &source[from..],
                            rows,
                            b,
                            ldb: group,
                            length,
                            c,
                            ldc: group,
                            vectors: group / S::LANES,
                        });
                    }
                }
            }
        }
    }
}

/// Writes `[pixel of the run][channel of the group]`, junk pixels and missing channels zero.
#[inline(always)]
fn transpose_gradient<S: Simd>(s: S, shared: &Shared<'_>, image: usize, row: usize, rows: usize, group: usize, dst: &mut [f32]) {
    let Shared { shape, view, dy, group: width, .. } = *shared;
    let plane = shape.out_height() * shape.out_width();
    // Without junk the rows of a strip are one.
    let (lines, len) = if view.pitch == view.cols { (1, rows * view.cols) } else { (rows, view.cols) };
    for lane in (0..width).step_by(S::LANES) {
        let channel = group * width + lane;
        let channels = S::LANES.min(shape.out_channels.saturating_sub(channel));
        for line in 0..lines {
            let pixels = &mut dst[line * view.pitch * width..];
            if channels > 0 {
                let src = &dy[(image * shape.out_channels + channel) * plane + (row + line) * view.cols..];
                for p in (0..len).step_by(S::LANES) {
                    let cols = S::LANES.min(len - p);
                    s.transpose(&src[p..], plane, channels, cols, &mut pixels[p * width + lane..], width);
                }
            }
            let junk = if line + 1 < lines { view.pitch - len } else { 0 };
            let zeros = if channels > 0 { len..len + junk } else { 0..len + junk };
            for p in zeros {
                s.store(s.zero(), &mut pixels[p * width + lane..]);
            }
        }
    }
}

/// Adds the parts' sums of one group and transposes them to the order of the weights.
struct Reduce<'a> {
    sums: &'a [f32],
    /// Distance of the parts, and where the group is in each.
    stride: usize,
    first: usize,
    group: usize,
    depth: usize,
    dw: &'a mut [f32],
}

impl Task for Reduce<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut block = [0.0; MAX_LANES * MAX_LANES];
        let mut columns = [0.0; MAX_LANES * MAX_LANES];
        let channels = self.dw.len() / self.depth;
        for k in (0..self.depth).step_by(S::LANES) {
            let rows = S::LANES.min(self.depth - k);
            for lane in (0..channels).step_by(S::LANES) {
                for r in 0..rows {
                    let at = self.first + (k + r) * self.group + lane;
                    let mut v = s.load(&self.sums[at..]);
                    for part in self.sums[at..].chunks(self.stride).skip(1) {
                        v = s.add(v, s.load(part));
                    }
                    s.store(v, &mut block[r * S::LANES..]);
                }
                s.transpose(&block, S::LANES, rows, S::LANES, &mut columns, S::LANES);
                for c in 0..S::LANES.min(channels - lane) {
                    self.dw[(lane + c) * self.depth + k..][..rows].copy_from_slice(&columns[c * S::LANES..][..rows]);
                }
            }
        }
    }
}

/// Largest number of lanes of any instruction set.
const MAX_LANES: usize = 16;
