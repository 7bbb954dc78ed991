//! The products on Flex: f32 (and weights in bf16) through ours, everything else through Burn's own operations.

use burn::backend::{Flex, TensorMetadata};
use burn::tensor::DType;
use burn_flex::FlexTensor;
use half::{bf16, f16};
use rayon::prelude::*;

use super::dots;
use super::operand::decode;
use super::packed::Packed;
use super::{Branch, Operand, ProductOps, Stored, StoredBranch, StoredWeight, Term, factor, multiply, portable};
use crate::buffers::{all_f32, contiguous, values, written};
use crate::cpu::simd;
use crate::cpu::{Precision, scratch};
use crate::operands::Maybe;

/// The values of a weight that [`settled`] returned.
fn stored(weight: &StoredWeight<Flex>) -> Stored<'_> {
    match weight {
        StoredWeight::Blocks { codes, scales, form, shape } => {
            Stored::Packed(Packed { codes: codes.bytes(), scales: values(scales), form: *form, shape: *shape })
        }
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
fn ours<'a>(
    activations: impl IntoIterator<Item = &'a FlexTensor>,
    weight: &StoredWeight<Flex>,
    branch: &Option<StoredBranch<Flex>>,
) -> bool {
    let known = match weight {
        StoredWeight::Dense(weight) => matches!(weight.dtype(), DType::F32 | DType::BF16 | DType::F16),
        StoredWeight::Blocks { .. } => true,
    };
    all_f32(activations) && known && all_f32(branch.iter().flat_map(|branch| [&branch.a, &branch.b]))
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

/// `scaling left right`, `[rows, columns]`: the inner side of a low-rank branch.
fn inner(left: Operand<'_>, right: Operand<'_>, [rows, depth, columns]: [usize; 3], scaling: f64, precision: Precision) -> scratch::Buffer {
    let mut out = scratch::take(rows * columns);
    multiply(&[Term::new(left, right, depth, precision)], columns, None, &mut out);
    out.iter_mut().for_each(|v| *v *= scaling as f32);
    out
}

/// `left right` in f32, of the shape `[rows, columns]`: a gradient, summed over n rows of the batch.
fn summed(shape @ [_, columns]: [usize; 2], left: Operand<'_>, right: Operand<'_>, n: usize) -> FlexTensor {
    written(shape, |out| multiply(&[Term::new(left, right, n, Precision::F32)], columns, None, out))
}

/// A matrix with rows of `width` as the right-hand factor: its lines are its rows, or on the way `back` its columns.
fn side(values: Stored<'_>, width: usize, back: bool) -> Operand<'_> {
    if back { Operand::terms(values, width) } else { Operand::lines(values, width) }
}

/// `x Wᵀ + b + s (x Aᵀ) Bᵀ`, or on the way `back`, where x is dy, `dy W + s (dy B) A`.
fn product(
    x: FlexTensor,
    weight: StoredWeight<Flex>,
    bias: Option<FlexTensor>,
    branch: Option<StoredBranch<Flex>>,
    back: bool,
    precision: Precision,
) -> FlexTensor {
    let (x, weight, bias) = (contiguous(x), settled(weight), bias.map(contiguous));
    let ([n, depth], [out, input]) = (dims(&x), weight.dims());
    let (rows, columns) = (lines(&x, depth), if back { input } else { out });
    // Of a few rows memory decides, and rounding them would gain nothing.
    let (many, stored) = (n > dots::ROWS, stored(&weight));
    // A weight that is not bf16 would lose what two parts of the other factor keep.
    let rounds = many && (precision != Precision::Bf16x2 || matches!(stored, Stored::Bf16(_)));
    let main = Term::new(rows, side(stored, input, back), depth, if rounds { precision } else { Precision::F32 });
    let of_branch = if many && precision == Precision::PureF16 { precision } else { Precision::F32 };
    let branch = branch.map(|StoredBranch { a, b, scaling }| {
        let [a, b] = [a, b].map(contiguous);
        let ([rank, _], (first, second)) = (dims(&a), if back { (b, a) } else { (a, b) });
        let right = side(Stored::F32(values(&first)), dims(&first)[1], back);
        (inner(rows, right, [n, depth, rank], scaling, of_branch), second, rank)
    });
    let term = branch.as_ref().map(|(inner, second, rank)| {
        let right = side(Stored::F32(values(second)), dims(second)[1], back);
        Term::new(Operand::lines(Stored::F32(inner), *rank), right, *rank, of_branch)
    });
    let terms: Vec<Term<'_>> = [main].into_iter().chain(term).collect();
    written([n, columns], |y| multiply(&terms, columns, bias.as_ref().map(values), y))
}

impl ProductOps for Flex {
    fn linear_forward(
        x: FlexTensor,
        weight: StoredWeight<Self>,
        bias: Maybe<Self>,
        branch: Branch<Self>,
        precision: Precision,
    ) -> FlexTensor {
        let (bias, branch) = (bias.into_option(), branch.into_option());
        if !ours([&x].into_iter().chain(&bias), &weight, &branch) {
            return portable::linear::<Self>(x, factor(weight), bias, branch, precision);
        }
        product(x, weight, bias, branch, false, precision)
    }

    fn linear_data_grad(dy: FlexTensor, weight: StoredWeight<Self>, branch: Branch<Self>, precision: Precision) -> FlexTensor {
        let branch = branch.into_option();
        if !ours([&dy], &weight, &branch) {
            return portable::linear_data_grad::<Self>(dy, factor(weight), branch, precision);
        }
        product(dy, weight, None, branch, true, precision)
    }

    fn linear_weight_grad(x: FlexTensor, dy: FlexTensor) -> FlexTensor {
        let true = all_f32([&x, &dy]) else { return portable::linear_weight_grad::<Self>(x, dy) };
        let (x, dy) = (contiguous(x), contiguous(dy));
        let ([n, input], [_, out]) = (dims(&x), dims(&dy));
        summed([out, input], terms(&dy, out), terms(&x, input), n)
    }

    fn lora_grads(x: FlexTensor, dy: FlexTensor, a: FlexTensor, b: FlexTensor, scaling: f64) -> (FlexTensor, FlexTensor) {
        let true = all_f32([&x, &dy, &a, &b]) else { return portable::lora_grads::<Self>(x, dy, a, b, scaling) };
        let [x, dy, a, b] = [x, dy, a, b].map(contiguous);
        let ([n, input], [out, rank]) = (dims(&x), dims(&b));
        let du = inner(lines(&dy, out), terms(&b, rank), [n, out, rank], scaling, Precision::F32);
        let u = inner(lines(&x, input), lines(&a, input), [n, input, rank], scaling, Precision::F32);
        let [du, u] = [&du, &u].map(|inner| Operand::terms(Stored::F32(inner), rank));
        (summed([rank, input], du, terms(&x, input), n), summed([out, rank], terms(&dy, out), u, n))
    }

    fn dense_weight(weight: StoredWeight<Self>) -> FlexTensor {
        let [rows, columns] = match weight {
            StoredWeight::Dense(weight) => return portable::cast::<Self>(weight, DType::F32),
            StoredWeight::Blocks { shape, .. } => shape,
        };
        let (packed, level) = (stored(&weight), simd::level());
        let fill = |(row, out): (usize, &mut [f32])| decode(level, packed, row * columns, out);
        written([rows, columns], |out| out.par_chunks_mut(columns.max(1)).enumerate().for_each(fill))
    }
}
