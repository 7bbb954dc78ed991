//! Q4_K and Q5_K: eight sub-blocks of 32, `x = d s q - dmin m` with 6-bit `s` and `m` a sub-block, f16 `d` and `dmin` a block.
//!
//! Layout: `d`, `dmin`, 12 bytes of `s` and `m`, of Q5_K 32 bytes of fifth bits (bit `s` of byte `i`: element `i` of
//! sub-block `s`), then 32 bytes for every two sub-blocks, the first in the low halves.

use half::f16;

use super::legacy::half_at;
use super::search::{Affine, LEN, Lanes, affine, inverse, round, side_by_side};

const SUBS: usize = 8;
const SUB_LEN: usize = 32;
/// The largest 6-bit scale.
const TOP_SCALE: f32 = 63.0;

/// What a block stores, not yet packed.
struct Fields {
    d: f16,
    dmin: f16,
    scales: [u8; SUBS],
    mins: [u8; SUBS],
    q: [[u8; SUBS]; SUB_LEN],
}

pub(super) fn encode_q4_k(x: &[f32; LEN], block: &mut [u8; 144]) {
    let fields = fit(x, 15.0);
    fields.pack_head(&mut block[..16]);
    fields.pack_nibbles(&mut block[16..]);
}

pub(super) fn encode_q5_k(x: &[f32; LEN], block: &mut [u8; 176]) {
    let fields = fit(x, 31.0);
    fields.pack_head(&mut block[..16]);
    for (byte, q) in block[16..48].iter_mut().zip(&fields.q) {
        *byte = q.iter().enumerate().fold(0, |bits, (sub, q)| bits | (q >> 4) << sub);
    }
    fields.pack_nibbles(&mut block[48..]);
}

pub(super) fn decode_q4_k(block: &[u8; 144], x: &mut [f32; LEN]) {
    decode(&block[..16], &block[16..], |_, _| 0, x);
}

pub(super) fn decode_q5_k(block: &[u8; 176], x: &mut [f32; LEN]) {
    decode(&block[..16], &block[48..], |sub, i| (block[16 + i] >> sub & 1) << 4, x);
}

fn decode(head: &[u8], nibbles: &[u8], high: impl Fn(usize, usize) -> u8, x: &mut [f32; LEN]) {
    let (d, dmin) = (half_at(head, 0), half_at(head, 2));
    let (scales, mins) = unpack_scales(&head[4..]);
    for (sub, x) in x.as_chunks_mut::<SUB_LEN>().0.iter_mut().enumerate() {
        let (scale, min) = (d * f32::from(scales[sub]), dmin * f32::from(mins[sub]));
        for (i, x) in x.iter_mut().enumerate() {
            let low = nibbles[sub / 2 * SUB_LEN + i] >> (4 * (sub % 2)) & 15;
            *x = scale * f32::from(low | high(sub, i)) - min;
        }
    }
}

/// Searches scales, rounds them to what the block can store, and rounds the elements with those.
fn fit(block: &[f32; LEN], top: f32) -> Fields {
    let x: Lanes<SUBS, SUB_LEN> = side_by_side(block);
    let weight = weights(&x);
    let Affine { scale, min } = affine(&x, &weight, top);
    let largest = |values: [f32; SUBS]| values.into_iter().fold(0f32, f32::max);
    let d = f16::from_f32(largest(scale) / TOP_SCALE);
    let dmin = f16::from_f32(largest(min.map(|min| -min)) / TOP_SCALE);
    // Divided by what will be stored: a small d is subnormal in f16, and rounded coarsely.
    let sixth = |value: f32, unit: f16| round(value * inverse(unit.to_f32())).clamp(0.0, TOP_SCALE) as u8;
    let (scales, mins) = (scale.map(|scale| sixth(scale, d)), min.map(|min| sixth(-min, dmin)));
    let q = levels(&x, &scales.map(|s| d.to_f32() * f32::from(s)), &mins.map(|m| dmin.to_f32() * f32::from(m)), top);
    Fields { d, dmin, scales, mins, q }
}

/// Large elements count more: they make most of a dot product's error.
fn weights(x: &Lanes<SUBS, SUB_LEN>) -> Lanes<SUBS, SUB_LEN> {
    let mut squares = [0f32; SUBS];
    for x in x {
        for sub in 0..SUBS {
            squares[sub] += x[sub] * x[sub];
        }
    }
    let rms = squares.map(|sum| (sum / SUB_LEN as f32).sqrt());
    x.map(|x| std::array::from_fn(|sub| rms[sub] + x[sub].abs()))
}

fn levels(x: &Lanes<SUBS, SUB_LEN>, scale: &[f32; SUBS], min: &[f32; SUBS], top: f32) -> [[u8; SUBS]; SUB_LEN] {
    let inverse = scale.map(inverse);
    x.map(|x| std::array::from_fn(|sub| round(((x[sub] + min[sub]) * inverse[sub]).clamp(0.0, top)) as u8))
}

impl Fields {
    /// `d`, `dmin`, and the 6-bit numbers: of the first four sub-blocks in the low bits of the first eight bytes, of the last four
    /// as nibbles in the last four bytes, with their upper two bits on top of the first eight.
    fn pack_head(&self, head: &mut [u8]) {
        head[..2].copy_from_slice(&self.d.to_le_bytes());
        head[2..4].copy_from_slice(&self.dmin.to_le_bytes());
        for j in 0..4 {
            let (scale, min) = (self.scales[j + 4], self.mins[j + 4]);
            head[4 + j] = self.scales[j] | scale >> 4 << 6;
            head[8 + j] = self.mins[j] | min >> 4 << 6;
            head[12 + j] = (scale & 15) | min << 4;
        }
    }

    fn pack_nibbles(&self, bytes: &mut [u8]) {
        for (at, byte) in bytes.iter_mut().enumerate() {
            let (pair, q) = (at / SUB_LEN, &self.q[at % SUB_LEN]);
            *byte = (q[2 * pair] & 15) | q[2 * pair + 1] << 4;
        }
    }
}

fn unpack_scales(bytes: &[u8]) -> ([u8; SUBS], [u8; SUBS]) {
    let (mut scales, mut mins) = ([0; SUBS], [0; SUBS]);
    for j in 0..4 {
        (scales[j], mins[j]) = (bytes[j] & 63, bytes[4 + j] & 63);
        scales[j + 4] = (bytes[8 + j] & 15) | bytes[j] >> 6 << 4;
        mins[j + 4] = bytes[8 + j] >> 4 | bytes[4 + j] >> 6 << 4;
    }
    (scales, mins)
}
