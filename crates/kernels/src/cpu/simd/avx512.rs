//! AVX-512 (F, VL, DQ, BW): 16 lanes, masked tails, 32 registers.
//!
//! The tile is 8 x 48: 24 accumulators, three loads of the right-hand side and eight broadcasts for 24 fused multiply-adds, which
//! leaves the load ports half idle. For the reduction over pixels it is 9 x 32, nine being the taps of a 3x3 kernel.
//!
//! Soundness: the field of [`Avx512`] is private, and values of it are made only after asking the processor. Every `unsafe`
//! block below is either an intrinsic of these features or a pointer access whose bounds were asserted just before.

use std::arch::x86_64::*;
pub(super) use std::arch::x86_64::{
    _mm512_add_ps as add, _mm512_loadu_ps as load, _mm512_mask_storeu_ps as store_part, _mm512_set1_ps as splat, _mm512_setzero_ps as zero,
    _mm512_storeu_ps as store,
};

use half::bf16;

use super::set::{ReduceTile, Simd, Starts, Task, Tile, end, with_sizes};

/// Proof that the processor has the features.
#[derive(Clone, Copy)]
pub struct Avx512(());

impl Avx512 {
    /// The proof, unproved.
    ///
    /// # Safety
    /// [`available`] has answered yes.
    pub(super) unsafe fn assume() -> Self {
        Self(())
    }
}

pub(super) const L: usize = 16;
pub(super) const MR: usize = 8;
pub(super) const REDUCE_ROWS: usize = 9;

/// Whether the processor has every feature used here.
pub fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
}

/// Runs `task` with these features.
pub fn run<T: Task>(task: T) -> T::Out {
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
    fn inner<T: Task>(task: T) -> T::Out {
        task.run(Avx512(()))
    }
    assert!(available());
    // SAFETY: the features were found on the line above.
    unsafe { inner(task) }
}

/// The lowest `n` lanes.
#[inline(always)]
pub(super) fn mask(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

/// The lanes of `part`, zeros in the others.
///
/// # Safety
/// They may be read.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
pub(super) unsafe fn load_part(p: *const f32, part: __mmask16) -> __m512 {
    // SAFETY: the caller's.
    unsafe { _mm512_maskz_loadu_ps(part, p) }
}

/// Vectors of a tile of which the last may be read in part.
pub(super) const MASKED: usize = 3;

/// The micro-kernels of a set of instructions, its features and its masks given. What they are made of are constants and functions of its module:
/// `L`, `MR`, `REDUCE_ROWS`, `MASKED`, `zero`, `load`, `load_part`, `store`, `store_part`, `add`, `mask`, and the product of cells.
macro_rules! micro_kernels {
    ($features:literal, $mask:ty, [$($sizes:literal)*] $most:literal) => {
        /// [`Simd::tile`] over `N` vectors of columns; with `PART` the last of them covers only the lanes of `last`, and unless right-hand rows are
        /// `WHOLE` vectors, only those are read of it. (Of more than `MASKED` vectors all are.)
        ///
        /// # Safety
        /// The caller has run [`Tile::check`] for `MR` and `L`, `starts` are the tile's, `cols` is as `N`, `PART` and `last` say, and if `N` is more
        /// than `MASKED` every row of `b` has `N` whole vectors.
        #[target_feature(enable = $features)]
        unsafe fn tile<const N: usize, const PART: bool, const PREFETCH: bool, const WHOLE: bool>(
            mut t: Tile<'_, '_>,
            starts: impl Iterator<Item = usize>,
            last: $mask,
        ) {
            if WHOLE {
                for c in t.c.pointers::<MR>() {
                    for j in 0..N {
                        // A hint may point anywhere.
                        _mm_prefetch::<_MM_HINT_ET0>(c.wrapping_add(j * L).cast());
                    }
                }
            }
            let mut acc = [[zero(); N]; MR];
            let mut a = t.a.as_ptr();
            for start in starts {
                // SAFETY: a advances MR for each start and holds MR * depth values; start + cols <= b.len().
                unsafe {
                    let b = t.b.as_ptr().add(start);
                    if PREFETCH {
                        for j in (0..N * L).step_by(16) {
                            _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(N * L + j).cast());
                        }
                    }
                    let mut bv = [zero(); N];
                    for (j, v) in bv.iter_mut().enumerate() {
                        let part = PART && !WHOLE && N <= MASKED && j + 1 == N;
                        *v = if part { load_part(b.add(j * L), last) } else { load(b.add(j * L)) };
                    }
                    for (i, row) in acc.iter_mut().enumerate() {
                        multiply_row(a.add(i), bv, row);
                    }
                    a = a.add(MR);
                }
            }
            let c = t.c.pointers::<MR>();
            for (i, row) in acc.iter().enumerate() {
                if i < t.rows {
                    for (j, &v) in row.iter().enumerate() {
                        // SAFETY: i < rows and the lanes read and written are < cols: inside c by Tile::check.
                        unsafe {
                            let p = c[i].add(j * L);
                            if PART && j + 1 == N {
                                store_part(p, last, if t.accumulate { add(load_part(p, last), v) } else { v });
                            } else {
                                store(p, if t.accumulate { add(load(p), v) } else { v });
                            }
                        }
                    }
                }
            }
        }

        /// [`Simd::reduce_tile`] of `R` rows and `N` vectors.
        ///
        /// # Safety
        /// The caller has run [`ReduceTile::check`], and `R`, `N` are the tile's.
        #[target_feature(enable = $features)]
        unsafe fn reduce<const R: usize, const N: usize>(t: ReduceTile<'_>) {
            let mut acc = [[zero(); N]; R];
            let mut a = [t.a.as_ptr(); R];
            for (i, a) in a.iter_mut().enumerate() {
                // SAFETY: rows[i] + length <= a.len().
                *a = unsafe { a.add(t.rows[i] as usize) };
            }
            let mut b = t.b.as_ptr();
            for p in 0..t.length {
                // SAFETY: p < length, and row p of b holds N vectors. (The last wrapping_add may leave b; it is not followed.)
                unsafe {
                    let mut bv = [zero(); N];
                    for (j, v) in bv.iter_mut().enumerate() {
                        *v = load(b.add(j * L));
                    }
                    for (row, a) in acc.iter_mut().zip(a) {
                        multiply_row(a.add(p), bv, row);
                    }
                    b = b.wrapping_add(t.ldb);
                }
            }
            let c = t.c.as_mut_ptr();
            for (i, row) in acc.iter().enumerate() {
                for (j, &v) in row.iter().enumerate() {
                    // SAFETY: R rows of N vectors lie in c.
                    unsafe {
                        let p = c.add(i * t.ldc + j * L);
                        store(p, add(load(p), v));
                    }
                }
            }
        }

        /// [`Simd::tile`](super::Simd::tile).
        ///
        /// # Safety
        /// The processor has the features.
        #[inline(always)]
        unsafe fn any_tile(mut t: Tile<'_, '_>) {
            t.check(MR, L);
            let vectors = t.cols.div_ceil(L);
            let rest = t.cols - (vectors - 1) * L;
            // SAFETY: the bounds were checked, and cols is (vectors - 1) * L + rest with 1 <= rest <= L.
            unsafe {
                let last = mask(rest);
                match t.starts {
                    Starts::Dense(depth) => match vectors {
                        1 => tile::<1, true, false, true>(t, (0..depth).map(|k| k * L), last),
                        2 => tile::<2, true, false, true>(t, (0..depth).map(|k| k * 2 * L), last),
                        _ => tile::<3, true, false, true>(t, (0..depth).map(|k| k * 3 * L), last),
                    },
                    Starts::Table(offsets) if vectors > MASKED && offsets.max as usize + vectors * L > t.b.len() => {
                        // The last columns of the last row of b: too few for so many whole vectors.
                        any_tile(t.behind((vectors - 1) * L));
                        t.cols = (vectors - 1) * L;
                        any_tile(t);
                    }
                    Starts::Table(offsets) => {
                        let starts = offsets.table.iter().map(|&start| start as usize);
                        match (vectors, rest < L, t.prefetch) {
                            (1, false, _) => tile::<1, false, false, false>(t, starts, last),
                            (1, true, _) => tile::<1, true, false, false>(t, starts, last),
                            (2, false, _) => tile::<2, false, false, false>(t, starts, last),
                            (2, true, _) => tile::<2, true, false, false>(t, starts, last),
                            (_, false, false) => tile::<3, false, false, false>(t, starts, last),
                            (_, false, true) => tile::<3, false, true, false>(t, starts, last),
                            (_, true, _) => tile::<3, true, false, false>(t, starts, last),
                        }
                    }
                }
            }
        }

        /// [`Simd::reduce_tile`](super::Simd::reduce_tile).
        ///
        /// # Safety
        /// The processor has the features.
        #[inline(always)]
        unsafe fn any_reduce_tile(t: ReduceTile<'_>) {
            t.check(L, REDUCE_ROWS, 1);
            // SAFETY: the bounds were checked, and each arm's R and N are those of the tile.
            unsafe { with_sizes!(t, [$($sizes)*] $most, self::reduce) }
        }
    };
}

/// The sizes and the methods of [`Simd`] that [`micro_kernels`] makes.
macro_rules! multiplies {
    () => {
        const LANES: usize = L;
        const MR: usize = MR;
        const REDUCE_ROWS: usize = REDUCE_ROWS;
        type Unit = ();

        #[inline(always)]
        fn unit(self, _: usize, _: usize) {}
        #[inline(always)]
        fn tile(self, _: &mut (), t: Tile<'_, '_>) {
            // SAFETY: `self` proves the features.
            unsafe { any_tile(t) }
        }
        #[inline(always)]
        fn reduce_tile(self, _: &mut (), t: ReduceTile<'_>) {
            // SAFETY: `self` proves the features.
            unsafe { any_reduce_tile(t) }
        }
    };
}

/// Methods of [`Simd`] that are an intrinsic each, and those that move vectors, over functions of the module.
macro_rules! vectors {
    ($($name:ident($($argument:ident),*) = $intrinsic:expr;)*) => {
        $(
            #[inline(always)]
            fn $name(self, $($argument: Self::V),*) -> Self::V {
                // SAFETY: `self` proves the features.
                unsafe { $intrinsic($($argument),*) }
            }
        )*
        #[inline(always)]
        fn splat(self, x: f32) -> Self::V {
            // SAFETY: `self` proves the features.
            unsafe { splat(x) }
        }
        #[inline(always)]
        fn load(self, src: &[f32]) -> Self::V {
            assert!(src.len() >= L);
            // SAFETY: L values, just asserted.
            unsafe { load(src.as_ptr()) }
        }
        #[inline(always)]
        fn load_part(self, src: &[f32], n: usize) -> Self::V {
            assert!(n <= L && n <= src.len());
            // SAFETY: the mask selects n values, which are there.
            unsafe { load_part(src.as_ptr(), mask(n)) }
        }
        #[inline(always)]
        fn store(self, v: Self::V, dst: &mut [f32]) {
            assert!(dst.len() >= L);
            // SAFETY: L values, just asserted.
            unsafe { store(dst.as_mut_ptr(), v) }
        }
        #[inline(always)]
        fn store_part(self, v: Self::V, dst: &mut [f32], n: usize) {
            assert!(n <= L && n <= dst.len());
            // SAFETY: the mask selects n values, which are there.
            unsafe { store_part(dst.as_mut_ptr(), mask(n), v) }
        }
        #[inline(always)]
        fn transpose(self, src: &[f32], src_stride: usize, rows: usize, cols: usize, dst: &mut [f32], dst_stride: usize) {
            // SAFETY: `self` proves the features.
            unsafe { transpose(src, src_stride, rows, cols, dst, dst_stride) }
        }
        #[inline(always)]
        fn transpose_rows(self, src: &[f32], src_stride: usize, rows: usize, dst: &mut [&mut [f32]], at: usize) {
            // SAFETY: `self` proves the features.
            unsafe { transpose_rows(src, src_stride, rows, dst, at) }
        }
        #[inline(always)]
        fn prefetch_read<T>(self, src: &[T]) {
            for line in src.chunks(64 / size_of::<T>()) {
                // SAFETY: a hint, which touches no memory that the program can observe.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
            }
        }
        #[inline(always)]
        fn prefetch_write(self, src: &[f32]) {
            for line in src.chunks(16) {
                // SAFETY: a hint, which touches no memory that the program can observe. (ET0 is PREFETCHW, as old as these features.)
                unsafe { _mm_prefetch::<_MM_HINT_ET0>(line.as_ptr().cast()) };
            }
        }
    };
}

/// [`Simd::transpose`] and [`Simd::transpose_rows`] from the transpose of a square of vectors.
macro_rules! transposes {
    ($features:literal, $square:ident) => {
        #[target_feature(enable = $features)]
        fn transpose(src: &[f32], src_stride: usize, rows: usize, cols: usize, dst: &mut [f32], dst_stride: usize) {
            if rows == 0 || cols == 0 {
                return;
            }
            assert!(rows <= L && cols <= L);
            assert!(end(rows, src_stride, cols) <= src.len() && end(cols, dst_stride, L) <= dst.len());
            let mut r = [zero(); L];
            if (rows, cols) == (L, L) {
                // The usual case, without twice L branches.
                for (i, v) in r.iter_mut().enumerate() {
                    // SAFETY: L rows of L lie in src.
                    *v = unsafe { load(src.as_ptr().add(i * src_stride)) };
                }
                for (i, &v) in $square(r).iter().enumerate() {
                    // SAFETY: L rows of L lie in dst.
                    unsafe { store(dst.as_mut_ptr().add(i * dst_stride), v) };
                }
                return;
            }
            let columns = mask(cols);
            for (i, v) in r.iter_mut().enumerate().take(rows) {
                // SAFETY: row i < rows and the lanes below cols lie in src.
                *v = unsafe { load_part(src.as_ptr().add(i * src_stride), columns) };
            }
            for (i, &v) in $square(r).iter().enumerate().take(cols) {
                // SAFETY: row i < cols of dst holds L values.
                unsafe { store(dst.as_mut_ptr().add(i * dst_stride), v) };
            }
        }

        #[target_feature(enable = $features)]
        fn transpose_rows(src: &[f32], src_stride: usize, rows: usize, dst: &mut [&mut [f32]], at: usize) {
            assert!((1..=L).contains(&rows) && end(rows, src_stride, L) <= src.len());
            let mut r = [zero(); L];
            for (i, v) in r.iter_mut().enumerate().take(rows) {
                // SAFETY: row i < rows of src holds L values.
                *v = unsafe { load(src.as_ptr().add(i * src_stride)) };
            }
            for (v, dst) in $square(r).into_iter().zip(dst) {
                let dst = &mut dst[at..at + rows];
                // SAFETY: the mask selects the values of the slice.
                unsafe { store_part(dst.as_mut_ptr(), mask(rows), v) };
            }
        }
    };
}
pub(super) use {micro_kernels, multiplies, transposes, vectors};

/// `row += *a * b`.
///
/// # Safety
/// `a` is valid for a read.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
unsafe fn multiply_row<const N: usize>(a: *const f32, b: [__m512; N], row: &mut [__m512; N]) {
    // SAFETY: the caller's.
    let x = _mm512_set1_ps(unsafe { *a });
    for (v, b) in row.iter_mut().zip(b) {
        *v = _mm512_fmadd_ps(x, b, *v);
    }
}

micro_kernels!("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma", __mmask16, [1 2 3 4 5 6 7 8] 9);

/// The values of the lanes of `part` in f32, zero in the others.
///
/// # Safety
/// Those values may be read.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
unsafe fn widen(src: *const bf16, part: __mmask16) -> __m512 {
    // SAFETY: the mask selects what may be read. A bf16 is the upper half of an f32.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(part, src.cast())))) }
}

/// What the 16 codes of 4 bits in 8 bytes stand for.
///
/// # Safety
/// The bytes may be read.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
unsafe fn look_up(table: &[f32; 16], codes: *const u8) -> __m512 {
    // SAFETY: the bytes and the table may be read.
    unsafe {
        let bytes = _mm_loadl_epi64(codes.cast());
        // Of an index only the lowest four bits count.
        let halves = _mm_unpacklo_epi8(_mm_srli_epi16::<4>(bytes), bytes);
        _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(halves), _mm512_loadu_ps(table.as_ptr()))
    }
}

/// 16 x 16 transpose: pairs of rows, then pairs of pairs within 128-bit lanes, then the lanes themselves.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
fn transpose16(r: [__m512; L]) -> [__m512; L] {
    let mut u = r;
    for q in 0..4 {
        let [a, b, c, d] = [r[4 * q], r[4 * q + 1], r[4 * q + 2], r[4 * q + 3]];
        let lo0 = _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
        let hi0 = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
        let lo1 = _mm512_castps_pd(_mm512_unpacklo_ps(c, d));
        let hi1 = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
        u[4 * q] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo0, lo1));
        u[4 * q + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo0, lo1));
        u[4 * q + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(hi0, hi1));
        u[4 * q + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(hi0, hi1));
    }
    let mut out = u;
    for j in 0..4 {
        let a = _mm512_shuffle_f32x4::<0x44>(u[j], u[4 + j]);
        let b = _mm512_shuffle_f32x4::<0x44>(u[8 + j], u[12 + j]);
        let c = _mm512_shuffle_f32x4::<0xEE>(u[j], u[4 + j]);
        let d = _mm512_shuffle_f32x4::<0xEE>(u[8 + j], u[12 + j]);
        out[j] = _mm512_shuffle_f32x4::<0x88>(a, b);
        out[4 + j] = _mm512_shuffle_f32x4::<0xDD>(a, b);
        out[8 + j] = _mm512_shuffle_f32x4::<0x88>(c, d);
        out[12 + j] = _mm512_shuffle_f32x4::<0xDD>(c, d);
    }
    out
}

transposes!("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma", transpose16);

impl Simd for Avx512 {
    type V = __m512;

    multiplies!();
    vectors! {
        add(a, b) = _mm512_add_ps;
        sub(a, b) = _mm512_sub_ps;
        mul(a, b) = _mm512_mul_ps;
        div(a, b) = _mm512_div_ps;
        mul_add(a, b, c) = _mm512_fmadd_ps;
        min(a, b) = _mm512_min_ps;
        max(a, b) = _mm512_max_ps;
        // Immediate 0: to the nearest integer, ties to even.
        round(a) = _mm512_roundscale_ps::<0>;
    }

    #[inline(always)]
    fn exp2_integer(self, n: __m512) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_scalef_ps(_mm512_set1_ps(1.0), n) }
    }
    #[inline(always)]
    fn deinterleave2(self, a: __m512, b: __m512) -> (__m512, __m512) {
        // SAFETY: `self` proves the features. (Indices 16.. select from b.)
        unsafe {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            (_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b))
        }
    }
    #[inline(always)]
    fn interleave2(self, even: __m512, odd: __m512) -> (__m512, __m512) {
        // SAFETY: `self` proves the features. (Indices 16.. select from odd.)
        unsafe {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            (_mm512_permutex2var_ps(even, low, odd), _mm512_permutex2var_ps(even, high, odd))
        }
    }
    #[inline(always)]
    fn load_bf16(self, src: &[bf16], n: usize) -> __m512 {
        assert!(n <= L && n <= src.len());
        // SAFETY: `self` proves the features; the mask selects n values, which are there.
        unsafe { widen(src.as_ptr(), mask(n)) }
    }
    #[inline(always)]
    fn look_up(self, table: &[f32; 16], codes: &[u8]) -> __m512 {
        assert!(codes.len() >= L / 2);
        // SAFETY: `self` proves the features; 8 bytes of codes are there.
        unsafe { look_up(table, codes.as_ptr()) }
    }
}
