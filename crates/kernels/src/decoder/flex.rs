//! The decoder's operations on Flex: f32 through our loops and recycled memory, everything else through Burn's own.

use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::passes::{RmsNorm, RmsNormGrad, Swiglu, SwigluGrad, Turn};
use super::{DecoderOps, portable};
use crate::buffers::{all_f32, contiguous, owned, take, tensor, values};
use crate::cpu::simd;

/// Values per task below which splitting costs more than it brings.
const TASK: usize = 16 * 1024;

/// Whether all of these are f32, and the first is not empty.
fn ours<const N: usize>(all: [&FlexTensor; N]) -> bool {
    all_f32(all) && all[0].shape().num_elements() > 0
}

/// Rows of `width` values to a task.
fn rows_per_task(width: usize) -> usize {
    TASK.div_ceil(width)
}

/// The row of a table whose leading extent is 1 or B that belongs to row `i` of B times `rows`.
fn shared(i: usize, rows: usize, held: usize) -> usize {
    if held == 1 { i % rows } else { i }
}

impl DecoderOps for Flex {
    fn rms_norm(x: FlexTensor, weight: FlexTensor, epsilon: f64) -> FlexTensor {
        let true = ours([&x, &weight]) else { return portable::rms_norm::<Self>(x, weight, epsilon) };
        let (shape, x, weight, level) = (x.shape(), contiguous(x), contiguous(weight), simd::level());
        let weight = values(&weight);
        let (k, mut out) = (weight.len(), take(shape.num_elements()));
        let rows = out.par_chunks_mut(k).zip(values(&x).par_chunks(k)).with_min_len(rows_per_task(k));
        rows.for_each(|(out, x)| simd::run(level, RmsNorm { x, weight, epsilon, out }));
        tensor(out, shape)
    }

    fn rms_norm_data_grad(x: FlexTensor, weight: FlexTensor, dy: FlexTensor, epsilon: f64) -> FlexTensor {
        let true = ours([&x, &weight, &dy]) else { return portable::rms_norm_data_grad::<Self>(x, weight, dy, epsilon) };
        let (shape, x, weight, level) = (x.shape(), contiguous(x), contiguous(weight), simd::level());
        let (weight, mut dx) = (values(&weight), owned(contiguous(dy)));
        let k = weight.len();
        let rows = dx.par_chunks_mut(k).zip(values(&x).par_chunks(k)).with_min_len(rows_per_task(k));
        rows.for_each(|(dy, x)| simd::run(level, RmsNormGrad { x, weight, epsilon, dy }));
        tensor(dx, shape)
    }

    fn swiglu(gate: FlexTensor, up: FlexTensor) -> FlexTensor {
        let true = ours([&gate, &up]) else { return portable::swiglu::<Self>(gate, up) };
        let (shape, gate, up, level) = (gate.shape(), contiguous(gate), contiguous(up), simd::level());
        let mut out = take(shape.num_elements());
        let parts = out.par_chunks_mut(TASK).zip(values(&gate).par_chunks(TASK)).zip(values(&up).par_chunks(TASK));
        parts.for_each(|((out, gate), up)| simd::run(level, Swiglu { gate, up, out }));
        tensor(out, shape)
    }

    fn swiglu_grad(gate: FlexTensor, up: FlexTensor, dy: FlexTensor) -> (FlexTensor, FlexTensor) {
        let true = ours([&gate, &up, &dy]) else { return portable::swiglu_grad::<Self>(gate, up, dy) };
        let (shape, gate, up, level) = (gate.shape(), contiguous(gate), contiguous(up), simd::level());
        let (mut dgate, mut dup) = (owned(contiguous(dy)), take(shape.num_elements()));
        let inputs = values(&gate).par_chunks(TASK).zip(values(&up).par_chunks(TASK));
        let parts = dgate.par_chunks_mut(TASK).zip(dup.par_chunks_mut(TASK)).zip(inputs);
        parts.for_each(|((dy, dup), (gate, up))| simd::run(level, SwigluGrad { gate, up, dy, dup }));
        (tensor(dgate, shape.clone()), tensor(dup, shape))
    }

    fn rotate(q: FlexTensor, k: FlexTensor, cos: FlexTensor, sin: FlexTensor) -> (FlexTensor, FlexTensor) {
        let one = |x: FlexTensor| {
            let true = ours([&x, &cos, &sin]) else { return portable::rotate::<Self>(x, cos.clone(), sin.clone()) };
            let [b, s, n, d] = x.shape().dims();
            // Row (b, head, position) of the output is row (b, position, head) of x.
            turned(x, (&cos, &sin), [b, n, s, d], 1.0, |i| (i / (n * s) * s + i % s) * n + i / s % n, |i| i / (n * s) * s + i % s)
        };
        (one(q), one(k))
    }

    fn rotate_back(q: FlexTensor, k: FlexTensor, cos: FlexTensor, sin: FlexTensor) -> (FlexTensor, FlexTensor) {
        let one = |y: FlexTensor| {
            let true = ours([&y, &cos, &sin]) else { return portable::rotate_back::<Self>(y, cos.clone(), sin.clone()) };
            let [b, n, s, d] = y.shape().dims();
            turned(y, (&cos, &sin), [b, s, n, d], -1.0, |i| (i / (n * s) * n + i % n) * s + i / n % s, |i| i / n)
        };
        (one(q), one(k))
    }
}

/// Heads of x turned by the angles times `sign`: row i of the output is made of row `source(i)` of x and the angles of `position(i)`, b S + s.
fn turned(
    x: FlexTensor,
    (cos, sin): (&FlexTensor, &FlexTensor),
    shape: [usize; 4],
    sign: f32,
    source: impl Fn(usize) -> usize + Sync,
    position: impl Fn(usize) -> usize + Sync,
) -> FlexTensor {
    let ([held, _, s, half], d) = (cos.shape().dims::<4>(), shape[3]);
    let (x, cos, sin, level) = (contiguous(x), contiguous(cos.clone()), contiguous(sin.clone()), simd::level());
    let (from, cos, sin) = (values(&x), values(&cos), values(&sin));
    let mut out = take(shape.iter().product());
    out.par_chunks_mut(d).enumerate().with_min_len(rows_per_task(d)).for_each(|(i, out)| {
        let (row, at) = (source(i) * d, shared(position(i), s, held) * half);
        let (cos, sin) = (&cos[at..at + half], &sin[at..at + half]);
        simd::run(level, Turn { x: &from[row..row + d], cos, sin, sign, out });
    });
    tensor(out, shape)
}
