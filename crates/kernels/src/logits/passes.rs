//! The inner loops.

use crate::cpu::machine::RUN;
use crate::cpu::simd::{MAX_LANES, Simd, Task};

/// Writes `sigmoid(x)` and returns `Σ softplus(x)`.
///
/// `softplus(x) = max(x, 0) + log(1 + exp(-|x|))`, and a sum of logarithms is the logarithm of a product. What is kept is the product minus one,
/// so that factors next to one, of which a detector's background is made, lose no digits. A factor is at most 2, so that of
/// [`RUN`] is below 2^64.
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

/// `out[j] = Σ k e_k / Σ e_k` with `e_k = exp(x[k * stride + j] - max)`, over `bins` rows.
pub(super) struct Expectation<'a> {
    pub(super) x: &'a [f32],
    pub(super) stride: usize,
    pub(super) bins: usize,
    pub(super) out: &'a mut [f32],
}

impl Task for Expectation<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows = || self.x.chunks(self.stride).take(self.bins);
        for (i, out) in self.out.chunks_mut(S::LANES).enumerate() {
            let (at, n) = (i * S::LANES, out.len());
            let mut max = simd.splat(f32::NEG_INFINITY);
            for row in rows() {
                max = simd.max(max, simd.load_part(&row[at..], n));
            }
            let (mut sum, mut weighted, mut k) = (simd.zero(), simd.zero(), 0.0);
            for row in rows() {
                // Of what is no number, or infinite, this is none, whatever the maximum is.
                let e = simd.exp(simd.sub(simd.load_part(&row[at..], n), max));
                sum = simd.add(sum, e);
                weighted = simd.mul_add(simd.splat(k), e, weighted);
                k += 1.0;
            }
            simd.store_part(simd.div(weighted, sum), out, n);
        }
    }
}
