//! The arithmetic of an optimizer step, one pass over each parameter instead of one per operation.
//!
//! The formulas and the order of their roundings are those of the operations in `portable.rs`, which are PyTorch's; on Flex a
//! fused loop gives the same bits. Nothing is changed in place except what the caller gives away.

mod cube;
mod flex;
mod portable;
mod rules;
#[cfg(test)]
mod tests;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

pub use rules::{Adam, Sgd};

use crate::shapes;

/// Operations on flat tensors `[K]`, without gradient.
#[backend_extension(Flex, Cube)]
pub trait UpdateOps: Backend {
    /// New weight and buffer: `g += decay w; b = m b + g; w -= lr (g + m b)`.
    fn sgd_step(
        weight: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        buffer: FloatTensor<Self>,
        step: Sgd,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        portable::sgd_step::<Self>(weight, grad, buffer, step)
    }

    /// New weight and moments: `w *= keep; g += decay w; m = β1 m + (1 - β1) g; v = β2 v + (1 - β2) g²; w -= rate m / (√v / root + ε)`.
    fn adam_step(
        weight: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        step: Adam,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        portable::adam_step::<Self>(weight, grad, first, second, step)
    }

    /// `a old + b new`.
    fn blend(old: FloatTensor<Self>, new: FloatTensor<Self>, a: f64, b: f64) -> FloatTensor<Self> {
        portable::blend::<Self>(old, new, a, b)
    }

    /// `Σ x²`, `[1]`.
    fn sum_of_squares(x: FloatTensor<Self>) -> FloatTensor<Self> {
        portable::sum_of_squares::<Self>(x)
    }
}

/// New weight and momentum buffer, all `[K]` and without gradient. See [`UpdateOps::sgd_step`]; no buffer yet counts as zeros.
pub fn sgd_step(weight: Tensor<1>, grad: Tensor<1>, buffer: Option<Tensor<1>>, step: Sgd) -> (Tensor<1>, Tensor<1>) {
    let buffer = buffer.unwrap_or_else(|| weight.zeros_like());
    shapes::expect("the gradient", grad.dims(), weight.dims());
    shapes::expect("the buffer", buffer.dims(), weight.dims());
    let (weight, buffer) = Dispatch::sgd_step(weight.into_dispatch(), grad.into_dispatch(), buffer.into_dispatch(), step);
    (Tensor::from_dispatch(weight), Tensor::from_dispatch(buffer))
}

/// New weight and moments, all `[K]` and without gradient. See [`UpdateOps::adam_step`]; no moments yet count as zeros.
pub fn adam_step(
    weight: Tensor<1>,
    grad: Tensor<1>,
    first: Option<Tensor<1>>,
    second: Option<Tensor<1>>,
    step: Adam,
) -> (Tensor<1>, Tensor<1>, Tensor<1>) {
    shapes::expect("the gradient", grad.dims(), weight.dims());
    let [first, second] = [first, second].map(|m| {
        let m = m.unwrap_or_else(|| weight.zeros_like());
        shapes::expect("a moment", m.dims(), weight.dims());
        m.into_dispatch()
    });
    let (weight, first, second) = Dispatch::adam_step(weight.into_dispatch(), grad.into_dispatch(), first, second, step);
    (Tensor::from_dispatch(weight), Tensor::from_dispatch(first), Tensor::from_dispatch(second))
}

/// `a old + b new`, `[K]`, without gradient; in old's memory if nobody else holds it.
pub fn blend(old: Tensor<1>, new: Tensor<1>, a: f64, b: f64) -> Tensor<1> {
    shapes::expect("the new value", new.dims(), old.dims());
    Tensor::from_dispatch(Dispatch::blend(old.into_dispatch(), new.into_dispatch(), a, b))
}

/// `Σ x²` as `[1]`, without gradient.
pub fn sum_of_squares(x: Tensor<1>) -> Tensor<1> {
    Tensor::from_dispatch(Dispatch::sum_of_squares(x.into_dispatch()))
}
