//! The gradient of the weights: a product whose sum runs over the pixels.
//!
//! The output's gradient is transposed strip by strip to `[group of channels][pixel][channel]`, so that a vector holds neighbouring
//! channels of one pixel; the input is packed as for the forward pass and read one value at a time. A block of pixels is short enough
//! for its part of the transposed gradient to stay in the first-level cache while all `(channel, tap)` rows of the input pass.
//!
//! Cells of two terms take them from the same pixel of two images, for which everything else is the same.
//!
//! Threads divide the pixels (and, when there are many, the output channels) in a fixed way, sum into accumulators of their own, and
//! the accumulators are added in order: the result depends on the number of threads but not on their timing.

use super::super::machine::{PIXEL_BLOCK, machine};
use super::super::scratch;
use super::super::shape::ConvShape;
use super::super::simd::{Form, Group, Level, MAX_LANES, ReduceTile, Simd};
use super::pack::{Ahead, pack_strip, plane, planes};
use super::view::{Source, View, forward_taps, largest};
use super::weights::share;
use crate::tasks::task;
use rayon::prelude::*;
use std::ops::Range;

struct Shared<'a> {
    shape: &'a ConvShape,
    view: &'a View,
    /// Where each `(channel, tap)` row of the packed input starts, or the first of some channels' rows for each tap.
    rows: &'a [u32],
    channels: Group,
    x: &'a [&'a [f32]],
    dy: &'a [f32],
    /// The planes of either.
    x_planes: &'a [&'a [f32]],
    dy_planes: &'a [&'a [f32]],
    /// Channels of a group (one or two vectors).
    group: usize,
}

/// [`cpu::weight_grad`](crate::cpu::weight_grad) at a level.
pub fn weight_grad(level: Level, shape: &ConvShape, x: &[&[f32]], dy: &[f32], dw: &mut [f32]) {
    let Form { lanes, terms, group: most, .. } = level.form();
    let cells = shape.batch.div_ceil(terms);
    let group = if shape.out_channels > lanes { 2 * lanes } else { lanes };
    let groups = shape.out_channels.div_ceil(group);
    let taps = forward_taps(shape);
    let size = Group::size_of(shape.in_channels, most);
    let source = Source { channels: shape.in_channels.next_multiple_of(size), height: shape.height, width: shape.width };
    let extent = [shape.out_height(), shape.out_width()];
    let mut view = View::new(source, [shape.stride, [1, 1]], extent, &taps, shape.out_channels, terms == 1);

    let (group_parts, pixel_parts) = divide(groups, rayon::current_num_threads());
    let groups_per_part = groups.div_ceil(group_parts);
    let strip = strip_rows(&view, cells, shape.out_channels, pixel_parts);
    view.set_strip(strip);
    let strips = cells * view.strips();
    let pixel_parts = pixel_parts.min(strips).max(1);

    let rows = view.offset_table(&taps, size);
    let channels = Group { size, apart: view.channel() };
    let x_planes = planes(x, shape.batch, shape.height * shape.width);
    let dy_planes = planes(&[dy], shape.batch, shape.out_height() * shape.out_width());
    let shared = Shared { shape, view: &view, rows: &rows, channels, x, dy, x_planes: &x_planes, dy_planes: &dy_planes, group };
    let size = rows.len() * channels.size * group;
    let mut sums = scratch::take(pixel_parts * groups * size);
    let mut parts = Vec::new();
    for (p, sums) in sums.chunks_exact_mut(groups * size).enumerate() {
        let strips = p * strips / pixel_parts..(p + 1) * strips / pixel_parts;
        for (g, sums) in sums.chunks_mut(groups_per_part * size).enumerate() {
            parts.push((strips.clone(), g * groups_per_part, sums));
        }
    }
    debug_assert_eq!(parts.len(), pixel_parts * group_parts);
    parts.into_par_iter().with_max_len(1).for_each(|(strips, first_group, sums)| sum(level, &shared, strips, first_group, sums));

    let depth = shape.in_channels * taps.len();
    let tasks = dw.chunks_mut(group * depth).enumerate().collect();
    share(tasks, depth * shape.out_channels, |(g, dw)| reduce(level, &shared, &sums[g * size..], groups * size, dw));
}

/// Parts of the groups and of the pixels. Up to four threads divide the pixels; more of them also divide the groups, for each division of the
/// pixels costs a set of sums.
fn divide(groups: usize, threads: usize) -> (usize, usize) {
    let per_part = groups.div_ceil(groups.min(threads.div_ceil(4)));
    let group_parts = groups.div_ceil(per_part);
    (group_parts, threads.div_ceil(group_parts))
}

/// Output rows of a strip: both operands within the cache limit, and at least two strips for every thread's share of the images.
fn strip_rows(view: &View, images: usize, channels: usize, parts: usize) -> usize {
    let most = largest(view.rows, |rows| view.strip_len(rows).max(rows * view.pitch * channels) <= machine().strip_cells());
    let wanted = if images.is_multiple_of(parts) { 1 } else { (2 * parts).div_ceil(images) };
    let strips = view.rows.div_ceil(most).max(wanted.min(view.rows)).max(1);
    view.rows.div_ceil(strips).max(1)
}

task! {
    /// Forms the sums of a range of strips (of all images, or pairs of them) for some groups:
    /// `[group][(channels, tap, channel of the channels)][channel of the group]`.
    fn sum<S>(s, shared: &'a Shared<'a>, strips: Range<usize>, first_group: usize, sums: &'a mut [f32]) {
        let Shared { shape, view, rows, channels: rows_of, x, x_planes, dy_planes, group, .. } = *shared;
        sums.fill(0.0);
        let size = rows.len() * rows_of.size * group;
        let part_groups = sums.len() / size;
        // A unit for matrices sums whole registers of pixels: those behind the run are zero in the gradient, and finite in the input.
        let longest = view.run(view.strip).next_multiple_of(S::GROUP);
        let strip_len = view.strip_len(view.strip);
        let mut buffer = scratch::take(if view.direct { 0 } else { strip_len + S::GROUP });
        if let Some(behind) = buffer.get_mut(strip_len..) {
            behind.fill(0.0);
        }
        let mut transposed = scratch::take(part_groups * longest * group);
        let mut unit = s.unit(rows_of.size, S::GROUP);
        let planes_of = |images: Range<usize>| &x_planes[images.start * shape.in_channels..images.end * shape.in_channels];
        for strip in strips.clone() {
            let (cell, row, count) = view.strip_at(strip);
            // What is read, and how many of the rows it has: in place they are several tensors', of one channel each.
            let sources: Vec<(&[f32], usize)> = if view.direct {
                let plane = shape.height * shape.width;
                let image = |x: &&'a [f32]| {
                    let len = x.len() / shape.batch;
                    (&x[cell * len..][row..len], len / plane)
                };
                x.iter().map(image).collect()
            } else {
                let (low, high) = planes_of(images(s, shape, cell)).split_at(shape.in_channels);
                pack_strip(s, view, |c| [plane(low, c), plane(high, c)], row, count, &mut buffer);
                vec![(&buffer[..], rows.len())]
            };
            let run = view.run(count);
            for (g, block) in transposed.chunks_exact_mut(longest * group).enumerate() {
                transpose_gradient(s, shared, cell, row, count, first_group + g, block);
                block[run * group..run.next_multiple_of(S::GROUP) * group].fill(0.0);
            }
            let run = run.next_multiple_of(S::GROUP);
            let blocks = run.div_ceil(PIXEL_BLOCK);
            let mut ahead = <[Ahead<'_>; 3]>::default();
            // Unpacked, the input is read in long runs, which the processor foresees itself.
            if strip + 1 < strips.end && !view.direct {
                let (cell, row, count) = view.strip_at(strip + 1);
                let images = images(s, shape, cell);
                ahead[0] = Ahead::new(planes_of(images.clone()), view.source_part(row, count));
                let channels = first_group * group..shape.out_channels.min((first_group + part_groups) * group);
                for (image, ahead) in images.zip(&mut ahead[1..]) {
                    let first = image * shape.out_channels;
                    let dy = &dy_planes[first + channels.start..first + channels.end];
                    *ahead = Ahead::new(dy, row * view.cols..(row + count) * view.cols);
                }
            }
            let shares = ahead.each_ref().map(|ahead| ahead.len().div_ceil(blocks * part_groups).next_multiple_of(16));
            let length = run.div_ceil(blocks.max(1)).next_multiple_of(S::GROUP);
            for from in (0..run).step_by(length.max(1)) {
                let length = length.min(run - from);
                for (b, sums) in transposed.chunks_exact(longest * group).zip(sums.chunks_exact_mut(size)) {
                    for (ahead, share) in ahead.iter_mut().zip(shares) {
                        ahead.advance(s, share);
                    }
                    let (b, mut sums) = (&b[from * group..][..length * group], sums);
                    for &(a, count) in &sources {
                        let (a, rows) = (&a[from..], &rows[..count]);
                        let (own, behind) = sums.split_at_mut(count * rows_of.size * group);
                        sums = behind;
                        // Rows per tile: as even as the limit allows.
                        let tile_rows = count.div_ceil(count.div_ceil(S::REDUCE_ROWS));
                        for (rows, c) in rows.chunks(tile_rows).zip(own.chunks_mut(tile_rows * rows_of.size * group)) {
                            let vectors = group / S::LANES;
                            s.reduce_tile(&mut unit, ReduceTile { a, rows, group: rows_of, b, ldb: group, length, c, ldc: group, vectors });
                        }
                    }
                }
            }
        }
    }

    /// Adds the parts' sums of one group, `stride` apart, and transposes them to the order of the weights; they are in the order
    /// `(channel / of, tap, channel % of)`.
    fn reduce<S>(s, shared: &'a Shared<'a>, sums: &'a [f32], stride: usize, dw: &'a mut [f32]) {
        let Shared { shape, channels: Group { size: of, .. }, group, .. } = *shared;
        let taps = shape.kernel[0] * shape.kernel[1];
        let depth = shape.in_channels * taps;
        let mut block = [0.0; MAX_LANES * MAX_LANES];
        let mut columns = [0.0; MAX_LANES * MAX_LANES];
        let outputs = dw.len() / depth;
        let all = depth.next_multiple_of(taps * of);
        // Where the weights, `[channel][tap]`, have what the sums have here.
        let place = |at: usize| (at / of / taps * of + at % of) * taps + at / of % taps;
        for k in (0..all).step_by(S::LANES) {
            let rows = S::LANES.min(all - k);
            for lane in (0..outputs).step_by(S::LANES) {
                for r in 0..rows {
                    let at = (k + r) * group + lane;
                    let mut v = s.load(&sums[at..]);
                    for part in sums[at..].chunks(stride).skip(1) {
                        v = s.add(v, s.load(part));
                    }
                    s.store(v, &mut block[r * S::LANES..]);
                }
                s.transpose(&block, S::LANES, rows, S::LANES, &mut columns, S::LANES);
                for c in 0..S::LANES.min(outputs - lane) {
                    let (dw, sums) = (&mut dw[(lane + c) * depth..][..depth], &columns[c * S::LANES..][..rows]);
                    if of == 1 {
                        dw[k..k + rows].copy_from_slice(sums);
                        continue;
                    }
                    for (at, &sum) in (k..).zip(sums) {
                        // Channels that fill up the last group have no weights.
                        if let Some(dw) = dw.get_mut(place(at)) {
                            *dw = sum;
                        }
                    }
                }
            }
        }
    }
}

/// The images, one or two, whose terms the `cell`-th cells hold.
#[inline(always)]
fn images<S: Simd>(_: S, shape: &ConvShape, cell: usize) -> Range<usize> {
    S::TERMS * cell..shape.batch.min(S::TERMS * (cell + 1))
}

/// Writes `[pixel of the run][channel of the group]`, junk pixels and missing channels zero.
#[inline(always)]
fn transpose_gradient<S: Simd>(s: S, shared: &Shared<'_>, cell: usize, row: usize, rows: usize, group: usize, dst: &mut [f32]) {
    let Shared { shape, view, dy, group: width, .. } = *shared;
    let plane = shape.out_height() * shape.out_width();
    // Without junk the rows of a strip are one.
    let (lines, len) = if view.pitch == view.cols { (1, rows * view.cols) } else { (rows, view.cols) };
    let images = images(s, shape, cell);
    // The cells' second terms, zero where there is no second image.
    let mut second = [0.0; MAX_LANES * MAX_LANES];
    for lane in (0..width).step_by(S::LANES) {
        let channel = group * width + lane;
        let channels = S::LANES.min(shape.out_channels.saturating_sub(channel));
        for line in 0..lines {
            let pixels = &mut dst[line * view.pitch * width..];
            if channels > 0 {
                let at = (images.start * shape.out_channels + channel) * plane + (row + line) * view.cols;
                for p in (0..len).step_by(S::LANES) {
                    let cols = S::LANES.min(len - p);
                    let cells = &mut pixels[p * width + lane..];
                    s.transpose(&dy[at + p..], plane, channels, cols, cells, width);
                    if S::TERMS == 2 {
                        if images.len() == 2 {
                            let src = &dy[at + p + shape.out_channels * plane..];
                            s.transpose(src, plane, channels, cols, &mut second, S::LANES);
                        }
                        for (c, second) in second.chunks_exact(S::LANES).enumerate().take(cols) {
                            let cells = &mut cells[c * width..];
                            s.store(s.cell(s.load(cells), s.load(second)), cells);
                        }
                    }
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

#[test]
fn every_thread_has_something_to_do() {
    for groups in 1..=32 {
        for threads in [1, 2, 3, 4, 7, 16, 64] {
            let (group_parts, pixel_parts) = divide(groups, threads);
            let tasks = group_parts * pixel_parts;
            assert!((threads..2 * threads).contains(&tasks), "{group_parts} by {pixel_parts} for {groups} groups, {threads} threads");
        }
    }
}
