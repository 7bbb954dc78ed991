//! The inner loops, one per pass, each over one plane of one channel.

use crate::cpu::machine::RUN_OF_PLANE as RUN;
use crate::cpu::simd::{Simd, Task};

/// What normalising one channel needs: `z = (x - mean) scale + beta` with `scale = gamma rstd`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Channel {
    pub(super) mean: f32,
    pub(super) rstd: f32,
    pub(super) scale: f32,
    pub(super) beta: f32,
}

impl Channel {
    pub(super) fn new(mean: f32, variance: f32, gamma: f32, beta: f32, epsilon: f64) -> Self {
        let rstd = 1.0 / (f64::from(variance) + epsilon).sqrt();
        Self { mean, rstd: rstd as f32, scale: (f64::from(gamma) * rstd) as f32, beta }
    }
}

/// `[Σ (x - centre), Σ (x - centre)²]`.
pub(super) struct Sums<'a> {
    pub(super) x: &'a [f32],
    pub(super) centre: f32,
}

impl Task for Sums<'_> {
    type Out = [f64; 2];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> [f64; 2] {
        let centre = simd.splat(self.centre);
        let mut sums = [0.0; 2];
        for run in self.x.chunks(RUN) {
            // Two chains of additions each, since one addition takes longer than loading its operand.
            let (mut s, mut q) = ([simd.zero(); 2], [simd.zero(); 2]);
            let pairs = run.chunks_exact(2 * S::LANES);
            for part in pairs.remainder().chunks(S::LANES) {
                let d = simd.sub(simd.load_part(part, part.len()), centre);
                sums[0] += simd.total(d, part.len());
                sums[1] += simd.total(simd.mul(d, d), part.len());
            }
            for pair in pairs {
                let a = simd.sub(simd.load(pair), centre);
                let b = simd.sub(simd.load(&pair[S::LANES..]), centre);
                s = [simd.add(s[0], a), simd.add(s[1], b)];
                q = [simd.mul_add(a, a, q[0]), simd.mul_add(b, b, q[1])];
            }
            sums[0] += simd.total(simd.add(s[0], s[1]), S::LANES);
            sums[1] += simd.total(simd.add(q[0], q[1]), S::LANES);
        }
        sums
    }
}

/// out = silu(z) or z.
pub(super) struct Output<'a> {
    pub(super) x: &'a [f32],
    pub(super) channel: Channel,
    pub(super) silu: bool,
    pub(super) out: &'a mut [f32],
}

impl Task for Output<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Channel { mean, scale, beta, .. } = self.channel;
        let (mean, scale, beta) = (simd.splat(mean), simd.splat(scale), simd.splat(beta));
        for (x, out) in self.x.chunks(S::LANES).zip(self.out.chunks_mut(S::LANES)) {
            let z = simd.mul_add(simd.sub(simd.read(x), mean), scale, beta);
            simd.write(if self.silu { simd.silu(z) } else { z }, out);
        }
    }
}

/// dy becomes `dz = dy s (1 + z (1 - s))`, s = sigmoid(z), or stays dz; returns `[Σ dz, Σ dz (x - mean)]`.
pub(super) struct Slopes<'a> {
    pub(super) x: &'a [f32],
    pub(super) dy: &'a mut [f32],
    pub(super) channel: Channel,
    pub(super) silu: bool,
}

impl Task for Slopes<'_> {
    type Out = [f64; 2];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> [f64; 2] {
        let Channel { mean, scale, beta, .. } = self.channel;
        let (mean, scale, beta) = (simd.splat(mean), simd.splat(scale), simd.splat(beta));
        let mut sums = [0.0; 2];
        for (x, dy) in self.x.chunks(RUN).zip(self.dy.chunks_mut(RUN)) {
            let (mut sum, mut product) = (simd.zero(), simd.zero());
            for (x, dy) in x.chunks(S::LANES).zip(dy.chunks_mut(S::LANES)) {
                let (centred, mut dz) = (simd.sub(simd.read(x), mean), simd.read(dy));
                if self.silu {
                    let z = simd.mul_add(centred, scale, beta);
                    let s = simd.sigmoid(z);
                    // s (1 + z (1 - s)) = s + s z (1 - s)
                    let zs = simd.mul(z, s);
                    dz = simd.mul(dz, simd.add(s, simd.sub(zs, simd.mul(zs, s))));
                    simd.write(dz, dy);
                }
                let n = x.len();
                if n == S::LANES {
                    sum = simd.add(sum, dz);
                    product = simd.mul_add(dz, centred, product);
                } else {
                    sums[0] += simd.total(dz, n);
                    sums[1] += simd.total(simd.mul(dz, centred), n);
                }
            }
            sums[0] += simd.total(sum, S::LANES);
            sums[1] += simd.total(product, S::LANES);
        }
        sums
    }
}

/// dz becomes dx: `scale (dz - mean_dz - (x - mean) slope)`.
pub(super) struct InputGrad<'a> {
    pub(super) x: &'a [f32],
    pub(super) channel: Channel,
    /// dbeta / M.
    pub(super) mean_dz: f32,
    /// dgamma rstd / M.
    pub(super) slope: f32,
    pub(super) dz: &'a mut [f32],
}

impl Task for InputGrad<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (mean, scale) = (simd.splat(self.channel.mean), simd.splat(self.channel.scale));
        let (mean_dz, slope) = (simd.splat(self.mean_dz), simd.splat(self.slope));
        for (x, dz) in self.x.chunks(S::LANES).zip(self.dz.chunks_mut(S::LANES)) {
            let centred_dz = simd.sub(simd.read(dz), simd.mul_add(simd.sub(simd.read(x), mean), slope, mean_dz));
            simd.write(simd.mul(scale, centred_dz), dz);
        }
    }
}
