//! The products on Flex: f32 (and weights in bf16) through ours, everything else through Burn's own operations.

use burn::backend::{Flex, TensorMetadata};
use burn::tensor::DType;
use burn_flex::FlexTensor;
use half::{bf16, f16};
use rayon::prelude::*;

use super::dots;
use super::packed::Packed;
use super::{Begin, Operand, ProductOps, Stored, StoredWeight, Term, multiply, portable};
use crate::buffers::{all_f32, contiguous, take, tensor, values};
use crate::cpu::Precision;
use crate::cpu::simd::{self, Level};
use crate::operands::Bias;

/// The values of a weight that [`settled`] returned.
fn stored(weight: &StoredWeight<Flex>) -> Stored<'_> {
    match weight {
        StoredWeight::Blocks { codes, scales, form, shape } => Stored::Packed(Packed::new(*form, codes.bytes(), values(scales), *shape)),
        StoredWeight::Dense(weight) => match weight.dtype() {
            DType::BF16 => Stored::Bf16(weight.as_slice::<bf16>().unwrap_or_default()),
            DType::F16 => Stored::F16(weight.as_slice::<f16>().unwrap_or_default()),
            _ => Stored::F32(values(weight)),
        },
    }
}

/// The weight itself, or with its values in order. (Blocks are never cut.)
fn settled(weight: StoredWeight<Flex>) -> StoredWeight<Flex> {
    match weight {
        StoredWeight::Dense(weight) => StoredWeight::Dense(contiguous(weight)),
        blocks @ StoredWeight::Blocks { .. } => blocks,
    }
}

/// Whether our kernels know these types.
fn ours<'a>(activations: impl IntoIterator<Item = &'a FlexTensor>, weight: &StoredWeight<Flex>) -> bool {
    let known = match weight {
        StoredWeight::Dense(weight) => matches!(weight.dtype(), DType::F32 | DType::BF16 | DType::F16),
        StoredWeight::Blocks { .. } => true,
    };
    all_f32(activations) && known
}

fn dims(x: &FlexTensor) -> [usize; 2] {
    x.shape().dims()
}

/// The level of products of so many rows with a weight: of a few rows, memory decides, and rounding them would gain nothing.
fn level(precision: Precision, rows: usize) -> Level {
    match precision {
        Precision::Bf16 if rows > dots::ROWS => simd::level().in_bf16(),
        _ => simd::level(),
    }
}

/// Whether factors of a product of so many rows with a weight are rounded to f16.
fn in_f16(precision: Precision, rows: usize) -> bool {
    matches!(precision, Precision::F16 | Precision::PureF16) && rows > dots::ROWS
}

/// The same of a product of a low-rank branch.
fn branch_in_f16(precision: Precision, rows: usize) -> bool {
    precision == Precision::PureF16 && rows > dots::ROWS
}

/// `scaling left right`, `[rows, columns]`: the inner side of a low-rank branch.
fn inner(left: Operand<'_>, right: Operand<'_>, [rows, depth, columns]: [usize; 3], scaling: f64, in_f16: bool) -> Vec<f32> {
    let mut out = take(rows * columns);
    multiply(&[Term { left, right, depth, level: simd::level(), in_f16 }], columns, Begin::Zero, &mut out);
    out.iter_mut().for_each(|v| *v *= scaling as f32);
    out
}

impl ProductOps for Flex {
    fn linear_forward(x: FlexTensor, weight: StoredWeight<Self>, bias: Bias<Self>, precision: Precision) -> FlexTensor {
        let bias = bias.into_option();
        let true = ours(std::iter::once(&x).chain(&bias), &weight) else { return portable::linear::<Self>(x, weight, bias, precision) };
        let (x, weight, bias) = (contiguous(x), settled(weight), bias.map(contiguous));
        let ([n, input], [out, _]) = (dims(&x), weight.dims());
        let mut y = take(n * out);
        let main = Term {
            left: Operand::lines(Stored::F32(values(&x)), input),
            right: Operand::lines(stored(&weight), input),
            depth: input,
            level: level(precision, n),
            in_f16: in_f16(precision, n),
        };
        multiply(&[main], out, bias.as_ref().map_or(Begin::Zero, |b| Begin::Row(values(b))), &mut y);
        tensor(y, [n, out])
    }

    fn linear_data_grad(dy: FlexTensor, weight: StoredWeight<Self>, precision: Precision) -> FlexTensor {
        let true = ours([&dy], &weight) else { return portable::linear_data_grad::<Self>(dy, weight, precision) };
        let (dy, weight) = (contiguous(dy), settled(weight));
        let ([n, out], [_, input]) = (dims(&dy), weight.dims());
        let mut dx = take(n * input);
        let main = Term {
            left: Operand::lines(Stored::F32(values(&dy)), out),
            right: Operand::terms(stored(&weight), input),
            depth: out,
            level: level(precision, n),
            in_f16: in_f16(precision, n),
        };
        multiply(&[main], input, Begin::Zero, &mut dx);
        tensor(dx, [n, input])
    }

    fn linear_weight_grad(x: FlexTensor, dy: FlexTensor) -> FlexTensor {
        let true = all_f32([&x, &dy]) else { return portable::linear_weight_grad::<Self>(x, dy) };
        let (x, dy) = (contiguous(x), contiguous(dy));
        let ([n, input], [_, out]) = (dims(&x), dims(&dy));
        let mut dw = take(out * input);
        let right = Operand::terms(Stored::F32(values(&x)), input);
        multiply(
            &[Term { left: Operand::terms(Stored::F32(values(&dy)), out), right, depth: n, level: simd::level(), in_f16: false }],
            input,
            Begin::Zero,
            &mut dw,
        );
        tensor(dw, [out, input])
    }

    fn lora_linear(
        x: FlexTensor,
        weight: StoredWeight<Self>,
        bias: Bias<Self>,
        a: FlexTensor,
        b: FlexTensor,
        scaling: f64,
        precision: Precision,
    ) -> FlexTensor {
        let bias = bias.into_option();
        if !ours([&x, &a, &b].into_iter().chain(&bias), &weight) {
            return portable::lora_linear::<Self>(x, weight, bias, a, b, scaling, precision);
        }
        let ([x, a, b], weight, bias) = ([x, a, b].map(contiguous), settled(weight), bias.map(contiguous));
        let ([n, input], [out, rank]) = (dims(&x), dims(&b));
        let rows = Operand::lines(Stored::F32(values(&x)), input);
        let u = inner(rows, Operand::lines(Stored::F32(values(&a)), input), [n, input, rank], scaling, branch_in_f16(precision, n));
        let mut y = take(n * out);
        let main = Term {
            left: rows,
            right: Operand::lines(stored(&weight), input),
            depth: input,
            level: level(precision, n),
            in_f16: in_f16(precision, n),
        };
        let branch = Term {
            left: Operand::lines(Stored::F32(&u), rank),
            right: Operand::lines(Stored::F32(values(&b)), rank),
            depth: rank,
            level: simd::level(),
            in_f16: branch_in_f16(precision, n),
        };
        multiply(&[main, branch], out, bias.as_ref().map_or(Begin::Zero, |b| Begin::Row(values(b))), &mut y);
        tensor(y, [n, out])
    }

    fn lora_data_grad(
        dy: FlexTensor,
        weight: StoredWeight<Self>,
        a: FlexTensor,
        b: FlexTensor,
        scaling: f64,
        precision: Precision,
    ) -> FlexTensor {
        let true = ours([&dy, &a, &b], &weight) else { return portable::lora_data_grad::<Self>(dy, weight, a, b, scaling, precision) };
        let ([dy, a, b], weight) = ([dy, a, b].map(contiguous), settled(weight));
        let ([n, out], [rank, input]) = (dims(&dy), dims(&a));
        let rows = Operand::lines(Stored::F32(values(&dy)), out);
        let du = inner(rows, Operand::terms(Stored::F32(values(&b)), rank), [n, out, rank], scaling, branch_in_f16(precision, n));
        let mut dx = take(n * input);
        let main = Term {
            left: rows,
            right: Operand::terms(stored(&weight), input),
            depth: out,
            level: level(precision, n),
            in_f16: in_f16(precision, n),
        };
        let branch = Term {
            left: Operand::lines(Stored::F32(&du), rank),
            right: Operand::terms(Stored::F32(values(&a)), input),
            depth: rank,
            level: simd::level(),
            in_f16: branch_in_f16(precision, n),
        };
        multiply(&[main, branch], input, Begin::Zero, &mut dx);
        tensor(dx, [n, input])
    }

    fn lora_grads(x: FlexTensor, dy: FlexTensor, a: FlexTensor, b: FlexTensor, scaling: f64) -> (FlexTensor, FlexTensor) {
        let true = all_f32([&x, &dy, &a, &b]) else { return portable::lora_grads::<Self>(x, dy, a, b, scaling) };
        let [x, dy, a, b] = [x, dy, a, b].map(contiguous);
        let ([n, input], [out, rank], level) = (dims(&x), dims(&b), simd::level());
        let du = inner(
            Operand::lines(Stored::F32(values(&dy)), out),
            Operand::terms(Stored::F32(values(&b)), rank),
            [n, out, rank],
            scaling,
            false,
        );
        let u = inner(
            Operand::lines(Stored::F32(values(&x)), input),
            Operand::lines(Stored::F32(values(&a)), input),
            [n, input, rank],
            scaling,
            false,
        );
        let (mut da, mut db) = (take(rank * input), take(out * rank));
        let right = Operand::terms(Stored::F32(values(&x)), input);
        multiply(
            &[Term { left: Operand::terms(Stored::F32(&du), rank), right, depth: n, level, in_f16: false }],
            input,
            Begin::Zero,
            &mut da,
        );
        let right = Operand::terms(Stored::F32(&u), rank);
        multiply(
            &[Term { left: Operand::terms(Stored::F32(values(&dy)), out), right, depth: n, level, in_f16: false }],
            rank,
            Begin::Zero,
            &mut db,
        );
        (tensor(da, [rank, input]), tensor(db, [out, rank]))
    }

    fn dense_weight(weight: StoredWeight<Self>) -> FlexTensor {
        let StoredWeight::Blocks { shape: [rows, columns], .. } = weight else { return portable::dense::<Self>(weight, DType::F32) };
        let (mut out, packed, level) = (take(rows * columns), stored(&weight), simd::level());
        out.par_chunks_mut(columns.max(1)).enumerate().for_each(|(row, out)| packed.decode(level, row * columns, out));
        tensor(out, [rows, columns])
    }
}
