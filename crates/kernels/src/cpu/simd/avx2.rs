//! AVX2 with fused multiply-add: 8 lanes, 16 registers.
//!
//! The tile is 4 x 24 (12 accumulators, three right-hand vectors, one broadcast: all sixteen registers), the reduction 6 x 16. A
//! processor with two 256-bit multiply-add units reaches nearly the speed it has with one 512-bit unit.
//!
//! Soundness: as in the AVX-512 module, a private field makes every value a proof of the features, and bounds are asserted first.

use std::arch::asm;
use std::arch::x86_64::*;
use std::arch::x86_64::{
    _mm256_add_ps as add, _mm256_loadu_ps as load, _mm256_maskload_ps as load_part, _mm256_set1_ps as splat, _mm256_setzero_ps as zero,
    _mm256_storeu_ps as store,
};

use half::bf16;

use super::set::{ReduceTile, Simd, Starts, Task, Tile, Vectors, end, with_sizes};
use super::text::{FIRST, SECOND, WRITE, entrance, micro_kernels, prefetch, prefetch_lines, proved, transposed_lanes, transposes, vectors};

/// Proof that the processor has the features.
#[derive(Clone, Copy)]
pub struct Avx2(());

const L: usize = 8;
const MR: usize = 4;
/// Of three vectors none may be read in part: there is no register for a mask.
const MASKED: usize = 2;

entrance!(["avx2" "fma"], Avx2(()));

/// The lowest `n <= 8` lanes, as `vmaskmov` wants them: the sign bit of each.
#[target_feature(enable = "avx2,fma")]
fn mask(n: usize) -> __m256i {
    _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
}

/// Writes the lanes of the mask. All of them are a plain store: a masked one is 42 micro-operations up to Zen 3.
///
/// # Safety
/// Those lanes are valid for writes.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn store_part(p: *mut f32, mask: __m256i, v: __m256) {
    // SAFETY: the caller's.
    unsafe { if _mm256_movemask_ps(_mm256_castsi256_ps(mask)) == 0xff { store(p, v) } else { _mm256_maskstore_ps(p, mask, v) } }
}

/// `row += *a * b`.
///
/// Three vectors are in assembly because the loop around them needs all sixteen registers: left to itself the compiler begins the next row's broadcast before
/// the last multiplication of this one, runs out, and moves or spills half of the accumulators at every step, which halves the speed.
///
/// # Safety
/// `a` is valid for a read.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_row<const N: usize>(a: *const f32, b: [__m256; N], row: &mut [__m256; N]) {
    if N != 3 {
        // SAFETY: the caller's.
        let x = unsafe { _mm256_broadcast_ss(&*a) };
        for (v, b) in row.iter_mut().zip(b) {
            *v = _mm256_fmadd_ps(x, b, *v);
        }
        return;
    }
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
            b0 = in(ymm_reg) b[0],
            b1 = in(ymm_reg) b[N / 2],
            b2 = in(ymm_reg) b[N - 1],
            c0 = inout(ymm_reg) c0,
            c1 = inout(ymm_reg) c1,
            c2 = inout(ymm_reg) c2,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    (row[0], row[N / 2], row[N - 1]) = (c0, c1, c2);
}

micro_kernels!(Avx2, "avx2,fma", __m256i, [1 2 3 4 5] 6);

/// 8 x 8 transpose: pairs of rows, pairs of pairs within 128-bit lanes, then the two lanes.
#[target_feature(enable = "avx2,fma")]
fn transpose8(r: [__m256; L]) -> [__m256; L] {
    let u = transposed_lanes!(r, _mm256_unpacklo_ps, _mm256_unpackhi_ps, _mm256_shuffle_ps);
    let mut out = u;
    for j in 0..4 {
        out[j] = _mm256_permute2f128_ps::<0x20>(u[j], u[4 + j]);
        out[4 + j] = _mm256_permute2f128_ps::<0x31>(u[j], u[4 + j]);
    }
    out
}

transposes!("avx2,fma", transpose8, [_mm256_permute2f128_ps::<0x20>, _mm256_permute2f128_ps::<0x31>]);

impl Vectors for Avx2 {
    type V = __m256;

    vectors! {
        add(a, b) = _mm256_add_ps;
        sub(a, b) = _mm256_sub_ps;
        mul(a, b) = _mm256_mul_ps;
        div(a, b) = _mm256_div_ps;
        mul_add(a, b, c) = _mm256_fmadd_ps;
        min(a, b) = _mm256_min_ps;
        max(a, b) = _mm256_max_ps;
        round(a) = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>;
    }

    proved! {
        fn transpose_half(src: &[f32], src_stride: usize, dst: &mut [f32]) {
            transpose_half(src, src_stride, dst)
        }
        fn exp2_integer(n: __m256) -> __m256 {
            // The exponent field of an IEEE float, biased by 127.
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        }
        fn deinterleave2(a: __m256, b: __m256) -> (__m256, __m256) {
            let even = _mm256_castps_pd(_mm256_shuffle_ps::<0x88>(a, b));
            let odd = _mm256_castps_pd(_mm256_shuffle_ps::<0xDD>(a, b));
            let (even, odd) = (_mm256_permute4x64_pd::<0xD8>(even), _mm256_permute4x64_pd::<0xD8>(odd));
            (_mm256_castpd_ps(even), _mm256_castpd_ps(odd))
        }
        fn interleave2(even: __m256, odd: __m256) -> (__m256, __m256) {
            let (low, high) = (_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd));
            (_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high))
        }
        fn load_bf16(src: &[bf16], n: usize) -> __m256 {
            let mut part = [bf16::ZERO; L];
            part[..n].copy_from_slice(&src[..n]);
            // A bf16 is the upper half of an f32.
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(part.as_ptr().cast()))))
        }
        fn look_up(table: &[f32; 16], codes: &[u8]) -> __m256 {
            let bytes = _mm_cvtsi32_si128(i32::from_le_bytes([codes[0], codes[1], codes[2], codes[3]]));
            let index = _mm256_cvtepu8_epi32(_mm_unpacklo_epi8(_mm_srli_epi16::<4>(bytes), bytes));
            // Of an index the lowest three bits count; the fourth one, moved to the sign, chooses.
            let low = _mm256_permutevar8x32_ps(load(table.as_ptr()), index);
            let high = _mm256_permutevar8x32_ps(load(table.as_ptr().add(L)), index);
            _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index)))
        }
    }
}
