//! Strips of the source, copied into planes.

use std::ops::Range;

use super::super::simd::{MAX_LANES, Simd};
use super::view::View;

/// Vector copy; rows here are too short for a call of memcpy to pay.
#[inline(always)]
pub fn copy<S: Simd>(s: S, src: &[f32], dst: &mut [f32]) {
    let (n, whole) = (src.len(), src.len() / S::LANES * S::LANES);
    let dst = &mut dst[..n];
    for i in (0..whole).step_by(S::LANES) {
        s.store(s.load(&src[i..]), &mut dst[i..]);
    }
    if whole < n {
        s.store_part(s.load_part(&src[whole..], n - whole), &mut dst[whole..], n - whole);
    }
}

/// `n <= LANES` values of `src`, `step` apart, then zeros; of an empty `src` zeros.
#[inline(always)]
fn gather<S: Simd>(s: S, step: usize, src: &[f32], n: usize) -> S::V {
    match step {
        _ if src.is_empty() => s.zero(),
        1 => s.load_part(src, n),
        2 => {
            let src = &src[..2 * n - 1];
            let low = s.load_part(src, src.len().min(S::LANES));
            let high = if src.len() > S::LANES { s.load_part(&src[S::LANES..], src.len() - S::LANES) } else { s.zero() };
            s.deinterleave2(low, high).0
        }
        step => {
            let mut values = [0.0; MAX_LANES];
            values[..n].iter_mut().zip(src.iter().step_by(step)).for_each(|(v, x)| *v = *x);
            s.load(&values)
        }
    }
}

/// Every second value of `src`, beginning with the first, until `dst` is full.
#[inline(always)]
fn copy_even<S: Simd>(s: S, src: &[f32], dst: &mut [f32]) {
    let n = dst.len();
    let src = &src[..2 * n - 1];
    let mut i = 0;
    while i + S::LANES < n {
        let (even, _) = s.deinterleave2(s.load(&src[2 * i..]), s.load(&src[2 * i + S::LANES..]));
        s.store(even, &mut dst[i..]);
        i += S::LANES;
    }
    s.store_part(gather(s, 2, &src[2 * i..], n - i), &mut dst[i..], n - i);
}

/// Cells of the values of `low` and `high`, `step` apart, until `dst` is full.
#[inline(always)]
fn copy_cells<S: Simd>(s: S, step: usize, low: &[f32], high: &[f32], dst: &mut [f32]) {
    match (S::TERMS, step) {
        (1, 1) => copy(s, &low[..dst.len()], dst),
        (1, 2) => copy_even(s, low, dst),
        (1, step) => dst.iter_mut().zip(low.iter().step_by(step)).for_each(|(d, x)| *d = *x),
        _ => {
            for i in (0..dst.len()).step_by(S::LANES) {
                let n = S::LANES.min(dst.len() - i);
                let low = gather(s, step, &low[i * step..], n);
                let high = gather(s, step, high.get(i * step..).unwrap_or(&[]), n);
                s.store_part(s.cell(low, high), &mut dst[i..], n);
            }
        }
    }
}

/// The planes of `images` images whose channels are those of several tensors side by side, each of them `[images, its channels, plane]`.
pub fn planes<'a>(tensors: &[&'a [f32]], images: usize, plane: usize) -> Vec<&'a [f32]> {
    let channels = |image: usize| {
        tensors.iter().flat_map(move |tensor| {
            let len = tensor.len() / images;
            tensor[image * len..][..len].chunks_exact(plane)
        })
    };
    (0..images).flat_map(channels).collect()
}

/// A plane of an image, empty where there is none.
#[inline(always)]
pub fn plane<'a>(image: &[&'a [f32]], c: usize) -> &'a [f32] {
    image.get(c).copied().unwrap_or(&[])
}

/// Packs the strip of `rows` output rows that begins at `row` into `dst` (see [`View`]). The cells of a channel are made of two planes; of an
/// empty second one, as where cells have one term, the terms are zero.
#[inline(always)]
pub fn pack_strip<'a, S: Simd>(s: S, view: &View, channel: impl Fn(usize) -> [&'a [f32]; 2], row: usize, rows: usize, dst: &mut [f32]) {
    let source = view.source;
    let mut planes = dst[..source.channels * view.channel()].chunks_exact_mut(view.plane);
    for c in 0..source.channels {
        let ([low, high], next) = (channel(c), channel(c + 1));
        if low.is_empty() {
            // What fills up a group.
            return planes.for_each(|plane| plane.fill(0.0));
        }
        if view.pointwise {
            let Some(plane) = planes.next() else { return };
            let run = row..row + rows;
            for next in next {
                s.prefetch(next.get(run.clone()).unwrap_or(&[]), false);
            }
            let (cells, behind) = plane.split_at_mut(rows);
            copy_cells(s, 1, &low[run.clone()], high.get(run).unwrap_or(&[]), cells);
            if S::GROUP > 1 {
                // A unit's last pixels are read here, and multiplied by zeros.
                behind.fill(0.0);
            }
            continue;
        }
        for (a, reach) in view.reach.iter().enumerate() {
            let top = view.source_row(row, a);
            for (p, column) in view.columns.iter().enumerate() {
                let Some(plane) = planes.next() else { return };
                let (cells, behind) = plane.split_at_mut((rows + reach) * view.pitch);
                for (r, cells) in cells.chunks_exact_mut(view.pitch).enumerate() {
                    let y = top + (r * view.step[0]) as isize;
                    if y < 0 || y >= source.height as isize || column.first == column.end {
                        cells.fill(0.0);
                        continue;
                    }
                    let line = y as usize * source.width..(y as usize + 1) * source.width;
                    // A strip has too few rows of a channel for the processor to foresee the next channel's.
                    if p == 0 {
                        for next in next {
                            s.prefetch(next.get(line.clone()).unwrap_or(&[]), false);
                        }
                    }
                    let from = (column.start + (column.first * view.step[1]) as isize) as usize;
                    let part = line.start + from..line.end;
                    cells[..column.first].fill(0.0);
                    let body = &mut cells[column.first..column.end];
                    copy_cells(s, view.step[1], &low[part.clone()], high.get(part).unwrap_or(&[]), body);
                    cells[column.end..].fill(0.0);
                }
                // The run's last row reads its right padding here.
                behind.fill(0.0);
            }
        }
    }
}

/// Source memory that will be packed later, to be brought to the second-level cache meanwhile: packing only moves memory and
/// multiplying hardly any, so that alternating between them without looking ahead leaves half of the machine idle at each moment. Nothing by default.
#[derive(Default)]
pub struct Ahead<'a> {
    planes: &'a [&'a [f32]],
    /// The part of each plane.
    part: Range<usize>,
    channel: usize,
    at: usize,
}

impl<'a> Ahead<'a> {
    pub fn new(planes: &'a [&'a [f32]], part: Range<usize>) -> Self {
        Self { planes, at: part.start, part, channel: 0 }
    }

    /// All there is, in floats.
    pub fn len(&self) -> usize {
        self.planes.len() * self.part.len()
    }

    /// Asks for the next `n` floats.
    #[inline(always)]
    pub fn advance<S: Simd>(&mut self, s: S, mut n: usize) {
        while n > 0 && self.channel < self.planes.len() {
            let step = n.min(self.part.end - self.at);
            s.prefetch(&self.planes[self.channel][self.at..][..step], false);
            n -= step;
            self.at += step;
            if self.at == self.part.end {
                (self.channel, self.at) = (self.channel + 1, self.part.start);
            }
        }
    }
}
