//! Products with matrices that stay as they are: the linear maps of a language model, frozen or trained, and low-rank branches beside them.
//!
//! A weight is read where and as it is stored (`[out, in]`, in f32, 16 bits or blocks of fewer), in the forward pass and in the backward pass; nothing
//! of its size is kept beside it. The low-rank branch is more terms of the same sums, so its output is never a tensor of its own.

#[cfg(test)]
mod blocks_tests;
mod cube;
mod cube_file;
mod dots;
mod flex;
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
use burn::backend::{Dispatch, backend_extension};
use burn::tensor::{Device, Tensor};

pub(crate) use cube::{factors, in_words, rounded};
pub(crate) use multiply::multiply;
pub(crate) use operand::{Operand, Stored, Term};
pub use packed::{Coding, Form};
pub use weight::{Blocks, Branch, StoredBranch, StoredWeight, Weight};

use crate::cpu::Precision;
use crate::matrices::MatrixOps;
use crate::operands::Maybe;
use crate::shapes;

/// Linear maps: x `[N, in]`, weight `[out, in]` of any float type or in blocks, bias `[out]`, y and dy `[N, out]`; the low-rank branch has A `[r, in]` and
/// B `[out, r]` (Hu et al. 2021). `precision` is that of products with the weight; those of the branch are of the type of x, except in pure f16.
#[backend_extension(Flex, Cube, Autodiff)]
pub trait ProductOps: MatrixOps {
    /// `y = x Wᵀ + b + s (x Aᵀ) Bᵀ`.
    fn linear_forward(
        x: Float<Self>,
        #[extension_type] weight: StoredWeight<Self>,
        #[extension_type] bias: Maybe<Self>,
        #[extension_type] branch: Branch<Self>,
        precision: Precision,
    ) -> Float<Self>;

    /// Its gradient for x: `dy W + s (dy B) A`.
    fn linear_data_grad(
        dy: Float<Self>,
        #[extension_type] weight: StoredWeight<Self>,
        #[extension_type] branch: Branch<Self>,
        precision: Precision,
    ) -> Float<Self> {
        portable::linear_data_grad::<Self>(dy, factor(weight), branch.into_option(), precision)
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
    let (weight, bias) = (weight.into_dispatch(), bias.map(Tensor::into_dispatch).into());
    Tensor::from_dispatch(Dispatch::linear_forward(x.into_dispatch(), weight, bias, Branch::Zero, precision))
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
