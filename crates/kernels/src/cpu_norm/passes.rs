//! The inner loops, one per pass, each over one plane of one channel.

use super::{Channel, RUN};
use crate::cpu::simd::{Simd, Task};

/// At least any instruction set's `LANES`.
const MAX_LANES: usize = 64;

/// The sum of the first `n` lanes.
#[inline(always)]
fn total<S: Simd>(simd: S, v: S::V, n: usize) -> f64 {
    let mut lanes = [0.0; MAX_LANES];
    simd.store_part(v, &mut lanes, n);
    let mut sum = 0.0;
    for &lane in &lanes[..n] {
        sum += f64::from(lane);
    }
    sum
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
                sums[0] += total(simd, d, part.len());
                sums[1] += total(simd, simd.mul(d, d), part.len());
            }
            for pair in pairs {
                let a = simd.sub(simd.load(pair), centre);
                let b = simd.sub(simd.load(&pair[S::LANES..]), centre);
                s = [simd.add(s[0], a), simd.add(s[1], b)];
                q = [simd.mul_add(a, a, q[0]), simd.mul_add(b, b, q[1])];
            }
            sums[0] += total(simd, simd.add(s[0], s[1]), S::LANES);
            sums[1] += total(simd, simd.add(q[0], q[1]), S::LANES);
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
            let n = x.len();
            let value = if n == S::LANES { simd.load(x) } else { simd.load_part(x, n) };
            let z = simd.mul_add(simd.sub(value, mean), scale, beta);
            let y = if self.silu { simd.silu(z) } else { z };
            if n == S::LANES { simd.store(y, out) } else { simd.store_part(y, out, n) }
        }
    }
}

/// A channel's constants, in every lane.
struct Lanes<S: Simd> {
    mean: S::V,
    scale: S::V,
    beta: S::V,
}

impl<S: Simd> Lanes<S> {
    #[inline(always)]
    fn new(simd: S, channel: Channel) -> Self {
        Self { mean: simd.splat(channel.mean), scale: simd.splat(channel.scale), beta: simd.splat(channel.beta) }
    }

    /// `(x - mean, dz)`.
    #[inline(always)]
    fn slope(&self, simd: S, x: S::V, dy: S::V, silu: bool) -> (S::V, S::V) {
        let centred = simd.sub(x, self.mean);
        if !silu {
            return (centred, dy);
        }
        let z = simd.mul_add(centred, self.scale, self.beta);
        let s = simd.sigmoid(z);
        // s (1 + z (1 - s)) = s + s z (1 - s)
        let zs = simd.mul(z, s);
        let slope = simd.add(s, simd.sub(zs, simd.mul(zs, s)));
        (centred, simd.mul(dy, slope))
    }
}

/// `[Σ dz, Σ dz (x - mean)]`.
pub(super) struct GradSums<'a> {
    pub(super) x: &'a [f32],
    pub(super) dy: &'a [f32],
    pub(super) channel: Channel,
    pub(super) silu: bool,
}

impl Task for GradSums<'_> {
    type Out = [f64; 2];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> [f64; 2] {
        let channel = Lanes::new(simd, self.channel);
        let mut sums = [0.0; 2];
        for (x, dy) in self.x.chunks(RUN).zip(self.dy.chunks(RUN)) {
            let (mut s, mut p) = (simd.zero(), simd.zero());
            for (x, dy) in x.chunks(S::LANES).zip(dy.chunks(S::LANES)) {
                let n = x.len();
                if n == S::LANES {
                    let (centred, dz) = channel.slope(simd, simd.load(x), simd.load(dy), self.silu);
                    s = simd.add(s, dz);
                    p = simd.mul_add(dz, centred, p);
                } else {
                    // Lanes beyond the end read dy = 0: dz = 0 there.
                    let (centred, dz) = channel.slope(simd, simd.load_part(x, n), simd.load_part(dy, n), self.silu);
                    sums[0] += total(simd, dz, n);
                    sums[1] += total(simd, simd.mul(dz, centred), n);
                }
            }
            sums[0] += total(simd, s, S::LANES);
            sums[1] += total(simd, p, S::LANES);
        }
        sums
    }
}

/// dy becomes `scale (dz - mean_dz - (x - mean) slope)`.
pub(super) struct InputGrad<'a> {
    pub(super) x: &'a [f32],
    pub(super) channel: Channel,
    /// dbeta / M.
    pub(super) mean_dz: f32,
    /// dgamma rstd / M.
    pub(super) slope: f32,
    pub(super) silu: bool,
    pub(super) dy: &'a mut [f32],
}

impl Task for InputGrad<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let channel = Lanes::new(simd, self.channel);
        let (mean_dz, slope) = (simd.splat(self.mean_dz), simd.splat(self.slope));
        for (x, dy) in self.x.chunks(S::LANES).zip(self.dy.chunks_mut(S::LANES)) {
            let n = x.len();
            let (xs, dys) = if n == S::LANES { (simd.load(x), simd.load(dy)) } else { (simd.load_part(x, n), simd.load_part(dy, n)) };
            let (centred, dz) = channel.slope(simd, xs, dys, self.silu);
            let centred_dz = simd.sub(dz, simd.mul_add(centred, slope, mean_dz));
            let dx = simd.mul(channel.scale, centred_dz);
            if n == S::LANES { simd.store(dx, dy) } else { simd.store_part(dx, dy, n) }
        }
    }
}
