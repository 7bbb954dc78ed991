//! The inner loop.

use crate::cpu::simd::{MAX_LANES, Simd, Task};

/// Vectors whose factors `1 + exp(-|x|)`, at most 2 each, are multiplied before a logarithm is taken: the product stays below 2^64.
const RUN: usize = 64;

/// Writes `sigmoid(x)` and returns `Σ softplus(x)`.
///
/// `softplus(x) = max(x, 0) + log(1 + exp(-|x|))`, and a sum of logarithms is the logarithm of a product. What is kept is the product minus one,
/// so that factors next to one, of which a detector's background is made, lose no digits.
pub(super) struct Softplus<'a> {
    pub(super) x: &'a [f32],
    pub(super) slope: &'a mut [f32],
}

impl Task for Softplus<'_> {
    type Out = f64;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f64 {
        let mut total = 0.0;
        for (x, slope) in self.x.chunks(RUN * S::LANES).zip(self.slope.chunks_mut(RUN * S::LANES)) {
            let (mut positive, mut product) = (simd.zero(), simd.zero());
            for (x, slope) in x.chunks(S::LANES).zip(slope.chunks_mut(S::LANES)) {
                let n = x.len();
                let x = if n == S::LANES {
                    simd.load(x)
                } else {
                    // What is missing adds nothing.
                    let mut rest = [f32::NEG_INFINITY; MAX_LANES];
                    rest[..n].copy_from_slice(x);
                    simd.load(&rest)
                };
                simd.store_part(simd.sigmoid(x), slope, n);
                let e = simd.exp(simd.min(simd.sub(simd.zero(), x), x));
                // (1 + p)(1 + e) - 1 = p + (e p + e)
                product = simd.add(product, simd.mul_add(e, product, e));
                positive = simd.add(positive, simd.max(simd.zero(), x));
            }
            let mut lanes = [[0.0; MAX_LANES]; 2];
            simd.store(positive, &mut lanes[0]);
            simd.store(product, &mut lanes[1]);
            for (&positive, &product) in lanes[0][..S::LANES].iter().zip(&lanes[1]) {
                total += f64::from(positive) + f64::from(product).ln_1p();
            }
        }
        total
    }
}
