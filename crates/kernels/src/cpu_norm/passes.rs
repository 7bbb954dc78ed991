//! The inner loops, one per pass, each over one plane of one channel.

use crate::cpu::machine::RUN_OF_PLANE as RUN;
use crate::cpu::simd::Simd;
use crate::tasks::task;

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

    /// silu(z) or z.
    #[inline(always)]
    fn output<S: Simd>(&self, simd: S, x: S::V, silu: bool) -> S::V {
        let z = simd.mul_add(simd.sub(x, simd.splat(self.mean)), simd.splat(self.scale), simd.splat(self.beta));
        if silu { simd.silu(z) } else { z }
    }

    /// `[dz, x - mean]` of `dy`.
    #[inline(always)]
    fn slopes<S: Simd>(&self, simd: S, x: S::V, dy: S::V, silu: bool) -> [S::V; 2] {
        let centred = simd.sub(x, simd.splat(self.mean));
        if !silu {
            return [dy, centred];
        }
        let z = simd.mul_add(centred, simd.splat(self.scale), simd.splat(self.beta));
        let s = simd.sigmoid(z);
        // s (1 + z (1 - s)) = s + s z (1 - s)
        let zs = simd.mul(z, s);
        [simd.mul(dy, simd.add(s, simd.sub(zs, simd.mul(zs, s)))), centred]
    }
}

/// The whole vectors of both, and what is left of each: a loop over parts that are all whole has no branches, and more of it is under way at once.
#[inline(always)]
fn split<'a, S: Simd>(x: &'a [f32], out: &'a mut [f32]) -> ([&'a [f32]; 2], [&'a mut [f32]; 2]) {
    let whole = x.len() / S::LANES * S::LANES;
    let ((x, rest), (out, rest_out)) = (x.split_at(whole), out.split_at_mut(whole));
    ([x, rest], [out, rest_out])
}

task! {
    /// `[Σ (x - centre), Σ (x - centre)²]`.
    pub(super) fn sums<S>(simd, x: &'a [f32], centre: f32) -> [f64; 2] {
        let centre = simd.splat(centre);
        let mut sums = [0.0; 2];
        for run in x.chunks(RUN) {
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

    /// out = silu(z) or z.
    pub(super) fn output<S>(simd, x: &'a [f32], channel: Channel, silu: bool, out: &'a mut [f32]) {
        let ([x, rest], [out, rest_out]) = split::<S>(x, out);
        for (x, out) in x.chunks_exact(S::LANES).zip(out.chunks_exact_mut(S::LANES)) {
            simd.store(channel.output(simd, simd.load(x), silu), out);
        }
        simd.write(channel.output(simd, simd.read(rest), silu), rest_out);
    }

    /// dy becomes `dz = dy s (1 + z (1 - s))`, s = sigmoid(z), or stays dz; returns `[Σ dz, Σ dz (x - mean)]`.
    pub(super) fn slopes<S>(simd, x: &'a [f32], dy: &'a mut [f32], channel: Channel, silu: bool) -> [f64; 2] {
        let mut sums = [0.0; 2];
        for (x, dy) in x.chunks(RUN).zip(dy.chunks_mut(RUN)) {
            let (mut sum, mut product) = (simd.zero(), simd.zero());
            let ([x, rest], [dy, rest_dy]) = split::<S>(x, dy);
            for (x, dy) in x.chunks_exact(S::LANES).zip(dy.chunks_exact_mut(S::LANES)) {
                let [dz, centred] = channel.slopes(simd, simd.load(x), simd.load(dy), silu);
                simd.store(dz, dy);
                sum = simd.add(sum, dz);
                product = simd.mul_add(dz, centred, product);
            }
            if !rest.is_empty() {
                let [dz, centred] = channel.slopes(simd, simd.read(rest), simd.read(rest_dy), silu);
                simd.write(dz, rest_dy);
                sums[0] += simd.total(dz, rest.len());
                sums[1] += simd.total(simd.mul(dz, centred), rest.len());
            }
            sums[0] += simd.total(sum, S::LANES);
            sums[1] += simd.total(product, S::LANES);
        }
        sums
    }

    /// dz becomes dx: `scale (dz - mean_dz - (x - mean) slope)`, where `mean_dz` is dbeta / M and `slope` dgamma rstd / M.
    pub(super) fn input_grad<S>(simd, x: &'a [f32], channel: Channel, mean_dz: f32, slope: f32, dz: &'a mut [f32]) {
        let (mean, scale) = (simd.splat(channel.mean), simd.splat(channel.scale));
        let of = [mean, scale, simd.splat(mean_dz), simd.splat(slope)];
        let ([x, rest], [dz, rest_dz]) = split::<S>(x, dz);
        for (x, dz) in x.chunks_exact(S::LANES).zip(dz.chunks_exact_mut(S::LANES)) {
            simd.store(vector_grad(simd, simd.load(x), simd.load(dz), of), dz);
        }
        simd.write(vector_grad(simd, simd.read(rest), simd.read(rest_dz), of), rest_dz);
    }
}

#[inline(always)]
fn vector_grad<S: Simd>(simd: S, x: S::V, dz: S::V, [mean, scale, mean_dz, slope]: [S::V; 4]) -> S::V {
    simd.mul(scale, simd.sub(dz, simd.mul_add(simd.sub(x, mean), slope, mean_dz)))
}
