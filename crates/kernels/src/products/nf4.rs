//! NF4 with double quantisation (Dettmers et al. 2023): blocks of 64 values as 4-bit levels of their largest magnitude, and those magnitudes as
//! 8-bit numbers of their own. 4.127 bits a value.
//!
//! A block's values are divided by its largest magnitude and rounded to the nearest of [`LEVELS`], quantiles of a normal distribution. The
//! magnitudes, less their mean, are divided by the largest of 256 of them and rounded to the nearest of 256 numbers that lie closer together
//! towards 0 ([`MAGNITUDES`]). Levels, numbers and order are bitsandbytes', so the values are too. (The tables are a kilobyte a matrix besides.)

use std::sync::LazyLock;

use super::int8::by;
use crate::cpu::simd::Simd;

/// Values of a block.
pub(super) const BLOCK: usize = 64;
/// Blocks whose magnitudes share a scale.
pub(super) const GROUP: usize = 256;

/// What the 4-bit codes stand for: bitsandbytes' published table.
pub(super) const LEVELS: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// What the 8-bit codes of magnitudes stand for: of each sign, 2ⁱ means of neighbours among 2ⁱ + 1 numbers from 0.1 to 1, times 10^(i - 6), for i
/// from 0 to 6 (Dettmers 2015); 0, and 1.
pub(super) static MAGNITUDES: LazyLock<[f32; 256]> = LazyLock::new(|| {
    let mut numbers = vec![0.0, 1.0];
    for i in 0..7 {
        let count = 1 << i;
        let (step, scale) = (0.9 / f64::from(count), 10f64.powi(i - 6));
        let means = (0..count).map(|k| (scale * (0.1 + step * (f64::from(k) + 0.5))) as f32);
        numbers.extend(means.flat_map(|mean| [mean, -mean]));
    }
    numbers.sort_by(f32::total_cmp);
    std::array::from_fn(|i| numbers[i])
});

/// Bytes of the levels' codes, filled up to whole words; those of the magnitudes follow.
pub(super) fn level_bytes(values: usize) -> usize {
    values.div_ceil(8) * 4
}

/// The number of the nearest of some sorted ones; of two as near, the lower.
fn nearest(x: f32, sorted: &[f32]) -> u8 {
    let above = sorted.partition_point(|&level| level < x);
    let lower = above > 0 && (above == sorted.len() || x - sorted[above - 1] <= sorted[above] - x);
    (above - usize::from(lower)) as u8
}

/// Finite values as codes (those of the levels, then those of the blocks' magnitudes), and the scales of the magnitudes, then their mean; behind it both tables,
/// for devices that look them up.
pub(super) fn encode(values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let blocks = values.len().div_ceil(BLOCK);
    let mut codes = vec![0; level_bytes(values.len()) + blocks.next_multiple_of(4)];
    let (levels, magnitudes) = codes.split_at_mut(level_bytes(values.len()));
    let mut largest = Vec::with_capacity(blocks);
    for (block, codes) in values.chunks(BLOCK).zip(levels.chunks_mut(BLOCK / 2)) {
        let magnitude = block.iter().fold(0f32, |max, v| max.max(v.abs()));
        let quotient = by(magnitude);
        let level = |&v: &f32| nearest(quotient(v), &LEVELS);
        for (pair, code) in block.chunks(2).zip(codes) {
            *code = level(&pair[0]) << 4 | pair.get(1).map_or(0, level);
        }
        largest.push(magnitude);
    }
    let mean = (largest.iter().map(|&m| f64::from(m)).sum::<f64>() / blocks.max(1) as f64) as f32;
    let mut scales = Vec::with_capacity(blocks.div_ceil(GROUP) + 1);
    for (group, codes) in largest.chunks(GROUP).zip(magnitudes.chunks_mut(GROUP)) {
        let scale = group.iter().fold(0f32, |max, m| max.max((m - mean).abs()));
        let quotient = by(scale);
        group.iter().zip(codes).for_each(|(m, code)| *code = nearest(quotient(m - mean), &*MAGNITUDES));
        scales.push(scale);
    }
    scales.push(mean);
    scales.extend(LEVELS.iter().chain(&*MAGNITUDES));
    (codes, scales)
}

/// The values from `at` on of `values` in all.
#[inline(always)]
pub(super) fn decode<S: Simd>(s: S, codes: &[u8], scales: &[f32], values: usize, at: usize, out: &mut [f32]) {
    let (levels, magnitudes) = codes.split_at(level_bytes(values));
    let (mean, table) = (scales[values.div_ceil(BLOCK).div_ceil(GROUP)], &*MAGNITUDES);
    let mut done = 0;
    while done < out.len() {
        let first = at + done;
        let block = first / BLOCK;
        let count = (BLOCK - first % BLOCK).min(out.len() - done);
        let magnitude = table[usize::from(magnitudes[block])] * scales[block / GROUP] + mean;
        // Vectors begin with a whole byte.
        let in_vectors = if first.is_multiple_of(2) { count / S::LANES * S::LANES } else { 0 };
        let (vectors, rest) = out[done..done + count].split_at_mut(in_vectors);
        for (v, codes) in vectors.chunks_exact_mut(S::LANES).zip(levels[first / 2..].chunks_exact(S::LANES / 2)) {
            s.store(s.mul(s.look_up(&LEVELS, codes), s.splat(magnitude)), v);
        }
        for (i, v) in (first + in_vectors..).zip(rest) {
            let code = if i.is_multiple_of(2) { levels[i / 2] >> 4 } else { levels[i / 2] & 15 };
            *v = LEVELS[usize::from(code)] * magnitude;
        }
        done += count;
    }
}
