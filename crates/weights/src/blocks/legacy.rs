//! The 32-blocks: one scale, and for the `_1` types one offset, both f16; then 4, 5 or 8 bits an element.
//!
//! Formulas and rounding: `quantize_row_*_ref` and `dequantize_row_*` of ggml.

use half::f16;

use super::search::inverse;

const LEN: usize = 32;

/// Q4_0: `x = d (q - 8)`. The element largest in magnitude becomes -8, the end of the range that is one longer.
pub(super) fn encode_q4_0(x: &[f32; LEN], block: &mut [u8; 18]) {
    let (d, q) = signed_levels::<8>(x);
    block[..2].copy_from_slice(&d);
    pack_nibbles(&q, &mut block[2..]);
}

pub(super) fn decode_q4_0(block: &[u8; 18], x: &mut [f32; LEN]) {
    let d = half_at(block, 0);
    let q = unpack_nibbles(&block[2..]);
    *x = q.map(|q| d * (f32::from(q) - 8.0));
}

/// Q4_1: `x = d q + m`.
pub(super) fn encode_q4_1(x: &[f32; LEN], block: &mut [u8; 20]) {
    let (d, m, q) = offset_levels::<15>(x);
    block[..2].copy_from_slice(&d);
    block[2..4].copy_from_slice(&m);
    pack_nibbles(&q, &mut block[4..]);
}

pub(super) fn decode_q4_1(block: &[u8; 20], x: &mut [f32; LEN]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let q = unpack_nibbles(&block[4..]);
    *x = q.map(|q| d * f32::from(q) + m);
}

/// Q5_0: `x = d (q - 16)`; the fifth bits of the elements are the bits of a u32 before the nibbles.
pub(super) fn encode_q5_0(x: &[f32; LEN], block: &mut [u8; 22]) {
    let (d, q) = signed_levels::<16>(x);
    block[..2].copy_from_slice(&d);
    block[2..6].copy_from_slice(&fifth_bits(&q));
    pack_nibbles(&q, &mut block[6..]);
}

pub(super) fn decode_q5_0(block: &[u8; 22], x: &mut [f32; LEN]) {
    let d = half_at(block, 0);
    let q = unpack_five(&block[2..]);
    *x = q.map(|q| d * (f32::from(q) - 16.0));
}

/// Q5_1: `x = d q + m`.
pub(super) fn encode_q5_1(x: &[f32; LEN], block: &mut [u8; 24]) {
    let (d, m, q) = offset_levels::<31>(x);
    block[..2].copy_from_slice(&d);
    block[2..4].copy_from_slice(&m);
    block[4..8].copy_from_slice(&fifth_bits(&q));
    pack_nibbles(&q, &mut block[8..]);
}

pub(super) fn decode_q5_1(block: &[u8; 24], x: &mut [f32; LEN]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let q = unpack_five(&block[4..]);
    *x = q.map(|q| d * f32::from(q) + m);
}

/// Q8_0: `x = d q`, halves away from zero.
pub(super) fn encode_q8_0(x: &[f32; LEN], block: &mut [u8; 34]) {
    let d = x.iter().fold(0f32, |max, x| max.max(x.abs())) / 127.0;
    let inverse = inverse(d);
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    for (byte, x) in block[2..].iter_mut().zip(x) {
        *byte = (x * inverse).round() as i8 as u8;
    }
}

pub(super) fn decode_q8_0(block: &[u8; 34], x: &mut [f32; LEN]) {
    let d = half_at(block, 0);
    for (x, &byte) in x.iter_mut().zip(&block[2..]) {
        *x = f32::from(byte as i8) * d;
    }
}

/// Scale and levels 0 to `2 ZERO - 1` around `ZERO`. The first of several elements of the largest magnitude decides the sign.
fn signed_levels<const ZERO: u8>(x: &[f32; LEN]) -> ([u8; 2], [u8; LEN]) {
    let zero = f32::from(ZERO);
    let largest = x.iter().fold(0f32, |largest, &x| if x.abs() > largest.abs() { x } else { largest });
    let d = largest / -zero;
    let inverse = inverse(d);
    // The cast truncates, so that adding a half rounds.
    let q = x.map(|x| ((x * inverse + (zero + 0.5)) as u8).min(2 * ZERO - 1));
    (f16::from_f32(d).to_le_bytes(), q)
}

/// Scale, offset and levels 0 to `TOP`.
fn offset_levels<const TOP: u8>(x: &[f32; LEN]) -> ([u8; 2], [u8; 2], [u8; LEN]) {
    let min = x.iter().copied().fold(f32::INFINITY, f32::min);
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let d = (max - min) / f32::from(TOP);
    let inverse = inverse(d);
    let q = x.map(|x| (((x - min) * inverse + 0.5) as u8).min(TOP));
    (f16::from_f32(d).to_le_bytes(), f16::from_f32(min).to_le_bytes(), q)
}

pub(super) fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Byte j: element j in the low half, element j + 16 in the high half.
fn pack_nibbles(q: &[u8; LEN], bytes: &mut [u8]) {
    for (j, byte) in bytes.iter_mut().enumerate() {
        *byte = (q[j] & 15) | (q[j + LEN / 2] & 15) << 4;
    }
}

fn unpack_nibbles(bytes: &[u8]) -> [u8; LEN] {
    std::array::from_fn(|i| if i < LEN / 2 { bytes[i] & 15 } else { bytes[i - LEN / 2] >> 4 })
}

fn fifth_bits(q: &[u8; LEN]) -> [u8; 4] {
    q.iter().enumerate().fold(0, |bits, (i, &q)| bits | u32::from(q >> 4) << i).to_le_bytes()
}

/// Four bytes of fifth bits, then nibbles.
fn unpack_five(bytes: &[u8]) -> [u8; LEN] {
    let high = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let low = unpack_nibbles(&bytes[4..]);
    std::array::from_fn(|i| low[i] | ((high >> i & 1) as u8) << 4)
}
