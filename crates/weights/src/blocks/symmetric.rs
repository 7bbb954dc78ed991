//! Q6_K: sixteen sub-blocks of 16, `x = d s q` with 8-bit `s` a sub-block, f16 `d` a block and `q` from -32 to 31.
//!
//! Layout: for each half of the block 64 bytes of low nibbles (elements 0 to 63 of the half in the low halves, 64 to 127 in the
//! high ones); for each half 32 bytes of upper bit pairs (element `i + 32 k` in pair `k` of byte `i`); the `s`; `d`.

use half::f16;

use super::legacy::half_at;
use super::search::{LEN, Lanes, inverse, round, side_by_side, symmetric};

const SUBS: usize = 16;
const SUB_LEN: usize = 16;
const ZERO: u8 = 32;
/// Where the upper bits, the scales and `d` begin.
const QH: usize = 128;
const SCALES: usize = 192;
const D: usize = 208;

pub(super) fn encode_q6_k(block: &[f32; LEN], bytes: &mut [u8; 210]) {
    let x: Lanes<SUBS, SUB_LEN> = side_by_side(block);
    let weight = x.map(|x| x.map(|x| x * x));
    let scale = symmetric(&x, &weight, f32::from(ZERO));
    // The scale largest in magnitude becomes -128, the end of the range that is one longer.
    let largest = scale.into_iter().fold(0f32, |largest, scale| if scale.abs() > largest.abs() { scale } else { largest });
    let d = f16::from_f32(largest / -128.0);
    // Divided by what will be stored: a small d is subnormal in f16, and rounded coarsely.
    let scales = scale.map(|scale| round(scale * inverse(d.to_f32())).clamp(-128.0, 127.0) as i8);
    let q = levels(&x, &scales.map(|s| d.to_f32() * f32::from(s)));
    bytes[D..].copy_from_slice(&d.to_le_bytes());
    for (byte, scale) in bytes[SCALES..D].iter_mut().zip(scales) {
        *byte = scale as u8;
    }
    for (i, q) in q.into_iter().enumerate() {
        let (low, shift, high, pair) = places(i);
        bytes[low] = bytes[low] & !(15 << shift) | (q & 15) << shift;
        bytes[high] = bytes[high] & !(3 << pair) | (q >> 4) << pair;
    }
}

pub(super) fn decode_q6_k(bytes: &[u8; 210], x: &mut [f32; LEN]) {
    let d = half_at(bytes, D);
    for (i, x) in x.iter_mut().enumerate() {
        let (low, shift, high, pair) = places(i);
        let q = (bytes[low] >> shift & 15) | (bytes[high] >> pair & 3) << 4;
        let scale = d * f32::from(bytes[SCALES + i / SUB_LEN] as i8);
        *x = scale * (f32::from(q) - f32::from(ZERO));
    }
}

/// Where element `i` lies: byte and shift of its low nibble, byte and shift of its upper bits.
fn places(i: usize) -> (usize, usize, usize, usize) {
    let (half, i) = (i / 128, i % 128);
    (half * 64 + i % 64, i / 64 * 4, QH + half * 32 + i % 32, i / 32 * 2)
}

/// The elements' levels in the block's order, 0 to 63.
fn levels(x: &Lanes<SUBS, SUB_LEN>, scale: &[f32; SUBS]) -> [u8; LEN] {
    let zero = f32::from(ZERO);
    let inverse = scale.map(inverse);
    std::array::from_fn(|at| {
        let (sub, i) = (at / SUB_LEN, at % SUB_LEN);
        (round((x[i][sub] * inverse[sub]).clamp(-zero, zero - 1.0)) + zero) as u8
    })
}
