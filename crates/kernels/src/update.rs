//! The arithmetic of an optimizer step, one pass over each [arena](mod@crate::arena) of parameters instead of one per operation and parameter.
//!
//! The formulas and the order of their roundings are those of the operations in `portable.rs`, which are PyTorch's; on Flex a
//! fused loop gives the same bits. Nothing is changed in place except what the caller gives away.

mod cube;
mod flex;
mod portable;
#[cfg(test)]
mod tests;

use std::ops::Range;

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

use crate::planes::Parts;
use crate::shapes;

/// Gradient descent with Nesterov momentum.
#[derive(Clone, Copy, Debug)]
pub struct Sgd {
    /// Learning rate.
    pub lr: f64,
    /// m.
    pub momentum: f64,
    /// Weight decay, added to the gradient.
    pub decay: f64,
}

/// Adam, or AdamW.
#[derive(Clone, Copy, Debug)]
pub struct Adam {
    /// `lr / (1 - β1^t)`.
    pub rate: f64,
    /// β1.
    pub beta1: f64,
    /// β2.
    pub beta2: f64,
    /// `√(1 - β2^t)`.
    pub root: f64,
    /// ε.
    pub epsilon: f64,
    /// Weight decay added to the gradient (Adam).
    pub decay: f64,
    /// What the weight is multiplied with beforehand: `1 - lr decay` (AdamW), else 1.
    pub keep: f64,
}

/// Parts of arenas in the order they are summed up in: which arena, and which of its values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segments(pub Vec<(usize, Range<usize>)>);

/// Operations on flat tensors `[K]`, without gradient.
#[backend_extension(Flex, Cube)]
pub trait UpdateOps: Backend {
    /// New weight and buffer: `g += decay w; b = m b + g; w -= lr (g + m b)`.
    fn sgd_step(weight: Float<Self>, grad: Float<Self>, buffer: Float<Self>, step: Sgd) -> (Float<Self>, Float<Self>);

    /// New weight and moments: `w *= keep; g += decay w; m = β1 m + (1 - β1) g; v = β2 v + (1 - β2) g²; w -= rate m / (√v / root + ε)`.
    fn adam_step(
        weight: Float<Self>,
        grad: Float<Self>,
        first: Float<Self>,
        second: Float<Self>,
        step: Adam,
    ) -> (Float<Self>, Float<Self>, Float<Self>);

    /// `a old + b new`.
    fn blend(old: Float<Self>, new: Float<Self>, a: f64, b: f64) -> Float<Self>;

    /// `Σ x²` over the segments, which leave out nothing but zeros; f32 `[1]`.
    fn sum_of_squares(#[extension_type] arenas: Parts<Self>, segments: Segments) -> Float<Self>;

    /// x times `min(1, most / (√squares + 1e-6))`; x as it is where `squares` is not finite.
    fn clip_to_norm(x: Float<Self>, squares: Float<Self>, most: f64) -> Float<Self>;
}

/// New weight and momentum buffer, all `[K]` and without gradient. See [`UpdateOps::sgd_step`]; no buffer yet counts as zeros.
pub fn sgd_step(weight: Tensor<1>, grad: Tensor<1>, buffer: Option<Tensor<1>>, step: Sgd) -> (Tensor<1>, Tensor<1>) {
    shapes::expect("the gradient", grad.dims(), weight.dims());
    let buffer = buffer.unwrap_or_else(|| weight.zeros_like());
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

/// `Σ x²` as `[1]` in f32, without gradient: not finite if any value is not, or if the sum overflows. At least one arena; the segments leave out
/// nothing but zeros (on a processor they are summed up one by one, so that the order does not follow from how parameters lie; a GPU takes
/// whole arenas).
pub fn sum_of_squares(arenas: Vec<Tensor<1>>, segments: Segments) -> Tensor<1> {
    for (arena, range) in &segments.0 {
        shapes::within("a segment", range, arenas.get(*arena).map_or(0, |arena| arena.dims()[0]));
    }
    let arenas = Parts(arenas.into_iter().map(Tensor::into_dispatch).collect());
    Tensor::from_dispatch(Dispatch::sum_of_squares(arenas, segments))
}

/// `x [K]` scaled by `min(1, most / (√squares + 1e-6))` where `squares [1]`, f32, is the sum of the squares of all that is clipped together; without
/// gradient. A sum that is not finite scales nothing, neither to zeros nor to NaN: whoever reads it finds x as it was, and has to drop it.
pub fn clip_to_norm(x: Tensor<1>, squares: Tensor<1>, most: f64) -> Tensor<1> {
    shapes::expect("the sum of squares", squares.dims(), [1]);
    assert!(most > 0.0, "a norm of at most {most}");
    Tensor::from_dispatch(Dispatch::clip_to_norm(x.into_dispatch(), squares.into_dispatch(), most))
}
