//! NEON of 64-bit ARM: 4 lanes, 32 registers.
//!
//! The tile is 4 x 12 (12 accumulators, three right-hand vectors, one broadcast), the reduction 9 x 8.
//!
//! Soundness: this is compiled only where every processor of the target has NEON, so no value has to prove it.

// Newer compilers call these intrinsics safe where the target has them, that of `.ci/neon` does not.
#![allow(unused_unsafe)]

use std::arch::aarch64::*;
use std::arch::aarch64::{vaddq_f32 as add, vdupq_n_f32 as splat, vld1q_f32 as load, vst1q_f32 as store};

use half::bf16;

use super::set::{ReduceTile, Simd, Starts, Tile, Vectors, end, with_sizes};
use super::text::{FIRST, SECOND, WRITE, micro_kernels, prefetch, prefetch_lines, proved, transposes, vectors};

#[cfg(not(target_feature = "neon"))]
compile_error!("the kernels for 64-bit ARM need NEON");

/// The instruction set.
#[derive(Clone, Copy)]
pub struct Neon;

const L: usize = 4;
const MR: usize = 4;
/// Vectors of a tile of which the last may be read in part.
const MASKED: usize = 3;

/// The lowest `n` lanes: there are no masks, but loads and stores of one, two and four.
#[inline(always)]
fn mask(n: usize) -> usize {
    n
}

#[inline(always)]
fn zero() -> float32x4_t {
    // SAFETY: the target has NEON.
    unsafe { vdupq_n_f32(0.0) }
}

/// The first `n <= 4` values, zeros after them.
///
/// # Safety
/// They may be read.
#[inline(always)]
unsafe fn load_part(p: *const f32, n: usize) -> float32x4_t {
    // SAFETY: nothing is read beyond n values.
    unsafe {
        let none = vdup_n_f32(0.0);
        match n {
            0 => zero(),
            1 => vcombine_f32(vld1_lane_f32::<0>(p, none), none),
            2 => vcombine_f32(vld1_f32(p), none),
            3 => vcombine_f32(vld1_f32(p), vld1_lane_f32::<0>(p.add(2), none)),
            _ => load(p),
        }
    }
}

/// Writes the first `n <= 4` lanes.
///
/// # Safety
/// They may be written.
#[inline(always)]
unsafe fn store_part(p: *mut f32, n: usize, v: float32x4_t) {
    // SAFETY: nothing is written beyond n values.
    unsafe {
        match n {
            0 => {}
            1 => vst1q_lane_f32::<0>(p, v),
            2 => vst1_f32(p, vget_low_f32(v)),
            3 => {
                vst1_f32(p, vget_low_f32(v));
                vst1q_lane_f32::<2>(p.add(2), v);
            }
            _ => store(p, v),
        }
    }
}

/// `row += *a * b`.
///
/// # Safety
/// `a` is valid for a read.
#[inline(always)]
unsafe fn multiply_row<const N: usize>(a: *const f32, b: [float32x4_t; N], row: &mut [float32x4_t; N]) {
    // SAFETY: the caller's.
    unsafe {
        let x = vld1q_dup_f32(a);
        for (v, b) in row.iter_mut().zip(b) {
            *v = vfmaq_f32(*v, x, b);
        }
    }
}

micro_kernels!(Neon, "neon", usize, [1 2 3 4 5 6 7 8] 9);

/// 4 x 4 transpose: pairs of neighbours in pairs of rows, then pairs of pairs.
#[inline(always)]
fn transpose4([a, b, c, d]: [float32x4_t; L]) -> [float32x4_t; L] {
    // SAFETY: the target has NEON.
    unsafe {
        let pairs = |x, y| [vtrn1q_f32(x, y), vtrn2q_f32(x, y)].map(|v| vreinterpretq_f64_f32(v));
        let ([e, f], [g, h]) = (pairs(a, b), pairs(c, d));
        [vtrn1q_f64(e, g), vtrn1q_f64(f, h), vtrn2q_f64(e, g), vtrn2q_f64(f, h)].map(|v| vreinterpretq_f32_f64(v))
    }
}

transposes!("neon", transpose4);

impl Vectors for Neon {
    type V = float32x4_t;

    vectors! {
        add(a, b) = vaddq_f32;
        sub(a, b) = vsubq_f32;
        mul(a, b) = vmulq_f32;
        div(a, b) = vdivq_f32;
        mul_add(a, b, c) = |a, b, c| vfmaq_f32(c, a, b);
        // Not `vminq_f32` and `vmaxq_f32`, which are NaN where either is.
        min(a, b) = |a, b| vbslq_f32(vcltq_f32(a, b), a, b);
        max(a, b) = |a, b| vbslq_f32(vcgtq_f32(a, b), a, b);
        round(a) = vrndnq_f32;
        // The exponent field of an IEEE float, biased by 127.
        exp2_integer(n) = |n| vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127))));
    }

    proved! {
        fn deinterleave2(a: float32x4_t, b: float32x4_t) -> (float32x4_t, float32x4_t) {
            (vuzp1q_f32(a, b), vuzp2q_f32(a, b))
        }
        fn interleave2(even: float32x4_t, odd: float32x4_t) -> (float32x4_t, float32x4_t) {
            (vzip1q_f32(even, odd), vzip2q_f32(even, odd))
        }
        fn load_bf16(src: &[bf16], n: usize) -> float32x4_t {
            let mut part = [bf16::ZERO; L];
            part[..n].copy_from_slice(&src[..n]);
            // A bf16 is the upper half of an f32.
            vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vld1_u16(part.as_ptr().cast()))))
        }
    }
}
