//! Products with matrices that stay as they are: the linear maps of a language model, frozen or trained, and low-rank branches beside them.
//!
//! A weight is read where and as it is stored (`[out, in]`, in f32, 16 bits or blocks of fewer), in the forward pass and in the backward pass; nothing
//! of its size is kept beside it. The low-rank branch is more terms of the same sums, so its output is never a tensor of its own.

#[cfg(test)]
mod blocks_tests;
mod cube;
mod cube_few;
mod cube_file;
mod cube_values;
mod dots;
mod int8;
mod multiply;
#[cfg(test)]
mod multiply_tests;
mod nf4;
mod operand;
mod packed;
mod portable;
#[cfg(test)]
mod split_tests;
#[cfg(test)]
mod tests;
mod weight;

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{DType, Device, Tensor};
use burn_flex::FlexTensor;
use half::{bf16, f16};
use rayon::prelude::*;

pub(crate) use cube::{Coded, as_factor, factors, in_words, made_dense, rounded};
pub(crate) use cube_few::{Low, are_few, few_rows};
pub(crate) use multiply::multiply;
pub(crate) use operand::{Operand, Stored, Term};
pub use packed::{Coding, Form};
pub use weight::{Blocks, Branch, StoredBranch, StoredMap, StoredWeight, Weight};

use crate::buffers::{all_f32, contiguous, values, written};
use crate::cpu::{Precision, scratch, simd};
use crate::matrices::MatrixOps;
use crate::operands::Maybe;
use crate::shapes;
use operand::decode;
use packed::Packed;

/// Linear maps: x `[N, in]`, weight `[out, in]` of any float type or in blocks, bias `[out]`, y and dy `[N, out]`; the low-rank branch has A `[r, in]` and
/// B `[out, r]` (Hu et al. 2021). `precision` is that of products with the weight; those of the branch are of the type of x, except in pure f16.
#[backend_extension(Flex, Cube, Autodiff)]
pub trait ProductOps: MatrixOps {
    /// `y = x Wᵀ + b + s (x Aᵀ) Bᵀ`.
    fn linear_forward(x: Float<Self>, #[extension_type] map: StoredMap<Self>, precision: Precision) -> Float<Self>;

    /// Its gradient for x: `dy W + s (dy B) A`.
    fn linear_data_grad(
        dy: Float<Self>,
        #[extension_type] weight: StoredWeight<Self>,
        #[extension_type] branch: Branch<Self>,
        precision: Precision,
    ) -> Float<Self> {
        let dx = portable::by_weight::<Self>(dy.clone(), factor(weight), true, precision);
        portable::beside_grad::<Self>(dy, dx, branch, precision)
    }

    /// Its gradient for W, `[out, in]`: `dyᵀ x`.
    fn linear_weight_grad(x: Float<Self>, dy: Float<Self>) -> Float<Self> {
        portable::linear_weight_grad::<Self>(x, dy)
    }

    /// Its gradients for A and B: `s (dy B)ᵀ x` and `s dyᵀ (x Aᵀ)`.
    fn lora_grads(x: Float<Self>, dy: Float<Self>, a: Float<Self>, b: Float<Self>, scaling: f64) -> (Float<Self>, Float<Self>) {
        portable::lora_grads::<Self>(x, dy, a, b, scaling)
    }

    /// A weight's values in f32, `[out, in]`.
    fn dense_weight(#[extension_type] weight: StoredWeight<Self>) -> Float<Self>;
}

/// A weight as a factor: as it is, or the values of its blocks in f32.
fn factor<B: ProductOps>(weight: StoredWeight<B>) -> Float<B> {
    match weight {
        StoredWeight::Dense(weight) => weight,
        blocks @ StoredWeight::Blocks { .. } => B::dense_weight(blocks),
    }
}

impl Weight {
    /// Its values: as they are, or those of blocks in f32, which is to be dropped soon.
    pub fn dense(self) -> Tensor<2> {
        match self {
            Self::Dense(weight) => weight,
            blocks @ Self::Blocks(_) => Tensor::from_dispatch(Dispatch::dense_weight(blocks.into_dispatch())),
        }
    }
}

/// Whether products on this device read a weight in bf16 where it lies, whoever multiplies. Others may make a copy of it in f32 each time.
pub fn reads_bf16(device: &Device) -> bool {
    device.clone().without_autodiff() == Device::flex()
}

/// A low-rank branch beside a weight `[out, in]`: `s B A`.
#[derive(Clone, Debug)]
pub struct LowRank {
    /// A, `[r, in]`.
    pub a: Tensor<2>,
    /// B, `[out, r]`.
    pub b: Tensor<2>,
    /// s.
    pub scaling: f64,
}

/// `y = x Wᵀ + b`, differentiable; the weight's gradient is of the type of x, whatever the weight is stored as. With a branch beside the weight it is
/// one of the [`maps`](crate::maps()) of x.
///
/// x `[N, in]`, weight `[out, in]` in f32, 16 bits or blocks, bias `[out]` to `[N, out]`.
pub fn linear(x: Tensor<2>, weight: impl Into<Weight>, bias: Option<Tensor<1>>, precision: Precision) -> Tensor<2> {
    let weight = weight.into();
    let ([_, width], [out, input]) = (x.dims(), weight.dims());
    assert!(width == input, "x has {width} columns, and the weight is [{out}, {input}]");
    if let Some(bias) = &bias {
        shapes::expect("a bias", bias.dims(), [out]);
    }
    let map = StoredMap { weight: weight.into_dispatch(), bias: bias.map(Tensor::into_dispatch).into(), branch: Branch::Zero };
    Tensor::from_dispatch(Dispatch::linear_forward(x.into_dispatch(), map, precision))
}

/// Gradient of [`linear`]'s x from dy `[N, out]`: `dy W`, `[N, in]`; not differentiable itself.
pub fn linear_data_grad(dy: Tensor<2>, weight: impl Into<Weight>, precision: Precision) -> Tensor<2> {
    let weight = weight.into();
    let ([_, width], [out, input]) = (dy.dims(), weight.dims());
    assert!(width == out, "dy has {width} columns, and the weight is [{out}, {input}]");
    Tensor::from_dispatch(Dispatch::linear_data_grad(dy.into_dispatch(), weight.into_dispatch(), Branch::Zero, precision))
}

/// Gradient of [`linear`]'s weight from x `[N, in]` and dy `[N, out]`: `dyᵀ x`, `[out, in]`; not differentiable itself.
pub fn linear_weight_grad(x: Tensor<2>, dy: Tensor<2>) -> Tensor<2> {
    assert!(x.dims()[0] == dy.dims()[0], "x has {} rows, and dy {}", x.dims()[0], dy.dims()[0]);
    Tensor::from_dispatch(Dispatch::linear_weight_grad(x.into_dispatch(), dy.into_dispatch()))
}

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

/// Whether our kernels know the types of x and of the map.
fn ours(x: &FlexTensor, StoredMap { weight, bias, branch }: &StoredMap<Flex>) -> bool {
    let known = |weight: &FlexTensor| matches!(weight.dtype(), DType::F32 | DType::BF16 | DType::F16);
    let unknown = matches!(weight, StoredWeight::Dense(weight) if !known(weight));
    let of_bias = matches!(bias, Maybe::Some(bias) if !all_f32([bias]));
    let of_branch = matches!(branch, Branch::LowRank(StoredBranch { a, b, .. }) if !all_f32([a, b]));
    all_f32([x]) && !(unknown || of_bias || of_branch)
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
fn product(x: FlexTensor, StoredMap { weight, bias, branch }: StoredMap<Flex>, back: bool, precision: Precision) -> FlexTensor {
    let (x, weight, bias) = (contiguous(x), settled(weight), bias.into_option().map(contiguous));
    let ([n, depth], [out, input]) = (dims(&x), weight.dims());
    let (rows, columns) = (lines(&x, depth), if back { input } else { out });
    // Of a few rows memory decides, and rounding them would gain nothing.
    let (many, stored) = (n > dots::ROWS, stored(&weight));
    // A weight that is not bf16 would lose what two parts of the other factor keep.
    let rounds = many && (precision != Precision::Bf16x2 || matches!(stored, Stored::Bf16(_)));
    let main = Term::new(rows, side(stored, input, back), depth, if rounds { precision } else { Precision::F32 });
    let of_branch = if many && precision == Precision::PureF16 { precision } else { Precision::F32 };
    let branch = branch.into_option().map(|StoredBranch { a, b, scaling }| {
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
    fn linear_forward(x: FlexTensor, map: StoredMap<Self>, precision: Precision) -> FlexTensor {
        let true = ours(&x, &map) else {
            let y = portable::by_weight::<Self>(x.clone(), factor(map.weight), false, precision);
            return portable::beside::<Self>(x, y, map.bias, map.branch, precision);
        };
        product(x, map, false, precision)
    }

    fn linear_data_grad(dy: FlexTensor, weight: StoredWeight<Self>, branch: Branch<Self>, precision: Precision) -> FlexTensor {
        let map = StoredMap { weight, bias: Maybe::None, branch };
        let true = ours(&dy, &map) else {
            let dx = portable::by_weight::<Self>(dy.clone(), factor(map.weight), true, precision);
            return portable::beside_grad::<Self>(dy, dx, map.branch, precision);
        };
        product(dy, map, true, precision)
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
