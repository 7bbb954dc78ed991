//! AVX2 with fused multiply-add: 8 lanes, 16 registers.
//!
//! The tile is 4 x 24 (12 accumulators, three right-hand vectors, one broadcast: all sixteen registers), the reduction 6 x 16. A
//! processor with two 256-bit multiply-add units reaches nearly the speed it has with one 512-bit unit.
//!
//! Soundness: as in the AVX-512 module, a private field makes every value a proof of the features, and bounds are asserted first.

use std::arch::asm;
use std::arch::x86_64::*;

use half::bf16;

use super::set::{PanelTile, ReduceTile, Simd, Task, Tile, end, with_sizes};

/// Proof that the processor has the features.
#[derive(Clone, Copy)]
pub struct Avx2(());

const L: usize = 8;
const MR: usize = 4;

/// Whether the processor has every feature used here.
pub fn available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

/// Runs `task` with these features.
pub fn run<T: Task>(task: T) -> T::Out {
    #[target_feature(enable = "avx2,fma")]
    fn inner<T: Task>(task: T) -> T::Out {
        task.run(Avx2(()))
    }
    assert!(available());
    // SAFETY: the features were found on the line above.
    unsafe { inner(task) }
}

/// The lowest `n <= 8` lanes, as `vmaskmov` wants them: the sign bit of each.
#[target_feature(enable = "avx2,fma")]
fn mask(n: usize) -> __m256i {
    _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
}

/// `row += *a * b`, three vectors.
///
/// In assembly because the loop around it needs all sixteen registers: left to itself the compiler begins the next row's broadcast
/// before the last multiplication of this one, runs out, and moves or spills half of the accumulators at every step, which halves the
/// speed.
///
/// # Safety
/// `a` is valid for a read, and `N` is 3.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_row<const N: usize>(a: *const f32, b0: __m256, b1: __m256, b2: __m256, row: &mut [__m256; N]) {
    let (mut c0, mut c1, mut c2) = (row[0], row[N / 2], row[N - 1]);
    // SAFETY: reads one float at a, writes registers.
    unsafe {
        asm!(
            "vbroadcastss {x}, dword ptr [{a}]",
            "vfmadd231ps {c0}, {x}, {b0}",
            "vfmadd231ps {c1}, {x}, {b1}",
            "vfmadd231ps {c2}, {x}, {b2}",
            a = in(reg) a,
            x = out(ymm_reg) _,
            b0 = in(ymm_reg) b0,
            b1 = in(ymm_reg) b1,
            b2 = in(ymm_reg) b2,
            c0 = inout(ymm_reg) c0,
            c1 = inout(ymm_reg) c1,
            c2 = inout(ymm_reg) c2,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    (row[0], row[N / 2], row[N - 1]) = (c0, c1, c2);
}

/// [`Simd::tile`] over `N` vectors of columns; with `PART` the last of them stores only the lanes of `last`.
///
/// With `N` = 3 there is no register for a mask in the loop: it then loads whole vectors, which must be there.
///
/// # Safety
/// The caller has run [`Tile::check`] for `MR` and `cols <= 8 N`, `cols` is as `N`, `PART` and `last` say, and if `N` is 3 every row of
/// `b` has 24 columns.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const N: usize, const PART: bool, const PREFETCH: bool>(t: Tile<'_>, last: __m256i) {
    let mut acc = [[_mm256_setzero_ps(); N]; MR];
    let mut a = t.a.as_ptr();
    for &offset in &t.offsets.table {
        // SAFETY: a advances MR per row of the table and holds MR * len values; offset + cols <= b.len().
        unsafe {
            let b = t.b.as_ptr().add(offset as usize);
            if PREFETCH {
                // A hint may point anywhere.
                for j in (0..N * L).step_by(16) {
                    _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(N * L + j).cast());
                }
            }
            let mut bv = [_mm256_setzero_ps(); N];
            for (j, v) in bv.iter_mut().enumerate() {
                *v = if PART && N < 3 && j + 1 == N { _mm256_maskload_ps(b.add(j * L), last) } else { _mm256_loadu_ps(b.add(j * L)) };
            }
            for (i, row) in acc.iter_mut().enumerate() {
                if N == 3 {
                    multiply_row(a.add(i), bv[0], bv[N / 2], bv[N - 1], row);
                    continue;
                }
                let x = _mm256_broadcast_ss(&*a.add(i));
                for (v, b) in row.iter_mut().zip(bv) {
                    *v = _mm256_fmadd_ps(x, b, *v);
                }
            }
            a = a.add(MR);
        }
    }
    let c = t.c.as_mut_ptr();
    for (i, row) in acc.iter().enumerate() {
        if i < t.rows {
            for (j, &v) in row.iter().enumerate() {
                // SAFETY: i < rows and the lanes read and written are < cols: inside c by Tile::check.
                unsafe {
                    let p = c.add(i * t.ldc + j * L);
                    if PART && j + 1 == N {
                        let v = if t.accumulate { _mm256_add_ps(_mm256_maskload_ps(p, last), v) } else { v };
                        _mm256_maskstore_ps(p, last, v);
                    } else {
                        let v = if t.accumulate { _mm256_add_ps(_mm256_loadu_ps(p), v) } else { v };
                        _mm256_storeu_ps(p, v);
                    }
                }
            }
        }
    }
}

/// [`Simd::panel_tile`] over `N` vectors of columns, the last of which stores the lanes of `last`.
///
/// # Safety
/// The caller has run [`PanelTile::check`], and `cols` is as `N` and `last` say.
#[target_feature(enable = "avx2,fma")]
unsafe fn panel<const N: usize>(t: PanelTile<'_, '_>, last: __m256i) {
    let mut acc = [[_mm256_setzero_ps(); N]; MR];
    let (mut a, mut b) = (t.a.as_ptr(), t.b.as_ptr());
    for _ in 0..t.depth {
        // SAFETY: a holds depth rows of MR cells, and b depth rows of N vectors.
        unsafe {
            let mut bv = [_mm256_setzero_ps(); N];
            for (j, v) in bv.iter_mut().enumerate() {
                *v = _mm256_loadu_ps(b.add(j * L));
            }
            for (i, row) in acc.iter_mut().enumerate() {
                if N == 3 {
                    multiply_row(a.add(i), bv[0], bv[N / 2], bv[N - 1], row);
                    continue;
                }
                let x = _mm256_broadcast_ss(&*a.add(i));
                for (v, b) in row.iter_mut().zip(bv) {
                    *v = _mm256_fmadd_ps(x, b, *v);
                }
            }
            (a, b) = (a.add(MR), b.add(N * L));
        }
    }
    for (c, row) in t.c.iter_mut().zip(&acc) {
        for (j, &v) in row.iter().enumerate() {
            // SAFETY: the lanes read and written are < cols: inside c by PanelTile::check.
            unsafe {
                let p = c.as_mut_ptr().add(t.at + j * L);
                if j + 1 == N {
                    let v = if t.accumulate { _mm256_add_ps(_mm256_maskload_ps(p, last), v) } else { v };
                    _mm256_maskstore_ps(p, last, v);
                } else {
                    let v = if t.accumulate { _mm256_add_ps(_mm256_loadu_ps(p), v) } else { v };
                    _mm256_storeu_ps(p, v);
                }
            }
        }
    }
}

/// [`Simd::reduce_tile`] of `R` rows and `N` vectors.
///
/// # Safety
/// The caller has run [`ReduceTile::check`], and `R`, `N` are the tile's.
#[target_feature(enable = "avx2,fma")]
unsafe fn reduce<const R: usize, const N: usize>(t: ReduceTile<'_>) {
    let mut acc = [[_mm256_setzero_ps(); N]; R];
    let mut a = [t.a.as_ptr(); R];
    for (i, a) in a.iter_mut().enumerate() {
        // SAFETY: rows[i] + length <= a.len().
        *a = unsafe { a.add(t.rows[i] as usize) };
    }
    let mut b = t.b.as_ptr();
    for p in 0..t.length {
        // SAFETY: p < length, and row p of b holds N vectors. (The last wrapping_add may leave b; it is not followed.)
        unsafe {
            let mut bv = [_mm256_setzero_ps(); N];
            for (j, v) in bv.iter_mut().enumerate() {
                *v = _mm256_loadu_ps(b.add(j * L));
            }
            for (row, a) in acc.iter_mut().zip(a) {
                let x = _mm256_broadcast_ss(&*a.add(p));
                for (v, b) in row.iter_mut().zip(bv) {
                    *v = _mm256_fmadd_ps(x, b, *v);
                }
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
                _mm256_storeu_ps(p, _mm256_add_ps(_mm256_loadu_ps(p), v));
            }
        }
    }
}

/// What the 8 codes of 4 bits in 4 bytes stand for.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn look_up(table: &[f32; 16], codes: [u8; L / 2]) -> __m256 {
    let bytes = _mm_cvtsi32_si128(i32::from_le_bytes(codes));
    let index = _mm256_cvtepu8_epi32(_mm_unpacklo_epi8(_mm_srli_epi16::<4>(bytes), bytes));
    // SAFETY: the table holds 16 values.
    let halves = unsafe { [_mm256_loadu_ps(table.as_ptr()), _mm256_loadu_ps(table.as_ptr().add(L))] };
    // Of an index the lowest three bits count; the fourth one, moved to the sign, chooses.
    let [low, high] = halves.map(|half| _mm256_permutevar8x32_ps(half, index));
    _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index)))
}

/// 8 x 8 transpose: pairs of rows, pairs of pairs within 128-bit lanes, then the two lanes.
#[target_feature(enable = "avx2,fma")]
fn transpose8(r: [__m256; L]) -> [__m256; L] {
    let mut u = r;
    for q in 0..2 {
        let [a, b, c, d] = [r[4 * q], r[4 * q + 1], r[4 * q + 2], r[4 * q + 3]];
        let lo0 = _mm256_castps_pd(_mm256_unpacklo_ps(a, b));
        let hi0 = _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
        let lo1 = _mm256_castps_pd(_mm256_unpacklo_ps(c, d));
        let hi1 = _mm256_castps_pd(_mm256_unpackhi_ps(c, d));
        u[4 * q] = _mm256_castpd_ps(_mm256_unpacklo_pd(lo0, lo1));
        u[4 * q + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(lo0, lo1));
        u[4 * q + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(hi0, hi1));
        u[4 * q + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(hi0, hi1));
    }
    let mut out = u;
    for j in 0..4 {
        out[j] = _mm256_permute2f128_ps::<0x20>(u[j], u[4 + j]);
        out[4 + j] = _mm256_permute2f128_ps::<0x31>(u[j], u[4 + j]);
    }
    out
}

/// [`Simd::transpose`].
#[target_feature(enable = "avx2,fma")]
fn transpose(src: &[f32], src_stride: usize, rows: usize, cols: usize, dst: &mut [f32], dst_stride: usize) {
    if rows == 0 || cols == 0 {
        return;
    }
    assert!(rows <= L && cols <= L);
    assert!(end(rows, src_stride, cols) <= src.len() && end(cols, dst_stride, L) <= dst.len());
    let columns = mask(cols);
    let mut r = [_mm256_setzero_ps(); L];
    for (i, v) in r.iter_mut().enumerate() {
        if i < rows {
            // SAFETY: row i < rows and the lanes below cols lie in src.
            *v = unsafe { _mm256_maskload_ps(src.as_ptr().add(i * src_stride), columns) };
        }
    }
    let r = transpose8(r);
    for (i, &v) in r.iter().enumerate() {
        if i < cols {
            // SAFETY: row i < cols of dst holds 8 values.
            unsafe { _mm256_storeu_ps(dst.as_mut_ptr().add(i * dst_stride), v) };
        }
    }
}

impl Simd for Avx2 {
    const LANES: usize = L;
    const MR: usize = MR;
    const REDUCE_ROWS: usize = 6;
    type V = __m256;
    type Unit = ();

    #[inline(always)]
    fn unit(self, _: usize, _: usize) {}

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, src: &[f32]) -> __m256 {
        assert!(src.len() >= L);
        // SAFETY: 8 values, just asserted.
        unsafe { _mm256_loadu_ps(src.as_ptr()) }
    }
    #[inline(always)]
    fn load_part(self, src: &[f32], n: usize) -> __m256 {
        assert!(n <= L && n <= src.len());
        // SAFETY: the mask selects n values, which are there.
        unsafe { _mm256_maskload_ps(src.as_ptr(), mask(n)) }
    }
    #[inline(always)]
    fn store(self, v: __m256, dst: &mut [f32]) {
        assert!(dst.len() >= L);
        // SAFETY: 8 values, just asserted.
        unsafe { _mm256_storeu_ps(dst.as_mut_ptr(), v) }
    }
    #[inline(always)]
    fn store_part(self, v: __m256, dst: &mut [f32], n: usize) {
        assert!(n <= L && n <= dst.len());
        // SAFETY: the mask selects n values, which are there.
        unsafe { _mm256_maskstore_ps(dst.as_mut_ptr(), mask(n), v) }
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn exp2_integer(self, n: __m256) -> __m256 {
        // SAFETY: `self` proves the features. (The exponent field of an IEEE float, biased by 127.)
        unsafe {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    fn deinterleave2(self, a: __m256, b: __m256) -> (__m256, __m256) {
        // SAFETY: `self` proves the features.
        unsafe {
            let even = _mm256_castps_pd(_mm256_shuffle_ps::<0x88>(a, b));
            let odd = _mm256_castps_pd(_mm256_shuffle_ps::<0xDD>(a, b));
            let (even, odd) = (_mm256_permute4x64_pd::<0xD8>(even), _mm256_permute4x64_pd::<0xD8>(odd));
            (_mm256_castpd_ps(even), _mm256_castpd_ps(odd))
        }
    }
    #[inline(always)]
    fn interleave2(self, even: __m256, odd: __m256) -> (__m256, __m256) {
        // SAFETY: `self` proves the features.
        unsafe {
            let (low, high) = (_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd));
            (_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high))
        }
    }
    #[inline(always)]
    fn transpose(self, src: &[f32], src_stride: usize, rows: usize, cols: usize, dst: &mut [f32], dst_stride: usize) {
        // SAFETY: `self` proves the features.
        unsafe { transpose(src, src_stride, rows, cols, dst, dst_stride) }
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
    #[inline(always)]
    fn load_bf16(self, src: &[bf16], n: usize) -> __m256 {
        let mut part = [bf16::ZERO; L];
        part[..n].copy_from_slice(&src[..n]);
        // SAFETY: `self` proves the features. A bf16 is the upper half of an f32.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(part.as_ptr().cast())))) }
    }
    #[inline(always)]
    fn look_up(self, table: &[f32; 16], codes: &[u8]) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { look_up(table, [codes[0], codes[1], codes[2], codes[3]]) }
    }
    #[inline(always)]
    fn panel_tile(self, _: &mut (), t: PanelTile<'_, '_>) {
        t.check(MR, L);
        let vectors = t.cols.div_ceil(L);
        // SAFETY: `self` proves the features; the bounds were checked, and cols is (vectors - 1) * 8 + the lanes of last.
        unsafe {
            let last = mask(t.cols - (vectors - 1) * L);
            match vectors {
                1 => panel::<1>(t, last),
                2 => panel::<2>(t, last),
                _ => panel::<3>(t, last),
            }
        }
    }
    #[inline(always)]
    fn tile(self, _: &mut (), mut t: Tile<'_>) {
        t.check(MR, Self::NR);
        if t.cols > 2 * L && t.offsets.max as usize + Self::NR > t.b.len() {
            // The last columns of the last row of b: too few for three whole vectors.
            let cols = t.cols - 2 * L;
            self.tile(&mut (), Tile { b: &t.b[2 * L..], c: &mut t.c[2 * L..], cols, ..t });
            t.cols = 2 * L;
        }
        let vectors = t.cols.div_ceil(L);
        let rest = t.cols - (vectors - 1) * L;
        // SAFETY: `self` proves the features; the bounds were checked, cols is (vectors - 1) * 8 + rest with 1 <= rest <= 8, and if
        // there are three vectors the rows of b are long enough (or cols was cut to two).
        unsafe {
            let last = mask(rest);
            match (vectors, rest < L, t.prefetch) {
                (1, false, _) => tile::<1, false, false>(t, last),
                (1, true, _) => tile::<1, true, false>(t, last),
                (2, false, _) => tile::<2, false, false>(t, last),
                (2, true, _) => tile::<2, true, false>(t, last),
                (_, false, false) => tile::<3, false, false>(t, last),
                (_, false, true) => tile::<3, false, true>(t, last),
                (_, true, _) => tile::<3, true, false>(t, last),
            }
        }
    }
    #[inline(always)]
    fn reduce_tile(self, _: &mut (), t: ReduceTile<'_>) {
        t.check(L, Self::REDUCE_ROWS, 1);
        // SAFETY: `self` proves the features; the bounds were checked, and each arm's R and N are those of the tile.
        unsafe { with_sizes!(t, [1 2 3 4 5] 6, self::reduce) }
    }
}
