//! The products on Flex: f32 (and weights in bf16) through ours, everything else through Burn's own operations.

use burn::backend::{Flex, TensorMetadata};
use burn::tensor::DType;
use burn_flex::FlexTensor;
use half::{bf16, f16};
use rayon::prelude::*;

use super::dots;
use super::packed::Packed;
use super::{Operand, ProductOps, Stored, StoredWeight, Term, factor, multiply, portable};
use crate::buffers::{all_f32, contiguous, take, tensor, values};
use crate::cpu::simd;
use crate::cpu::{Precision, scratch};
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

fn lines(x: &FlexTensor, terms: usize) -> Operand<'_> {
    Operand::lines(Stored::F32(values(x)), terms)
}

fn terms(x: &FlexTensor, lines: usize) -> Operand<'_> {
    Operand::terms(Stored::F32(values(x)), lines)
}

/// A product with a weight, of so many rows: of a few, memory decides, and rounding them would gain nothing.
fn main<'a>(left: Operand<'a>, right: Operand<'a>, depth: usize, precision: Precision, rows: usize) -> Term<'a> {
    let (level, many) = (simd::level(), rows > dots::ROWS);
    let in_f16 = many && matches!(precision, Precision::F16 | Precision::PureF16);
    Term { left, right, depth, level: if many { level.of(precision) } else { level }, in_f16 }
}

/// A product of f32s, which are rounded to f16 where it says so.
fn plain<'a>(left: Operand<'a>, right: Operand<'a>, depth: usize, in_f16: bool) -> Term<'a> {
    Term { left, right, depth, level: simd::level(), in_f16 }
}

/// Whether the factors of a low-rank branch are rounded to f16.
fn branch_in_f16(precision: Precision, rows: usize) -> bool {
    precision == Precision::PureF16 && rows > dots::ROWS
}

/// `scaling left right`, `[rows, columns]`: the inner side of a low-rank branch.
fn inner(left: Operand<'_>, right: Operand<'_>, [rows, depth, columns]: [usize; 3], scaling: f64, in_f16: bool) -> scratch::Buffer {
    let mut out = scratch::take(rows * columns);
    multiply(&[plain(left, right, depth, in_f16)], columns, None, &mut out);
    out.iter_mut().for_each(|v| *v *= scaling as f32);
    out
}

impl ProductOps for Flex {
    fn linear_forward(x: FlexTensor, weight: StoredWeight<Self>, bias: Bias<Self>, precision: Precision) -> FlexTensor {
        let bias = bias.into_option();
        let true = ours(std::iter::once(&x).chain(&bias), &weight) else {
            return portable::linear::<Self>(x, factor(weight), bias, precision);
        };
        let (x, weight, bias) = (contiguous(x), settled(weight), bias.map(contiguous));
        let ([n, input], [out, _]) = (dims(&x), weight.dims());
        let mut y = take(n * out);
        let main = main(lines(&x, input), Operand::lines(stored(&weight), input), input, precision, n);
        multiply(&[main], out, bias.as_ref().map(values), &mut y);
        tensor(y, [n, out])
    }

    fn linear_data_grad(dy: FlexTensor, weight: StoredWeight<Self>, precision: Precision) -> FlexTensor {
        let true = ours([&dy], &weight) else { return portable::linear_data_grad::<Self>(dy, factor(weight), precision) };
        let (dy, weight) = (contiguous(dy), settled(weight));
        let ([n, out], [_, input]) = (dims(&dy), weight.dims());
        let mut dx = take(n * input);
        let main = main(lines(&dy, out), Operand::terms(stored(&weight), input), out, precision, n);
        multiply(&[main], input, None, &mut dx);
        tensor(dx, [n, input])
    }

    fn linear_weight_grad(x: FlexTensor, dy: FlexTensor) -> FlexTensor {
        let true = all_f32([&x, &dy]) else { return portable::linear_weight_grad::<Self>(x, dy) };
        let (x, dy) = (contiguous(x), contiguous(dy));
        let ([n, input], [_, out]) = (dims(&x), dims(&dy));
        let mut dw = take(out * input);
        multiply(&[plain(terms(&dy, out), terms(&x, input), n, false)], input, None, &mut dw);
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
            return portable::lora_linear::<Self>(x, factor(weight), bias, a, b, scaling, precision);
        }
        let ([x, a, b], weight, bias) = ([x, a, b].map(contiguous), settled(weight), bias.map(contiguous));
        let ([n, input], [out, rank]) = (dims(&x), dims(&b));
        let rows = lines(&x, input);
        let u = inner(rows, lines(&a, input), [n, input, rank], scaling, branch_in_f16(precision, n));
        let mut y = take(n * out);
        let main = main(rows, Operand::lines(stored(&weight), input), input, precision, n);
        let branch = plain(Operand::lines(Stored::F32(&u), rank), lines(&b, rank), rank, branch_in_f16(precision, n));
        multiply(&[main, branch], out, bias.as_ref().map(values), &mut y);
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
        let true = ours([&dy, &a, &b], &weight) else {
            return portable::lora_data_grad::<Self>(dy, factor(weight), a, b, scaling, precision);
        };
        let ([dy, a, b], weight) = ([dy, a, b].map(contiguous), settled(weight));
        let ([n, out], [rank, input]) = (dims(&dy), dims(&a));
        let rows = lines(&dy, out);
        let du = inner(rows, terms(&b, rank), [n, out, rank], scaling, branch_in_f16(precision, n));
        let mut dx = take(n * input);
        let main = main(rows, Operand::terms(stored(&weight), input), out, precision, n);
        let branch = plain(Operand::lines(Stored::F32(&du), rank), terms(&a, input), rank, branch_in_f16(precision, n));
        multiply(&[main, branch], input, None, &mut dx);
        tensor(dx, [n, input])
    }

    fn lora_grads(x: FlexTensor, dy: FlexTensor, a: FlexTensor, b: FlexTensor, scaling: f64) -> (FlexTensor, FlexTensor) {
        let true = all_f32([&x, &dy, &a, &b]) else { return portable::lora_grads::<Self>(x, dy, a, b, scaling) };
        let [x, dy, a, b] = [x, dy, a, b].map(contiguous);
        let ([n, input], [out, rank]) = (dims(&x), dims(&b));
        let du = inner(lines(&dy, out), terms(&b, rank), [n, out, rank], scaling, false);
        let u = inner(lines(&x, input), lines(&a, input), [n, input, rank], scaling, false);
        let (mut da, mut db) = (take(rank * input), take(out * rank));
        multiply(&[plain(Operand::terms(Stored::F32(&du), rank), terms(&x, input), n, false)], input, None, &mut da);
        multiply(&[plain(terms(&dy, out), Operand::terms(Stored::F32(&u), rank), n, false)], rank, None, &mut db);
        (tensor(da, [rank, input]), tensor(db, [out, rank]))
    }

    fn dense_weight(weight: StoredWeight<Self>) -> FlexTensor {
        let StoredWeight::Blocks { shape: [rows, columns], .. } = weight else { return portable::dense::<Self>(weight, DType::F32) };
        let (mut out, packed, level) = (take(rows * columns), stored(&weight), simd::level());
        out.par_chunks_mut(columns.max(1)).enumerate().for_each(|(row, out)| packed.decode(level, row * columns, out));
        tensor(out, [rows, columns])
    }
}
