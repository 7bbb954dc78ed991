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
use std::marker::PhantomData;

use half::bf16;

use super::portable::Single;
use super::set::{ReduceTile, Simd, Starts, Task, Tile, Vectors, end, with_sizes};
use super::text::{FIRST, SECOND, WRITE, entrance, micro_kernels, prefetch, prefetch_lines, proved, transposed_lanes, transposes, vectors};

/// Proof that the processor has the features, and what multiplies cells of `C`: single values, pairs, or those of a unit for matrices.
#[derive(Clone, Copy)]
pub struct Avx512<C = Single>(PhantomData<C>);

impl<C> Avx512<C> {
    /// The proof, unproved.
    ///
    /// # Safety
    /// `available` of the cells' module has answered yes.
    pub(super) unsafe fn assume() -> Self {
        Self(PhantomData)
    }
}

pub(super) const L: usize = 16;
pub(super) const MR: usize = 8;

entrance!(["avx512f" "avx512vl" "avx512dq" "avx512bw" "avx2" "fma"], Avx512::<Single>::assume());

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

micro_kernels!(Avx512, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma", __mmask16, [1 2 3 4 5 6 7 8] 9);

/// 16 x 16 transpose: pairs of rows, then pairs of pairs within 128-bit lanes, then the lanes themselves.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
fn transpose16(r: [__m512; L]) -> [__m512; L] {
    let u = transposed_lanes!(r, _mm512_unpacklo_ps, _mm512_unpackhi_ps, _mm512_shuffle_ps);
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

transposes!("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma", transpose16, [_mm512_shuffle_f32x4::<0x44>, _mm512_shuffle_f32x4::<0xEE>]);

impl<C: Copy + Send + Sync + 'static> Vectors for Avx512<C> {
    type V = __m512;

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

    proved! {
        fn transpose_half(src: &[f32], src_stride: usize, dst: &mut [f32]) {
            transpose_half(src, src_stride, dst)
        }
        fn exp2_integer(n: __m512) -> __m512 {
            _mm512_scalef_ps(_mm512_set1_ps(1.0), n)
        }
        // Of the indices 16.. select from b.
        fn deinterleave2(a: __m512, b: __m512) -> (__m512, __m512) {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            (_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b))
        }
        fn interleave2(a: __m512, b: __m512) -> (__m512, __m512) {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            (_mm512_permutex2var_ps(a, low, b), _mm512_permutex2var_ps(a, high, b))
        }
        fn load_bf16(src: &[bf16], n: usize) -> __m512 {
            assert!(n <= L && n <= src.len());
            // A bf16 is the upper half of an f32.
            let halves = _mm256_maskz_loadu_epi16(mask(n), src.as_ptr().cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        }
        fn look_up(table: &[f32; 16], codes: &[u8]) -> __m512 {
            assert!(codes.len() >= L / 2);
            let bytes = _mm_loadl_epi64(codes.as_ptr().cast());
            // Of an index only the lowest four bits count.
            let halves = _mm_unpacklo_epi8(_mm_srli_epi16::<4>(bytes), bytes);
            _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(halves), load(table.as_ptr()))
        }
    }
}
