//! The inner loops, each over one row.

use crate::cpu::machine::RUN;
use crate::cpu::simd::{Simd, Task};

/// Turns a row into its softmax, or into exp(x - max) if it is not to be `scaled`; returns its maximum and Σ exp(x - max). A row with NaN or +inf, or of
/// nothing but -inf, becomes NaN, as does its sum.
pub(super) struct SoftmaxRow<'a> {
    pub(super) row: &'a mut [f32],
    pub(super) scaled: bool,
}

impl Task for SoftmaxRow<'_> {
    type Out = (f32, f64);

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> (f32, f64) {
        // What is NaN is no maximum, but minus the maximum it is NaN, and so is then the sum.
        let max = self.row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (centre, mut sum) = (simd.splat(max), 0.0);
        for run in self.row.chunks_mut(RUN * S::LANES) {
            let mut lanes = simd.zero();
            for part in run.chunks_mut(S::LANES) {
                let e = simd.exp(simd.sub(simd.read(part), centre));
                simd.write(e, part);
                if part.len() == S::LANES {
                    lanes = simd.add(lanes, e);
                } else {
                    sum += part.iter().map(|&v| f64::from(v)).sum::<f64>();
                }
            }
            sum += simd.total(lanes, S::LANES);
        }
        let scale = simd.splat((1.0 / sum) as f32);
        for part in self.row.chunks_mut(S::LANES).take(if self.scaled { usize::MAX } else { 0 }) {
            simd.write(simd.mul(simd.read(part), scale), part);
        }
        (max, sum)
    }
}
