//! The instruction set of last resort: arrays of four floats, which compilers turn into SSE2, NEON or WebAssembly vectors.
//!
//! No `unsafe` and no intrinsics, so it also runs under Miri. `mul_add` is a multiplication and an addition: where a processor has no
//! fused instruction, `f32::mul_add` would be a library call per element.

use super::set::{PanelTile, ReduceTile, Simd, Tile, with_sizes};

/// Four lanes of plain arithmetic.
#[derive(Clone, Copy)]
pub struct Portable;

const L: usize = 4;
type V = [f32; L];

/// Applies `f` lane by lane.
#[inline(always)]
fn map2(a: V, b: V, f: impl Fn(f32, f32) -> f32) -> V {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// Reads up to four values, zeros after them.
#[inline(always)]
fn read(src: &[f32]) -> V {
    let mut v = [0.0; L];
    v[..src.len()].copy_from_slice(src);
    v
}

impl Portable {
    /// [`Simd::tile`] over `N` vectors of columns, the last of which has `last` columns.
    #[inline(always)]
    fn tile_columns<const N: usize>(self, t: Tile<'_>, last: usize) {
        let mut acc = [[[0.0; L]; N]; L];
        for (a, &offset) in t.a.chunks_exact(L).zip(&t.offsets.table) {
            let b = &t.b[offset as usize..];
            let mut bv = [[0.0; L]; N];
            for (j, v) in bv.iter_mut().enumerate() {
                *v = if j + 1 == N && last < L { read(&b[j * L..][..last]) } else { self.load(&b[j * L..]) };
            }
            for (row, &a) in acc.iter_mut().zip(a) {
                for (v, b) in row.iter_mut().zip(bv) {
                    *v = self.mul_add([a; L], b, *v);
                }
            }
        }
        for (i, row) in acc.iter().enumerate().take(t.rows) {
            for (j, v) in row.iter().enumerate() {
                let n = if j + 1 == N { last } else { L };
                let c = &mut t.c[i * t.ldc + j * L..][..n];
                let before = if t.accumulate { read(c) } else { [0.0; L] };
                self.store_part(self.add(before, *v), c, n);
            }
        }
    }
}

/// [`Simd::panel_tile`] over `N` vectors of columns, the last of which has `last` columns.
#[inline(always)]
fn panel<const N: usize>(t: PanelTile<'_, '_>, last: usize) {
    let s = Portable;
    let mut acc = [[[0.0; L]; N]; L];
    for (a, b) in t.a.chunks_exact(L).zip(t.b.chunks_exact(N * L)).take(t.depth) {
        let b: [V; N] = std::array::from_fn(|j| s.load(&b[j * L..]));
        for (row, &a) in acc.iter_mut().zip(a) {
            for (v, b) in row.iter_mut().zip(b) {
                *v = s.mul_add([a; L], b, *v);
            }
        }
    }
    for (c, row) in t.c.iter_mut().zip(&acc) {
        for (j, v) in row.iter().enumerate() {
            let n = if j + 1 == N { last } else { L };
            let c = &mut c[t.at + j * L..][..n];
            let before = if t.accumulate { read(c) } else { [0.0; L] };
            s.store_part(s.add(before, *v), c, n);
        }
    }
}

/// [`Simd::reduce_tile`] of `R` rows and `N` vectors.
#[inline(always)]
fn reduce<const R: usize, const N: usize>(t: ReduceTile<'_>) {
    let s = Portable;
    let mut acc = [[[0.0; L]; N]; R];
    let a: [&[f32]; R] = std::array::from_fn(|i| &t.a[t.rows[i] as usize..][..t.length]);
    for p in 0..t.length {
        let b: [V; N] = std::array::from_fn(|j| s.load(&t.b[p * t.ldb + j * L..]));
        for (row, a) in acc.iter_mut().zip(a) {
            for (v, b) in row.iter_mut().zip(b) {
                *v = s.mul_add([a[p]; L], b, *v);
            }
        }
    }
    for (i, row) in acc.into_iter().enumerate() {
        for (j, v) in row.into_iter().enumerate() {
            let c = &mut t.c[i * t.ldc + j * L..];
            s.store(s.add(s.load(c), v), c);
        }
    }
}

impl Simd for Portable {
    const LANES: usize = L;
    const MR: usize = 4;
    const REDUCE_ROWS: usize = 6;
    type V = V;
    type Unit = ();

    #[inline(always)]
    fn unit(self, _: usize, _: usize) {}

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [x; L]
    }
    #[inline(always)]
    fn load(self, src: &[f32]) -> V {
        [src[0], src[1], src[2], src[3]]
    }
    #[inline(always)]
    fn load_part(self, src: &[f32], n: usize) -> V {
        read(&src[..n])
    }
    #[inline(always)]
    fn store(self, v: V, dst: &mut [f32]) {
        dst[..L].copy_from_slice(&v);
    }
    #[inline(always)]
    fn store_part(self, v: V, dst: &mut [f32], n: usize) {
        dst[..n].copy_from_slice(&v[..n]);
    }
    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn mul_add(self, a: V, b: V, c: V) -> V {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        map2(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        map2(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn round(self, a: V) -> V {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn exp2_integer(self, n: V) -> V {
        // The exponent field of an IEEE float, biased by 127. (A NaN casts to 0; what it was part of is a NaN already.)
        n.map(|n| f32::from_bits(((n as i32 + 127) << 23) as u32))
    }
    #[inline(always)]
    fn deinterleave2(self, a: V, b: V) -> (V, V) {
        ([a[0], a[2], b[0], b[2]], [a[1], a[3], b[1], b[3]])
    }
    #[inline(always)]
    fn interleave2(self, a: V, b: V) -> (V, V) {
        ([a[0], b[0], a[1], b[1]], [a[2], b[2], a[3], b[3]])
    }
    #[inline(always)]
    fn transpose(self, src: &[f32], src_stride: usize, rows: usize, cols: usize, dst: &mut [f32], dst_stride: usize) {
        assert!(rows <= L && cols <= L);
        for c in 0..cols {
            let dst = &mut dst[c * dst_stride..][..L];
            for (r, d) in dst.iter_mut().enumerate() {
                *d = if r < rows { src[r * src_stride + c] } else { 0.0 };
            }
        }
    }
    #[inline(always)]
    fn prefetch_read<T>(self, _: &[T]) {}
    #[inline(always)]
    fn prefetch_write(self, _: &[f32]) {}
    #[inline(always)]
    fn panel_tile(self, _: &mut (), t: PanelTile<'_, '_>) {
        t.check(Self::MR, L);
        match t.cols.div_ceil(L) {
            1 => {
                let last = t.cols;
                panel::<1>(t, last)
            }
            2 => {
                let last = t.cols - L;
                panel::<2>(t, last)
            }
            _ => {
                let last = t.cols - 2 * L;
                panel::<3>(t, last)
            }
        }
    }
    #[inline(always)]
    fn tile(self, _: &mut (), t: Tile<'_>) {
        t.check(Self::MR, Self::NR);
        match t.cols.div_ceil(L) {
            1 => {
                let last = t.cols;
                self.tile_columns::<1>(t, last)
            }
            2 => {
                let last = t.cols - L;
                self.tile_columns::<2>(t, last)
            }
            _ => {
                let last = t.cols - 2 * L;
                self.tile_columns::<3>(t, last)
            }
        }
    }
    #[inline(always)]
    fn reduce_tile(self, _: &mut (), t: ReduceTile<'_>) {
        t.check(L, Self::REDUCE_ROWS, 1);
        with_sizes!(t, [1 2 3 4 5] 6, reduce)
    }
}
