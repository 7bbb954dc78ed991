//! From NCHW images to points: `B^T d B` of 6x6 input tiles, and `A y A^T` of 4x4 tiles of the output's gradient.
//!
//! Lanes are channels. A strip of pixels of `LANES` channels is transposed to `[pixel][LANES]`, without regard to where image rows begin
//! and end, so no image size wastes lanes; the tiles are then read from there, with zeros for the pixels outside the image. A result is
//! one cache line of the block `[point][tile][LANES]`.
//!
//! Neighbouring input tiles share two rows and two columns. The shared pixels stay in two alternating strips of four image rows, and the
//! columns already transformed vertically stay in a ring of eight, so that no pixel is transposed and no column transformed twice:
//! a tile costs 4 + 6 one-dimensional transforms instead of 12.

use std::ops::Range;

use super::super::simd::{Simd, Task};
use super::tiling::{Layout, Tiling};
use super::transform;

/// The channels of `block` in image `image` of `x`, which has so many of so many pixels: `[channel][height][width]`, at most `lanes` of them.
fn channels(x: &[f32], [total, pixels]: [usize; 2], image: usize, block: usize, lanes: usize) -> &[f32] {
    &x[(image * total + block * lanes) * pixels..][..lanes.min(total - block * lanes) * pixels]
}

/// `out[i][lane] = ` pixel `start + i` of channel `lane`, of so many `pixels` each, zero outside the image, for `i < len`.
///
/// `out` needs room for whole vectors of pixels.
#[inline(always)]
fn transpose<S: Simd>(s: S, channels: &[f32], pixels: usize, start: isize, len: usize, out: &mut [f32]) {
    let (l, count) = (S::LANES, channels.len() / pixels);
    let inside = |i: isize| (i.max(0) as usize).min(pixels);
    let (first, end) = (inside(start), inside(start + len as isize));
    if first == end {
        return out[..len * l].fill(0.0);
    }
    let before = (first as isize - start) as usize;
    out[..before * l].fill(0.0);
    out[(before + end - first) * l..len * l].fill(0.0);
    for (at, len) in aligned(&channels[first..end], l) {
        s.transpose(&channels[first + at..], pixels, count, len, &mut out[(before + at) * l..], l);
    }
}

/// Cuts `data` into runs of up to `lanes` values that, but for the first, begin on a vector boundary: (start, length).
///
/// A vector that straddles two cache lines needs both, and the next needs one of them again: by then it may be gone if the channels lie
/// a multiple of 4096 bytes apart, as those of 160x160 pixels do.
#[inline(always)]
pub fn aligned(data: &[f32], lanes: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
    let (len, odd) = (data.len(), data.as_ptr().align_offset(lanes * size_of::<f32>()));
    let first = if 0 < odd && odd < lanes { odd } else { lanes };
    let starts = std::iter::once(0).chain((first..len).step_by(lanes));
    starts.map(move |start| (start, if start == 0 { first } else { lanes }.min(len - start)))
}

/// Floats of pixel scratch that the tasks below need.
pub fn scratch_len(width: usize, lanes: usize) -> usize {
    2 * strip_len(width, lanes)
}

/// Four image rows of one block of channels, with room for a last whole square.
fn strip_len(width: usize, lanes: usize) -> usize {
    (4 * width + lanes) * lanes
}

/// Transforms one block of channels of some rows of tiles: as a task those of the input.
pub struct Transform<'a> {
    pub tiling: &'a Tiling,
    /// The input, or the output's gradient.
    pub values: &'a [f32],
    pub block: usize,
    pub rows: Range<usize>,
    /// Of `out`, over the tiles of the rows.
    pub layout: Layout,
    pub pixels: &'a mut [f32],
    pub out: &'a mut [f32],
}

impl Task for Transform<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let l = S::LANES;
        let (t, pixels) = (self.tiling, self.tiling.shape.height * self.tiling.shape.width);
        let (mut upper, mut lower) = self.pixels.split_at_mut(strip_len(t.shape.width, l));
        let mut tile = 0;
        for (image, top, bottom) in t.segments(self.rows) {
            let channels = channels(self.values, [t.shape.in_channels, pixels], image, self.block, l);
            let start = |row: usize| (4 * row as isize - t.shape.padding[0] as isize) * t.shape.width as isize;
            transpose(s, channels, pixels, start(top), 4 * t.shape.width, upper);
            for row in top..bottom {
                // Below the last row of tiles only two rows of pixels are looked at.
                let rows = if row + 1 == bottom { 2 } else { 4 };
                transpose(s, channels, pixels, start(row + 1), rows * t.shape.width, lower);
                input_row(s, t, upper, lower, self.layout, &mut self.out[tile * l..]);
                tile += t.across;
                std::mem::swap(&mut upper, &mut lower);
            }
        }
    }
}

impl Transform<'_> {
    /// The task for the output's gradient.
    #[inline(always)]
    pub fn gradient<S: Simd>(self, s: S) {
        let l = S::LANES;
        let (t, pixels) = (self.tiling, self.tiling.out_height * self.tiling.out_width);
        let mut tile = 0;
        for (image, top, bottom) in t.segments(self.rows) {
            let channels = channels(self.values, [t.shape.out_channels, pixels], image, self.block, l);
            for row in top..bottom {
                transpose(s, channels, pixels, (4 * row * t.out_width) as isize, 4 * t.out_width, self.pixels);
                gradient_row(s, t, self.pixels, self.layout, &mut self.out[tile * l..]);
                tile += t.across;
            }
        }
    }
}

/// One row of tiles; `upper` holds its first four rows of pixels and `lower` the other two.
#[inline(always)]
fn input_row<S: Simd>(s: S, t: &Tiling, upper: &[f32], lower: &[f32], layout: Layout, out: &mut [f32]) {
    let l = S::LANES;
    let stride = t.shape.width * l;
    let mut rows = [&upper[..stride]; 6];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = if i < 4 { &upper[i * stride..][..stride] } else { &lower[(i - 4) * stride..][..stride] };
    }
    let mut ring = [[s.zero(); 6]; 8];
    for tile in 0..t.across {
        // Columns 0 and 1 of all tiles but the first are the last tile's 4 and 5.
        for column in if tile == 0 { 0 } else { 2 }..6 {
            let column = 4 * tile + column;
            ring[column % 8] = if column >= t.shape.padding[1] && column - t.shape.padding[1] < t.shape.width {
                let at = (column - t.shape.padding[1]) * l;
                let mut d = [s.zero(); 6];
                for (v, row) in d.iter_mut().zip(&rows) {
                    *v = s.load(&row[at..at + l]);
                }
                transform::input(s, d)
            } else {
                [s.zero(); 6]
            };
        }
        for i in 0..6 {
            let mut d = [s.zero(); 6];
            for (j, v) in d.iter_mut().enumerate() {
                *v = ring[(4 * tile + j) % 8][i];
            }
            let points = transform::input(s, d);
            for (j, &v) in points.iter().enumerate() {
                s.store(v, &mut out[(i * 6 + j) * layout.point + tile * l..][..l]);
            }
        }
    }
}

/// One row of tiles of the output's gradient.
#[inline(always)]
fn gradient_row<S: Simd>(s: S, t: &Tiling, pixels: &[f32], layout: Layout, out: &mut [f32]) {
    let l = S::LANES;
    let stride = t.out_width * l;
    for tile in 0..t.across {
        let mut half = [[s.zero(); 6]; 4];
        for (j, h) in half.iter_mut().enumerate() {
            let column = 4 * tile + j;
            if column < t.out_width {
                let mut y = [s.zero(); 4];
                for (i, v) in y.iter_mut().enumerate() {
                    *v = s.load(&pixels[i * stride + column * l..][..l]);
                }
                *h = transform::gradient(s, y);
            }
        }
        for i in 0..6 {
            let points = transform::gradient(s, [half[0][i], half[1][i], half[2][i], half[3][i]]);
            for (j, &v) in points.iter().enumerate() {
                s.store(v, &mut out[(i * 6 + j) * layout.point + tile * l..][..l]);
            }
        }
    }
}
