//! The 36 matrix products in the middle: one per point, on blocks `[point][index][LANES]`.
//!
//! Forward and data gradient multiply `[tile][ci]` by `[ci][co]`, with lanes along co: per step of ci a register tile takes one or two
//! vectors of co and broadcasts one value for each of `MR` tiles. In a block the values of `MR` tiles are `MR * LANES` consecutive
//! floats, so every address in the inner loop is a constant offset, and slices of constant length need no checks there. The weight gradient
//! multiplies `[ci][tile]` by `[tile][co]`: the same register tile, the broadcast values being `MR` consecutive channels of one tile.
//!
//! Two vectors and not three, the `NR` of [`Simd::tile`]: 24 sums with the broadcasts that the compiler hoists exceed 32 registers, and two
//! already run at the rate of the multipliers.
//!
//! Long reductions are cut into segments whose sums are formed in registers from zero and then added to the result. That makes the
//! rounding error grow with the root of the segment instead of the whole, at no measurable cost: with segments of 64 the largest error of a
//! layer of 64 channels and 40x40 pixels is 7.4e-6 of the root mean square, with 32 it is 5.2e-6, with 16 4.1e-6.

use super::super::machine::SEGMENT;
use super::super::simd::{Simd, with_sizes};

/// One point of all the products: where its operands start is up to the caller, the strides are the blocks'.
pub struct Product<'a> {
    /// `[block][tile][LANES]`, and the stride between the blocks.
    pub a: &'a [f32],
    pub a_block: usize,
    /// `[vector][k][LANES]`, and the stride between the vectors.
    pub b: &'a [f32],
    pub b_vector: usize,
    /// `[vector][row][LANES]`, overwritten by [`over_channels`], added to by [`over_tiles`], and the stride between the vectors.
    pub c: &'a mut [f32],
    pub c_vector: usize,
    /// Vectors of columns: 1 or 2.
    pub vectors: usize,
    pub tiles: usize,
    /// Blocks of `LANES` channels in `a`.
    pub blocks: usize,
}

/// `c[tile][co] = sum over ci of a[tile][ci] * b[ci][co]`.
#[inline(always)]
pub fn over_channels<S: Simd>(s: S, p: Product<'_>) {
    let per_segment = SEGMENT / S::LANES;
    for first in (0..p.blocks).step_by(per_segment) {
        let blocks = per_segment.min(p.blocks - first);
        let a = &p.a[first * p.a_block..];
        let b = &p.b[first * S::LANES * S::LANES..];
        for tile in (0..p.tiles).step_by(S::MR) {
            let rows = S::MR.min(p.tiles - tile);
            let (a, c) = (&a[tile * S::LANES..], &mut p.c[tile * S::LANES..]);
            with_sizes!((rows, p.vectors), [1 2 3 4 5 6 7] 8, |R, N| {
                channels_tile::<S, R, N>(s, a, p.a_block, b, p.b_vector, c, p.c_vector, blocks, first > 0)
            });
        }
    }
}

/// A register tile of [`over_channels`]: `R` tiles by `N` vectors.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the innermost call: a struct would go through memory")]
fn channels_tile<S: Simd, const R: usize, const N: usize>(
    s: S,
    a: &[f32],
    a_block: usize,
    b: &[f32],
    b_vector: usize,
    c: &mut [f32],
    c_vector: usize,
    blocks: usize,
    add: bool,
) {
    let l = S::LANES;
    let mut acc = [[s.zero(); N]; R];
    for block in 0..blocks {
        let a = &a[block * a_block..][..R * l];
        let mut columns = [b; N];
        for (j, column) in columns.iter_mut().enumerate() {
            *column = &b[j * b_vector + block * l * l..][..l * l];
        }
        for k in 0..l {
            let mut bv = [s.zero(); N];
            for (v, column) in bv.iter_mut().zip(&columns) {
                *v = s.load(&column[k * l..k * l + l]);
            }
            for (i, row) in acc.iter_mut().enumerate() {
                let x = s.splat(a[i * l + k]);
                for (v, &b) in row.iter_mut().zip(&bv) {
                    *v = s.mul_add(x, b, *v);
                }
            }
        }
    }
    store(s, &acc, c, c_vector, add);
}

/// Writes a register tile to `c`, `[vector][row][LANES]`, or adds it to what is there.
#[inline(always)]
fn store<S: Simd, const R: usize, const N: usize>(s: S, acc: &[[S::V; N]; R], c: &mut [f32], c_vector: usize, add: bool) {
    for j in 0..N {
        for (row, c) in acc.iter().zip(c[j * c_vector..][..R * S::LANES].chunks_exact_mut(S::LANES)) {
            s.store(if add { s.add(s.load(c), row[j]) } else { row[j] }, c);
        }
    }
}

/// `c[ci][co] += sum over tiles of a[tile][ci] * b[tile][co]`; `c` has `blocks * LANES` rows.
#[inline(always)]
pub fn over_tiles<S: Simd>(s: S, p: Product<'_>) {
    let l = S::LANES;
    for first in (0..p.tiles).step_by(SEGMENT) {
        let tiles = SEGMENT.min(p.tiles - first);
        for block in 0..p.blocks {
            let a = &p.a[block * p.a_block + first * l..][..tiles * l];
            for row in (0..l).step_by(S::MR) {
                let c = &mut p.c[(block * l + row) * l..];
                let b = &p.b[first * l..];
                with_sizes!((S::MR, p.vectors), [1 2 3 4 5 6 7] 8, |R, N| tiles_tile::<S, R, N>(s, a, row, b, p.b_vector, c, p.c_vector));
            }
        }
    }
}

/// A register tile of [`over_tiles`]: the `R` channels from `row` on, by `N` vectors.
#[inline(always)]
fn tiles_tile<S: Simd, const R: usize, const N: usize>(
    s: S,
    a: &[f32],
    row: usize,
    b: &[f32],
    b_vector: usize,
    c: &mut [f32],
    c_vector: usize,
) {
    let l = S::LANES;
    let mut columns = [b; N];
    for (j, column) in columns.iter_mut().enumerate() {
        *column = &b[j * b_vector..][..a.len()];
    }
    let mut acc = [[s.zero(); N]; R];
    for (t, a) in a.chunks_exact(l).enumerate() {
        let mut bv = [s.zero(); N];
        for (v, column) in bv.iter_mut().zip(&columns) {
            *v = s.load(&column[t * l..t * l + l]);
        }
        let a = &a[row..row + R];
        for (i, row) in acc.iter_mut().enumerate() {
            let x = s.splat(a[i]);
            for (v, &b) in row.iter_mut().zip(&bv) {
                *v = s.mul_add(x, b, *v);
            }
        }
    }
    store(s, &acc, c, c_vector, true);
}
