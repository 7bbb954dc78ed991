//! AVX-512 with products in bf16: all is AVX-512 but the micro-kernels and the cells they multiply.
//!
//! VDPBF16PS multiplies 16 pairs of bf16 by 16 others and adds both products of each to a sum in f32, twice the work of a fused
//! multiply-add in the same time. A cell is such a pair, in the bits of an f32 that is only ever moved.

use std::arch::x86_64::*;
use std::mem::transmute;

use half::bf16;

use super::avx512::{Avx512, L, MASKED, MR, add, load, load_part, mask, store, store_part, zero};
use super::set::{ReduceTile, Simd, Starts, Task, Tile, with_sizes};
use super::text::{FIRST, WRITE, entrance, micro_kernels, prefetch, proved};

/// Cells are pairs of bf16.
#[derive(Clone, Copy)]
pub struct Pair;

entrance!(["avx512f" "avx512vl" "avx512dq" "avx512bw" "avx512bf16" "avx2" "fma"], Avx512::<Pair>::assume());

/// `row += *a * b`, pairs of bf16.
///
/// # Safety
/// `a` is valid for a read.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512bf16,avx2,fma")]
unsafe fn multiply_row<const N: usize>(a: *const f32, b: [__m512; N], row: &mut [__m512; N]) {
    // SAFETY: the caller's; types of the same size, for which all bits are valid.
    unsafe {
        let x = transmute::<__m512, __m512bh>(_mm512_set1_ps(*a));
        for (v, b) in row.iter_mut().zip(b) {
            *v = _mm512_dpbf16_ps(*v, x, transmute::<__m512, __m512bh>(b));
        }
    }
}

/// Where the halves of [`pairs`] come from: `low` is 0..16, `high` 16..32.
const INTERLEAVED: [u16; 32] =
    [0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31];

/// Both rounded to bf16, `low` in the lower halves.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) fn pairs(low: __m512, high: __m512) -> __m512 {
    let both = _mm512_cvtne2ps_pbh(high, low);
    // SAFETY: types of the same size, for which all bits are valid.
    let (both, order) = unsafe { (transmute::<__m512bh, __m512i>(both), transmute::<[u16; 32], __m512i>(INTERLEAVED)) };
    _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, both))
}

/// Pairs of the values that `part` selects of each.
///
/// # Safety
/// They may be read.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw")]
pub(super) unsafe fn join_pairs(low: *const bf16, high: *const bf16, part: __mmask16) -> __m512 {
    // SAFETY: the mask selects what may be read.
    unsafe {
        let [low, high] = [low, high].map(|p| _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(part, p.cast())));
        _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32::<16>(high)))
    }
}

/// What [`Simd`] says of cells.
macro_rules! pair_cells {
    () => {
        const TERMS: usize = 2;

        proved! {
            fn cell(low: __m512, high: __m512) -> __m512 {
                pairs(low, high)
            }
            fn neighbours(a: __m512, b: __m512) -> __m512 {
                // Types of the same size, for which all bits are valid.
                transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(b, a))
            }
            fn cell_bf16(low: &[bf16], high: &[bf16], n: usize) -> __m512 {
                assert!(n <= L && n <= low.len() && n <= high.len());
                join_pairs(low.as_ptr(), high.as_ptr(), mask(n))
            }
        }
    };
}
pub(super) use pair_cells;

micro_kernels!(Avx512<Pair>, "avx512f,avx512vl,avx512dq,avx512bw,avx512bf16,avx2,fma", __mmask16, [1 2 3 4 5 6 7 8] 9, pair_cells);
