//! The instruction set of last resort: arrays of four floats, which compilers turn into SSE2, NEON or WebAssembly vectors.
//!
//! No `unsafe` and no intrinsics, so it also runs under Miri. `mul_add` is a multiplication and an addition: where a processor has no
//! fused instruction, `f32::mul_add` would be a library call per element.
//!
//! The number of lanes and what a cell holds are the type's, so that the tests have on every processor a model of the sets that multiply pairs
//! of bf16: arrays of sixteen.

use std::marker::PhantomData;

use super::set::{ReduceTile, Simd, Tile, Vectors, with_sizes};

/// What a cell of 32 bits holds: one f32, if it does not say otherwise.
pub trait Cells: Copy + Send + Sync + 'static {
    /// [`Simd::TERMS`].
    const TERMS: usize = 1;
    /// The cell of two terms.
    #[inline(always)]
    fn cell(low: f32, _high: f32) -> f32 {
        low
    }
    /// `c + a b`.
    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

/// One f32.
#[derive(Clone, Copy)]
pub struct Single;

impl Cells for Single {}

/// `L` lanes of plain arithmetic, tiles of `MR` rows.
#[derive(Clone, Copy)]
pub struct Arrays<C, const L: usize, const MR: usize>(PhantomData<C>);

/// What every processor has.
pub type Portable = Arrays<Single, 4, 4>;

impl<C, const L: usize, const MR: usize> Arrays<C, L, MR> {
    /// Needs no proof.
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

/// Methods that compute each lane from the same lane of what they are given.
macro_rules! lanewise {
    ($($name:ident($($lane:ident),*) = $value:expr;)*) => {
        $(
            #[inline(always)]
            fn $name(self, $($lane: Self::V),*) -> Self::V {
                std::array::from_fn(|i| {
                    $(let $lane = $lane[i];)*
                    $value
                })
            }
        )*
    };
}

/// Reads up to `L` values, zeros after them.
#[inline(always)]
fn read<const L: usize>(src: &[f32]) -> [f32; L] {
    let mut v = [0.0; L];
    v[..src.len()].copy_from_slice(src);
    v
}

/// `acc += a b` of rows of vectors, a broadcast.
#[inline(always)]
fn multiply_rows<C: Cells, const L: usize, const N: usize>(acc: &mut [[[f32; L]; N]], a: &[f32], b: [[f32; L]; N]) {
    for (row, &a) in acc.iter_mut().zip(a) {
        for (v, b) in row.iter_mut().zip(b) {
            *v = std::array::from_fn(|i| C::multiply_add(a, b[i], v[i]));
        }
    }
}

impl<C: Cells, const L: usize, const MR: usize> Arrays<C, L, MR> {
    /// [`Simd::tile`] over `N` vectors of columns, the last of which has `last` columns.
    #[inline(always)]
    fn tile_columns<const N: usize>(self, mut t: Tile<'_, '_>, last: usize) {
        let mut acc = [[[0.0; L]; N]; MR];
        for (k, a) in t.a.chunks_exact(MR).enumerate().take(t.starts.depth()) {
            let b = &t.b[t.starts.at(k, N * L)..];
            let b = std::array::from_fn(|j| if j + 1 == N && last < L { read(&b[j * L..][..last]) } else { self.load(&b[j * L..]) });
            multiply_rows::<C, L, N>(&mut acc, a, b);
        }
        for (i, row) in acc.iter().enumerate().take(t.rows) {
            for (j, v) in row.iter().enumerate() {
                let n = if j + 1 == N { last } else { L };
                let c = &mut t.c.row(i)[j * L..][..n];
                let before = if t.accumulate { read(c) } else { [0.0; L] };
                self.store_part(self.add(before, *v), c, n);
            }
        }
    }

    /// [`Simd::reduce_tile`] of `R` rows and `N` vectors.
    #[inline(always)]
    fn reduce<const R: usize, const N: usize>(t: ReduceTile<'_>) {
        let s = Self::new();
        let mut acc = [[[0.0; L]; N]; R];
        let a: [&[f32]; R] = std::array::from_fn(|i| &t.a[t.rows[i] as usize..][..t.length]);
        for p in 0..t.length {
            let b = std::array::from_fn(|j| s.load(&t.b[p * t.ldb + j * L..]));
            multiply_rows::<C, L, N>(&mut acc, &a.map(|a| a[p]), b);
        }
        for (i, row) in acc.into_iter().enumerate() {
            for (j, v) in row.into_iter().enumerate() {
                let c = &mut t.c[i * t.ldc + j * L..];
                s.store(s.add(s.load(c), v), c);
            }
        }
    }
}

impl<C: Copy + Send + Sync + 'static, const L: usize, const MR: usize> Vectors for Arrays<C, L, MR> {
    const LANES: usize = L;
    type V = [f32; L];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; L]
    }
    #[inline(always)]
    fn load(self, src: &[f32]) -> Self::V {
        read(&src[..L])
    }
    #[inline(always)]
    fn load_part(self, src: &[f32], n: usize) -> Self::V {
        read(&src[..n])
    }
    #[inline(always)]
    fn store(self, v: Self::V, dst: &mut [f32]) {
        dst[..L].copy_from_slice(&v);
    }
    #[inline(always)]
    fn store_part(self, v: Self::V, dst: &mut [f32], n: usize) {
        dst[..n].copy_from_slice(&v[..n]);
    }
    lanewise! {
        add(a, b) = a + b;
        sub(a, b) = a - b;
        mul(a, b) = a * b;
        div(a, b) = a / b;
        mul_add(a, b, c) = a * b + c;
        min(a, b) = if a < b { a } else { b };
        max(a, b) = if a > b { a } else { b };
        round(a) = a.round_ties_even();
        // The exponent field of an IEEE float, biased by 127. (A NaN casts to 0; what it was part of is a NaN already.)
        exp2_integer(n) = f32::from_bits(((n as i32 + 127) << 23) as u32);
    }

    #[inline(always)]
    fn deinterleave2(self, a: Self::V, b: Self::V) -> (Self::V, Self::V) {
        let of = |i: usize| if i < L { a[i] } else { b[i - L] };
        (std::array::from_fn(|i| of(2 * i)), std::array::from_fn(|i| of(2 * i + 1)))
    }
    #[inline(always)]
    fn interleave2(self, even: Self::V, odd: Self::V) -> (Self::V, Self::V) {
        let of = |i: usize| if i.is_multiple_of(2) { even[i / 2] } else { odd[i / 2] };
        (std::array::from_fn(of), std::array::from_fn(|i| of(L + i)))
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
    fn prefetch<T>(self, _: &[T], _: bool) {}
}

impl<C: Cells, const L: usize, const MR: usize> Simd for Arrays<C, L, MR> {
    const MR: usize = MR;
    const REDUCE_ROWS: usize = 6;
    const TERMS: usize = C::TERMS;
    type Unit = ();

    lanewise! {
        cell(low, high) = C::cell(low, high);
    }

    #[inline(always)]
    fn unit(self, _: usize, _: usize) {}
    #[inline(always)]
    fn tile(self, _: &mut (), t: Tile<'_, '_>) {
        t.check(MR, L);
        match (t.cols.div_ceil(L), t.cols) {
            (1, last) => self.tile_columns::<1>(t, last),
            (2, cols) => self.tile_columns::<2>(t, cols - L),
            (_, cols) => self.tile_columns::<3>(t, cols - 2 * L),
        }
    }
    #[inline(always)]
    fn reduce_tile(self, _: &mut (), t: ReduceTile<'_>) {
        t.check(L, Self::REDUCE_ROWS, 1);
        with_sizes!((t.rows.len(), t.vectors), [1 2 3 4 5] 6, |R, N| Self::reduce::<R, N>(t))
    }
}

#[cfg(test)]
pub(super) mod wide {
    //! A model of the sets that multiply pairs of bf16.

    use half::bf16;

    use super::{Arrays, Cells};

    /// Two bf16, the first term in the lower half.
    #[derive(Clone, Copy)]
    pub(crate) struct Pair;

    /// As wide as AVX-512.
    pub(crate) type Wide = Arrays<Pair, 16, 8>;

    /// The terms of a cell.
    #[inline(always)]
    pub(crate) fn terms(cell: f32) -> [f32; 2] {
        let bits = cell.to_bits();
        [f32::from_bits(bits << 16), f32::from_bits(bits & 0xffff_0000)]
    }

    impl Cells for Pair {
        const TERMS: usize = 2;
        #[inline(always)]
        fn cell(low: f32, high: f32) -> f32 {
            let [low, high] = [low, high].map(|v| u32::from(bf16::from_f32(v).to_bits()));
            f32::from_bits(low | high << 16)
        }
        #[inline(always)]
        fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
            let (a, b) = (terms(a), terms(b));
            c + a[0] * b[0] + a[1] * b[1]
        }
    }
}
