//! The products in Burn's own words: their definition, and the way of devices and types without a kernel.

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, Shape};

use super::weight::{Branch, StoredBranch};
use crate::cpu::Precision;
use crate::matrices::MatrixOps;
use crate::operands::Maybe;
use crate::portable::times;

fn transposed<B: Backend>(x: Float<B>) -> Float<B> {
    B::float_swap_dims(x, 0, 1)
}

pub(super) fn cast<B: Backend>(x: Float<B>, dtype: DType) -> Float<B> {
    if x.dtype() == dtype { x } else { B::float_cast(x, dtype.into()) }
}

/// The type of the factors of products with a weight where the others are `dtype`. (bf16 is the processor's.)
pub(crate) fn factors(precision: Precision, dtype: DType) -> DType {
    match precision {
        Precision::F16 | Precision::PureF16 => DType::F16,
        Precision::F32 | Precision::Bf16 | Precision::Bf16x2 => dtype,
    }
}

/// The same in a low-rank branch.
fn of_branch(precision: Precision, dtype: DType) -> DType {
    if precision == Precision::PureF16 { DType::F16 } else { dtype }
}

/// `a b` of factors in `dtype`, in the type of a.
fn product<B: MatrixOps>(a: Float<B>, b: Float<B>, dtype: DType) -> Float<B> {
    let out = a.dtype();
    let read = dtype == DType::F32 && matches!(b.dtype(), DType::F16 | DType::BF16) && B::reads_halves();
    let b = if read { b } else { cast::<B>(b, dtype) };
    cast::<B>(B::product(cast::<B>(a, dtype), b), out)
}

/// `x Wᵀ`, or on the way `back` `x W`.
pub(super) fn by_weight<B: MatrixOps>(x: Float<B>, weight: Float<B>, back: bool, precision: Precision) -> Float<B> {
    let dtype = factors(precision, x.dtype());
    product::<B>(x, if back { weight } else { transposed::<B>(weight) }, dtype)
}

/// `y + b + s (x Aᵀ) Bᵀ`.
pub(super) fn beside<B: MatrixOps>(x: Float<B>, y: Float<B>, bias: Maybe<B>, branch: Branch<B>, precision: Precision) -> Float<B> {
    let dtype = of_branch(precision, x.dtype());
    let bias = bias.into_option().map(|bias| {
        let out = bias.shape().num_elements();
        B::float_reshape(bias, Shape::new([1, out]))
    });
    let branch = branch.into_option().map(|StoredBranch { a, b, scaling }| {
        let inner = product::<B>(x, transposed::<B>(a), dtype);
        times::<B>(product::<B>(inner, transposed::<B>(b), dtype), scaling)
    });
    bias.into_iter().chain(branch).fold(y, B::float_add)
}

/// `dx + s (dy B) A`.
pub(super) fn beside_grad<B: MatrixOps>(dy: Float<B>, dx: Float<B>, branch: Branch<B>, precision: Precision) -> Float<B> {
    let Branch::LowRank(StoredBranch { a, b, scaling }) = branch else { return dx };
    let dtype = of_branch(precision, dy.dtype());
    let inner = times::<B>(product::<B>(dy, b, dtype), scaling);
    B::float_add(dx, product::<B>(inner, a, dtype))
}

pub(super) fn linear_weight_grad<B: MatrixOps>(x: Float<B>, dy: Float<B>) -> Float<B> {
    B::product(transposed::<B>(dy), x)
}

pub(super) fn lora_grads<B: MatrixOps>(x: Float<B>, dy: Float<B>, a: Float<B>, b: Float<B>, scaling: f64) -> (Float<B>, Float<B>) {
    let above = times::<B>(B::product(dy.clone(), b), scaling);
    let inner = times::<B>(B::product(x.clone(), transposed::<B>(a)), scaling);
    (B::product(transposed::<B>(above), x), B::product(transposed::<B>(dy), inner))
}
