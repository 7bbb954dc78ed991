//! From points to NCHW: `A^T m A`, the epilogue, and the transpose back to rows of pixels.
//!
//! Lanes are output channels, so the bias is one vector. A row of tiles becomes up to four image rows `[pixel][LANES]` in scratch, and
//! squares of those are transposed to the channels' planes. A plane may be divided among tasks, so each channel's piece is its own slice.

use super::super::simd::Simd;
use super::input::aligned;
use super::tiling::{Layout, Tiling};
use super::transform;

/// The inverse transform of one vector of channels.
pub struct Output<'a, V> {
    pub tiling: &'a Tiling,
    /// `[point][tile][LANES]` of the vector, from the row's first tile on.
    pub m: &'a [f32],
    pub layout: Layout,
    pub bias: V,
    pub silu: bool,
}

/// Writes the tile row `row` of an image; `planes` are the channels' pieces, in which the tile row begins at `at`, `pixels` room for four image rows
/// of all lanes.
#[inline(always)]
pub fn output_row<S: Simd>(s: S, o: Output<'_, S::V>, row: usize, planes: &mut [&mut [f32]], at: usize, pixels: &mut [f32]) {
    let l = S::LANES;
    let t = o.tiling;
    let rows = 4.min(t.out_height - 4 * row);
    for tile in 0..t.across {
        let mut half = [[s.zero(); 4]; 6];
        for (j, h) in half.iter_mut().enumerate() {
            let mut m = [s.zero(); 6];
            for (i, v) in m.iter_mut().enumerate() {
                *v = s.load(&o.m[(i * 6 + j) * o.layout.point + tile * l..][..l]);
            }
            *h = transform::output(s, m);
        }
        let columns = 4.min(t.out_width - 4 * tile);
        for i in 0..rows {
            let [a, b, c, d, e, f] = &half;
            let y = transform::output(s, [a[i], b[i], c[i], d[i], e[i], f[i]]);
            let pixels = &mut pixels[(i * t.out_width + 4 * tile) * l..][..columns * l];
            for (&y, pixel) in y.iter().zip(pixels.chunks_exact_mut(l)) {
                let y = s.add(y, o.bias);
                s.store(if o.silu { s.silu(y) } else { y }, pixel);
            }
        }
    }
    let len = rows * t.out_width;
    for (first, count) in aligned(&planes[0][at..at + len], l) {
        s.transpose_rows(&pixels[first * l..], l, count, planes, at + first);
    }
}
