//! Activations in two bf16 parts.

use half::bf16;

use super::multiply::multiply;
use super::operand::{Operand, Stored, Term};
use crate::cpu::reference::{greatest, noise};
use crate::cpu::simd::Level;

/// The largest error of a product with a weight in bf16 against sums in f64, relative to the root mean square of the results: `x Wᵀ`, or with `back`
/// `dy W`.
fn error(level: Level, split: bool, [rows, depth, columns]: [usize; 3], back: bool) -> f64 {
    let x = noise(1, rows * depth);
    let w: Vec<bf16> = noise(2, depth * columns).into_iter().map(bf16::from_f32).collect();
    let right = if back { Operand::terms(Stored::Bf16(&w), columns) } else { Operand::lines(Stored::Bf16(&w), depth) };
    let mut out = vec![f32::NAN; rows * columns];
    multiply(&[Term { left: Operand::lines(Stored::F32(&x), depth), right, depth, level, in_f16: false, split }], columns, None, &mut out);
    let exact: Vec<f64> = (0..rows * columns)
        .map(|at| {
            let (i, j) = (at / columns, at % columns);
            let w = |k: usize| w[if back { k * columns + j } else { j * depth + k }].to_f64();
            (0..depth).map(|k| f64::from(x[i * depth + k]) * w(k)).sum()
        })
        .collect();
    let rms = (exact.iter().map(|y| y * y).sum::<f64>() / exact.len() as f64).sqrt();
    greatest(out.iter().zip(&exact).map(|(&y, exact)| (f64::from(y) - exact).abs() / rms))
}

/// Two parts hold 16 bits: an activation is off by 2^-16 of itself at most. The largest error of thousands is held to twice what convolutions in
/// f32 are held to.
#[test]
fn two_parts_are_nearly_f32() {
    let all = [Level::Avx512Bf16, Level::Amx, Level::Bf16Model, Level::AmxModel];
    for level in all.into_iter().filter(|level| level.available()) {
        for (sizes, back) in [([33, 700, 50], false), ([33, 700, 50], true), ([70, 45, 97], false), ([9, 1025, 17], true)] {
            let [plain, split] = [false, true].map(|split| error(level, split, sizes, back));
            assert!(split <= 1.2e-5 && split <= plain / 50.0, "{level:?} {sizes:?} {back}: {split:e}, in one part {plain:e}");
        }
    }
}
