//! What happens between the matrix products of a decoder layer: RMS norm, the gated SiLU, attention's softmax, rotary positions.
//!
//! As with [`planes`](crate::planes), none of it computes much: composed of Burn's operations each is half a dozen passes over memory, some of them on
//! one core. Here each is one pass forward and one backward, and what a backward pass can compute from the inputs is not kept.

mod cube;
mod cube_kernels;
mod portable;
#[cfg(test)]
mod tests;

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::Tensor;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use crate::buffers::{all_f32, changed, contiguous, owned, take, tensor, values, written};
use crate::cpu::machine::{RUN, TASK, worth_a_task};
use crate::cpu::simd::{self, Simd};
use crate::planes::PlaneOps;
use crate::several::recorded_several;
use crate::shapes;
use crate::steps::{Autodiff, CheckpointStrategy, recorded};
use crate::tasks::task;

/// In the mask of [`DecoderOps::masked_softmax`]: this key is not seen. Far below any score, and finite, so that a row of nothing else is
/// uniform rather than no number.
pub const BLOCKED: f32 = -1e30;

/// Operations of a decoder layer.
#[backend_extension(Flex, Cube, Autodiff)]
pub trait DecoderOps: PlaneOps {
    /// `x / sqrt(mean(x²) + ε) ⊙ w` over the last dimension, K (Zhang and Sennrich 2019). x `[.., K]`, w `[K]`.
    fn rms_norm(x: Float<Self>, weight: Float<Self>, epsilon: f64) -> Float<Self>;

    /// Its gradient for x: with `ρ = 1 / sqrt(mean(x²) + ε)` and `g = w ⊙ dy`, `dx = ρ (g - x ρ² mean(g ⊙ x))`.
    fn rms_norm_data_grad(x: Float<Self>, weight: Float<Self>, dy: Float<Self>, epsilon: f64) -> Float<Self> {
        portable::rms_norm_data_grad::<Self>(x, weight, dy, epsilon)
    }

    /// The same added to `held`.
    fn rms_norm_data_grad_onto(x: Float<Self>, weight: Float<Self>, dy: Float<Self>, held: Float<Self>, epsilon: f64) -> Float<Self> {
        Self::add(Self::rms_norm_data_grad(x, weight, dy, epsilon), held)
    }

    /// Its gradient for w, `[K]`: `Σ dy ⊙ x ρ` over all but the last dimension.
    fn rms_norm_weight_grad(x: Float<Self>, dy: Float<Self>, epsilon: f64) -> Float<Self> {
        portable::rms_norm_weight_grad::<Self>(x, dy, epsilon)
    }

    /// `gate sigmoid(gate) ⊙ up` (Shazeer 2020), any shape.
    fn swiglu(gate: Float<Self>, up: Float<Self>) -> Float<Self>;

    /// Its gradients for gate and up: with s = sigmoid(gate), `dy up s (1 + gate (1 - s))` and `dy gate s`.
    fn swiglu_grad(gate: Float<Self>, up: Float<Self>, dy: Float<Self>) -> (Float<Self>, Float<Self>) {
        portable::swiglu_grad::<Self>(gate, up, dy)
    }

    /// `softmax(scale scores + mask)` over keys. Scores `[B, H, R, T]`, mask `[1 or B, 1, R, T]` of 0 and [`BLOCKED`].
    fn masked_softmax(scores: Float<Self>, mask: Float<Self>, scale: f64) -> Float<Self> {
        portable::masked_softmax::<Self>(scores, mask, scale)
    }

    /// Its gradient for the scores, from its result p: `scale p ⊙ (dp - Σ p ⊙ dp)`.
    fn masked_softmax_grad(p: Float<Self>, dp: Float<Self>, scale: f64) -> Float<Self> {
        portable::masked_softmax_grad::<Self>(p, dp, scale)
    }

    /// Turns the two halves of each head as the coordinates of d / 2 rotations (Su et al. 2021), and puts heads before positions: queries and keys
    /// `[B, S, n, d]`, each of its own n, to `[B, n, S, d]`; cos and sin `[1 or B, 1, S, d / 2]`.
    fn rotate(q: Float<Self>, k: Float<Self>, cos: Float<Self>, sin: Float<Self>) -> (Float<Self>, Float<Self>);

    /// The way back, which is also the gradient: `[B, n, S, d]` to `[B, S, n, d]`.
    fn rotate_back(q: Float<Self>, k: Float<Self>, cos: Float<Self>, sin: Float<Self>) -> (Float<Self>, Float<Self>) {
        let one = |y| portable::rotate_back::<Self>(y, cos.clone(), sin.clone());
        (one(q), one(k))
    }
}

/// [`DecoderOps::rms_norm`], differentiable.
pub fn rms_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, epsilon: f64) -> Tensor<D> {
    shapes::expect("the weight", weight.dims(), [x.dims()[D - 1]]);
    Tensor::from_dispatch(Dispatch::rms_norm(x.into_dispatch(), weight.into_dispatch(), epsilon))
}

/// [`DecoderOps::swiglu`], differentiable.
pub fn swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    shapes::expect("up", up.dims(), gate.dims());
    Tensor::from_dispatch(Dispatch::swiglu(gate.into_dispatch(), up.into_dispatch()))
}

/// [`DecoderOps::rotate`], differentiable in queries and keys.
pub fn rotate(q: Tensor<4>, k: Tensor<4>, cos: Tensor<4>, sin: Tensor<4>) -> [Tensor<4>; 2] {
    let ([b, s, _, d], [held, ..]) = (q.dims(), cos.dims());
    assert!(d % 2 == 0, "heads of {d} have no halves");
    let [.., heads, _] = k.dims();
    shapes::expect("the keys", k.dims(), [b, s, heads, d]);
    for (name, table) in [("cos", &cos), ("sin", &sin)] {
        shapes::expect(name, table.dims(), [if held == 1 { 1 } else { b }, 1, s, d / 2]);
    }
    let [q, k, cos, sin] = [q, k, cos, sin].map(Tensor::into_dispatch);
    let (q, k) = Dispatch::rotate(q, k, cos, sin);
    [q, k].map(Tensor::from_dispatch)
}

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

task! {
    /// out = x ρ w.
    fn norm_row<S>(simd, x: &'a [f32], weight: &'a [f32], epsilon: f64, out: &'a mut [f32]) {
        let rho = simd.splat(rho(simd, x, epsilon));
        write(simd, out, |at, n| simd.mul(simd.mul(simd.read(&x[at..at + n]), rho), simd.read(&weight[at..at + n])));
    }

    /// dy becomes dx = ρ (g - x ρ² mean(g x)), g = w dy.
    fn norm_row_grad<S>(simd, x: &'a [f32], weight: &'a [f32], epsilon: f64, dy: &'a mut [f32]) {
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

    /// out = silu(gate) up.
    fn gated<S>(simd, gate: &'a [f32], up: &'a [f32], out: &'a mut [f32]) {
        write(simd, out, |at, n| simd.mul(simd.silu(simd.read(&gate[at..at + n])), simd.read(&up[at..at + n])));
    }

    /// dy becomes dgate = dy up s (1 + gate (1 - s)), and dup = dy gate s.
    fn gated_grad<S>(simd, gate: &'a [f32], up: &'a [f32], dy: &'a mut [f32], dup: &'a mut [f32]) {
        for (i, (dy, dup)) in dy.chunks_mut(S::LANES).zip(dup.chunks_mut(S::LANES)).enumerate() {
            let (at, n) = (i * S::LANES, dy.len());
            let (gate, d) = (simd.read(&gate[at..at + n]), simd.read(dy));
            let s = simd.sigmoid(gate);
            let silu = simd.mul(gate, s);
            // s (1 + gate (1 - s)) = s + silu - silu s
            let slope = simd.add(s, simd.sub(silu, simd.mul(silu, s)));
            simd.write(simd.mul(d, silu), dup);
            simd.write(simd.mul(simd.mul(d, simd.read(&up[at..at + n])), slope), dy);
        }
    }

    /// `[x1 cos - x2 sin, x2 cos + x1 sin]` of one head's d values; `sin` times `sign`.
    fn turn<S>(simd, x: &'a [f32], cos: &'a [f32], sin: &'a [f32], sign: f32, out: &'a mut [f32]) {
        let (x1, x2) = x.split_at(cos.len());
        let (first, second) = out.split_at_mut(cos.len());
        let sign = simd.splat(sign);
        for (i, (first, second)) in first.chunks_mut(S::LANES).zip(second.chunks_mut(S::LANES)).enumerate() {
            let (at, n) = (i * S::LANES, first.len());
            let (a, b) = (simd.read(&x1[at..at + n]), simd.read(&x2[at..at + n]));
            let (cos, sin) = (simd.read(&cos[at..at + n]), simd.mul(simd.read(&sin[at..at + n]), sign));
            simd.write(simd.sub(simd.mul(a, cos), simd.mul(b, sin)), first);
            simd.write(simd.mul_add(a, sin, simd.mul(b, cos)), second);
        }
    }
}

/// Whether all of these are f32, and the first is not empty.
fn ours<const N: usize>(all: [&FlexTensor; N]) -> bool {
    all_f32(all) && all[0].shape().num_elements() > 0
}

impl DecoderOps for Flex {
    fn rms_norm(x: FlexTensor, weight: FlexTensor, epsilon: f64) -> FlexTensor {
        let true = ours([&x, &weight]) else { return portable::rms_norm::<Self>(x, weight, epsilon) };
        let (x, weight, level) = (contiguous(x), contiguous(weight), simd::level());
        let (weight, k) = (values(&weight), values(&weight).len());
        written(x.shape(), |out| {
            let rows = out.par_chunks_mut(k).zip(values(&x).par_chunks(k)).with_min_len(worth_a_task(k));
            rows.for_each(|(out, x)| norm_row(level, x, weight, epsilon, out));
        })
    }

    fn rms_norm_data_grad(x: FlexTensor, weight: FlexTensor, dy: FlexTensor, epsilon: f64) -> FlexTensor {
        let true = ours([&x, &weight, &dy]) else { return portable::rms_norm_data_grad::<Self>(x, weight, dy, epsilon) };
        let (x, weight, level) = (contiguous(x), contiguous(weight), simd::level());
        let (weight, k) = (values(&weight), values(&weight).len());
        changed(dy, |dx| {
            let rows = dx.par_chunks_mut(k).zip(values(&x).par_chunks(k)).with_min_len(worth_a_task(k));
            rows.for_each(|(dy, x)| norm_row_grad(level, x, weight, epsilon, dy));
        })
    }

    fn swiglu(gate: FlexTensor, up: FlexTensor) -> FlexTensor {
        let true = ours([&gate, &up]) else { return portable::swiglu::<Self>(gate, up) };
        let (gate, up, level) = (contiguous(gate), contiguous(up), simd::level());
        written(gate.shape(), |out| {
            let parts = out.par_chunks_mut(TASK).zip(values(&gate).par_chunks(TASK)).zip(values(&up).par_chunks(TASK));
            parts.for_each(|((out, gate), up)| gated(level, gate, up, out));
        })
    }

    fn swiglu_grad(gate: FlexTensor, up: FlexTensor, dy: FlexTensor) -> (FlexTensor, FlexTensor) {
        let true = ours([&gate, &up, &dy]) else { return portable::swiglu_grad::<Self>(gate, up, dy) };
        let (shape, gate, up, level) = (gate.shape(), contiguous(gate), contiguous(up), simd::level());
        let (mut dgate, mut dup) = (owned(contiguous(dy)), take(shape.num_elements()));
        let inputs = values(&gate).par_chunks(TASK).zip(values(&up).par_chunks(TASK));
        let parts = dgate.par_chunks_mut(TASK).zip(dup.par_chunks_mut(TASK)).zip(inputs);
        parts.for_each(|((dy, dup), (gate, up))| gated_grad(level, gate, up, dy, dup));
        (tensor(dgate, shape.clone()), tensor(dup, shape))
    }

    fn rotate(q: FlexTensor, k: FlexTensor, cos: FlexTensor, sin: FlexTensor) -> (FlexTensor, FlexTensor) {
        (turned(q, &cos, &sin, false), turned(k, &cos, &sin, false))
    }

    fn rotate_back(q: FlexTensor, k: FlexTensor, cos: FlexTensor, sin: FlexTensor) -> (FlexTensor, FlexTensor) {
        (turned(q, &cos, &sin, true), turned(k, &cos, &sin, true))
    }
}

/// Heads turned by their angles, `[B, S, n, d]` to `[B, n, S, d]`, or `back`.
fn turned(x: FlexTensor, cos: &FlexTensor, sin: &FlexTensor, back: bool) -> FlexTensor {
    if !ours([&x, cos, sin]) {
        let composed = if back { portable::rotate_back::<Flex> } else { portable::rotate::<Flex> };
        return composed(x, cos.clone(), sin.clone());
    }
    let ([held, _, s, half], [b, rows, columns, d]) = (cos.shape().dims::<4>(), x.shape().dims::<4>());
    let (x, cos, sin, level) = (contiguous(x), contiguous(cos.clone()), contiguous(sin.clone()), simd::level());
    let (from, cos, sin) = (values(&x), values(&cos), values(&sin));
    let sign = if back { -1.0 } else { 1.0 };
    written([b, columns, rows, d], |out| {
        out.par_chunks_mut(d).enumerate().with_min_len(worth_a_task(d)).for_each(|(i, out)| {
            // Row (text, column, row) of the output is row (text, row, column) of x.
            let (text, column, row) = (i / (rows * columns), i / rows % columns, i % rows);
            let (at, position) = (((text * rows + row) * columns + column) * d, if back { column } else { row });
            // One text's angles are all texts'.
            let angles = (if held == 1 { 0 } else { text * s } + position) * half;
            turn(level, &from[at..at + d], &cos[angles..angles + half], &sin[angles..angles + half], sign, out);
        });
    })
}

impl<B: DecoderOps, C: CheckpointStrategy> DecoderOps for Autodiff<B, C> {
    fn rms_norm(x: Float<Self>, weight: Float<Self>, epsilon: f64) -> Float<Self> {
        let (nodes, [x, weight]) = ([x.node(), weight.node()], [x, weight].map(|t| t.into_primitive()));
        let y = B::rms_norm(x.clone(), weight.clone(), epsilon);
        recorded::<B, C, 2>(nodes, &[], y, move |dy, mut parents| {
            parents.give::<B>(1, || B::rms_norm_weight_grad(x.clone(), dy.clone(), epsilon));
            parents.give_onto::<B>(0, |held| match held {
                Some(held) => B::rms_norm_data_grad_onto(x, weight, dy, held, epsilon),
                None => B::rms_norm_data_grad(x, weight, dy, epsilon),
            });
        })
    }

    fn swiglu(gate: Float<Self>, up: Float<Self>) -> Float<Self> {
        let (nodes, [gate, up]) = ([gate.node(), up.node()], [gate, up].map(|t| t.into_primitive()));
        let y = B::swiglu(gate.clone(), up.clone());
        recorded::<B, C, 2>(nodes, &[], y, move |dy, parents| {
            let (dgate, dup) = B::swiglu_grad(gate, up, dy);
            parents.give_all::<B>([dgate, dup]);
        })
    }

    fn rotate(q: Float<Self>, k: Float<Self>, cos: Float<Self>, sin: Float<Self>) -> (Float<Self>, Float<Self>) {
        let (nodes, [q, k, cos, sin]) = ([q.node(), k.node()], [q, k, cos, sin].map(|t| t.into_primitive()));
        let (q, k) = B::rotate(q, k, cos.clone(), sin.clone());
        let turned = recorded_several::<B, C, 2>(nodes, vec![q, k], move |mut dys, parents| {
            dys.sort_by_key(|(number, _)| *number);
            let Ok([(_, dq), (_, dk)]) = <[_; 2]>::try_from(dys) else { unreachable!("a gradient of queries and one of keys") };
            let (dq, dk) = B::rotate_back(dq, dk, cos, sin);
            parents.give_all::<B>([dq, dk]);
        });
        let Ok([q, k]) = <[_; 2]>::try_from(turned) else { unreachable!("queries and keys") };
        (q, k)
    }
}
