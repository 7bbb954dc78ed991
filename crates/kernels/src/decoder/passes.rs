//! The inner loops, each over one row (or one stretch) of values.

use crate::cpu::machine::RUN;
use crate::cpu::simd::{Simd, Task};

/// `Σ f(i ..)` over `len` values in order: `f(at, n)` returns the vector of the n values at `at`, 0 beyond n.
#[inline(always)]
fn sum<S: Simd>(simd: S, len: usize, f: impl Fn(usize, usize) -> S::V) -> f64 {
    let mut total = 0.0;
    for start in (0..len).step_by(RUN * S::LANES) {
        let end = len.min(start + RUN * S::LANES);
        let mut lanes = simd.zero();
        for at in (start..end).step_by(S::LANES) {
            lanes = simd.add(lanes, f(at, S::LANES.min(end - at)));
        }
        total += simd.total(lanes, S::LANES);
    }
    total
}

/// Writes `f(i ..)` to each stretch of `out`.
#[inline(always)]
fn write<S: Simd>(simd: S, out: &mut [f32], f: impl Fn(usize, usize) -> S::V) {
    for (i, part) in out.chunks_mut(S::LANES).enumerate() {
        simd.write(f(i * S::LANES, part.len()), part);
    }
}

/// ρ = 1 / sqrt(mean(x²) + ε).
#[inline(always)]
fn rho<S: Simd>(simd: S, x: &[f32], epsilon: f64) -> f32 {
    let squares = sum(simd, x.len(), |at, n| {
        let x = simd.read(&x[at..at + n]);
        simd.mul(x, x)
    });
    (1.0 / (squares / x.len() as f64 + epsilon).sqrt()) as f32
}

/// out = x ρ w.
pub(super) struct RmsNorm<'a> {
    pub(super) x: &'a [f32],
    pub(super) weight: &'a [f32],
    pub(super) epsilon: f64,
    pub(super) out: &'a mut [f32],
}

impl Task for RmsNorm<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { x, weight, epsilon, out } = self;
        let rho = simd.splat(rho(simd, x, epsilon));
        write(simd, out, |at, n| simd.mul(simd.mul(simd.read(&x[at..at + n]), rho), simd.read(&weight[at..at + n])));
    }
}

/// dy becomes dx = ρ (g - x ρ² mean(g x)), g = w dy.
pub(super) struct RmsNormGrad<'a> {
    pub(super) x: &'a [f32],
    pub(super) weight: &'a [f32],
    pub(super) epsilon: f64,
    pub(super) dy: &'a mut [f32],
}

impl Task for RmsNormGrad<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { x, weight, epsilon, dy } = self;
        let rho = rho(simd, x, epsilon);
        let along = sum(simd, x.len(), |at, n| {
            let g = simd.mul(simd.read(&weight[at..at + n]), simd.read(&dy[at..at + n]));
            simd.mul(g, simd.read(&x[at..at + n]))
        });
        let along = along / x.len() as f64 * f64::from(rho) * f64::from(rho);
        let (rho, minus) = (simd.splat(rho), simd.splat(-along as f32));
        for (i, dy) in dy.chunks_mut(S::LANES).enumerate() {
            let (at, n) = (i * S::LANES, dy.len());
            let g = simd.mul(simd.read(&weight[at..at + n]), simd.read(dy));
            let dx = simd.mul(simd.mul_add(simd.read(&x[at..at + n]), minus, g), rho);
            simd.write(dx, dy);
        }
    }
}

/// out = silu(gate) up.
pub(super) struct Swiglu<'a> {
    pub(super) gate: &'a [f32],
    pub(super) up: &'a [f32],
    pub(super) out: &'a mut [f32],
}

impl Task for Swiglu<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { gate, up, out } = self;
        write(simd, out, |at, n| simd.mul(simd.silu(simd.read(&gate[at..at + n])), simd.read(&up[at..at + n])));
    }
}

/// dy becomes dgate = dy up s (1 + gate (1 - s)), and dup = dy gate s.
pub(super) struct SwigluGrad<'a> {
    pub(super) gate: &'a [f32],
    pub(super) up: &'a [f32],
    pub(super) dy: &'a mut [f32],
    pub(super) dup: &'a mut [f32],
}

impl Task for SwigluGrad<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (i, (dy, dup)) in self.dy.chunks_mut(S::LANES).zip(self.dup.chunks_mut(S::LANES)).enumerate() {
            let (at, n) = (i * S::LANES, dy.len());
            let (gate, d) = (simd.read(&self.gate[at..at + n]), simd.read(dy));
            let s = simd.sigmoid(gate);
            let silu = simd.mul(gate, s);
            // s (1 + gate (1 - s)) = s + silu - silu s
            let slope = simd.add(s, simd.sub(silu, simd.mul(silu, s)));
            simd.write(simd.mul(d, silu), dup);
            simd.write(simd.mul(simd.mul(d, simd.read(&self.up[at..at + n])), slope), dy);
        }
    }
}

/// `[x1 cos - x2 sin, x2 cos + x1 sin]` of one head's d values; `sin` times `sign`.
pub(super) struct Turn<'a> {
    pub(super) x: &'a [f32],
    pub(super) cos: &'a [f32],
    pub(super) sin: &'a [f32],
    pub(super) sign: f32,
    pub(super) out: &'a mut [f32],
}

impl Task for Turn<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let half = self.cos.len();
        let (x1, x2) = self.x.split_at(half);
        let (first, second) = self.out.split_at_mut(half);
        let sign = simd.splat(self.sign);
        for (i, (first, second)) in first.chunks_mut(S::LANES).zip(second.chunks_mut(S::LANES)).enumerate() {
            let (at, n) = (i * S::LANES, first.len());
            let (a, b) = (simd.read(&x1[at..at + n]), simd.read(&x2[at..at + n]));
            let (cos, sin) = (simd.read(&self.cos[at..at + n]), simd.mul(simd.read(&self.sin[at..at + n]), sign));
            simd.write(simd.sub(simd.mul(a, cos), simd.mul(b, sin)), first);
            simd.write(simd.mul_add(a, sin, simd.mul(b, cos)), second);
        }
    }
}
