//! The decoder's operations on Flex: f32 through our loops and recycled memory, everything else through Burn's own.

use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::passes::{RmsNorm, RmsNormGrad, Swiglu, SwigluGrad, Turn};
use super::{DecoderOps, portable};
use crate::buffers::{all_f32, contiguous, owned, take, tensor, values};
use crate::cpu::machine::{TASK, worth_a_task};
use crate::cpu::simd;

/// Whether all of these are f32, and the first is not empty.
fn ours<const N: usize>(all: [&FlexTensor; N]) -> bool {
    all_f32(all) && all[0].shape().num_elements() > 0
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
        let rows = out.par_chunks_mut(k).zip(values(&x).par_chunks(k)).with_min_len(worth_a_task(k));
        rows.for_each(|(out, x)| simd::run(level, RmsNorm { x, weight, epsilon, out }));
        tensor(out, shape)
    }

    fn rms_norm_data_grad(x: FlexTensor, weight: FlexTensor, dy: FlexTensor, epsilon: f64) -> FlexTensor {
        let true = ours([&x, &weight, &dy]) else { return portable::rms_norm_data_grad::<Self>(x, weight, dy, epsilon) };
        let (shape, x, weight, level) = (x.shape(), contiguous(x), contiguous(weight), simd::level());
        let (weight, mut dx) = (values(&weight), owned(contiguous(dy)));
        let k = weight.len();
        let rows = dx.par_chunks_mut(k).zip(values(&x).par_chunks(k)).with_min_len(worth_a_task(k));
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
    let mut out = take(from.len());
    out.par_chunks_mut(d).enumerate().with_min_len(worth_a_task(d)).for_each(|(i, out)| {
        // Row (text, column, row) of the output is row (text, row, column) of x.
        let (text, column, row) = (i / (rows * columns), i / rows % columns, i % rows);
        let (at, position) = (((text * rows + row) * columns + column) * d, text * s + if back { column } else { row });
        let angles = shared(position, s, held) * half;
        let (cos, sin) = (&cos[angles..angles + half], &sin[angles..angles + half]);
        simd::run(level, Turn { x: &from[at..at + d], cos, sin, sign, out });
    });
    tensor(out, [b, columns, rows, d])
}
