//! What happens between the matrix products of a decoder layer: RMS norm, the gated SiLU, attention's softmax, rotary positions.
//!
//! As with [`planes`](crate::planes), none of it computes much: composed of Burn's operations each is half a dozen passes over memory, some of them on
//! one core. Here each is one pass forward and one backward, and what a backward pass can compute from the inputs is not kept.

mod cube;
mod cube_kernels;
mod flex;
mod portable;
#[cfg(test)]
mod tests;

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Dispatch, backend_extension};
use burn::tensor::Tensor;

use crate::planes::PlaneOps;
use crate::several::recorded_several;
use crate::shapes;
use crate::steps::{Autodiff, CheckpointStrategy, recorded};

/// In the mask of [`DecoderOps::masked_softmax`]: this key is not seen. Far below any score, and finite, so that a row of nothing else is
/// uniform rather than no number.
pub const BLOCKED: f32 = -1e30;

/// Operations of a decoder layer.
#[backend_extension(Flex, Cube, Autodiff)]
pub trait DecoderOps: PlaneOps {
    /// `x / sqrt(mean(x²) + ε) ⊙ w` over the last dimension, K (Zhang and Sennrich 2019). x `[.., K]`, w `[K]`.
    fn rms_norm(x: Float<Self>, weight: Float<Self>, epsilon: f64) -> Float<Self>;

    /// Its gradient for x: with `ρ = 1 / sqrt(mean(x²) + ε)` and `g = w ⊙ dy`, `dx = ρ (g - x ρ² mean(g ⊙ x))`.
    fn rms_norm_data_grad(x: Float<Self>, weight: Float<Self>, dy: Float<Self>, epsilon: f64) -> Float<Self> {
        portable::rms_norm_data_grad::<Self>(x, weight, dy, epsilon)
    }

    /// The same added to `held`.
    fn rms_norm_data_grad_onto(x: Float<Self>, weight: Float<Self>, dy: Float<Self>, held: Float<Self>, epsilon: f64) -> Float<Self> {
        Self::add(Self::rms_norm_data_grad(x, weight, dy, epsilon), held)
    }

    /// Its gradient for w, `[K]`: `Σ dy ⊙ x ρ` over all but the last dimension.
    fn rms_norm_weight_grad(x: Float<Self>, dy: Float<Self>, epsilon: f64) -> Float<Self> {
        portable::rms_norm_weight_grad::<Self>(x, dy, epsilon)
    }

    /// `gate sigmoid(gate) ⊙ up` (Shazeer 2020), any shape.
    fn swiglu(gate: Float<Self>, up: Float<Self>) -> Float<Self>;

    /// Its gradients for gate and up: with s = sigmoid(gate), `dy up s (1 + gate (1 - s))` and `dy gate s`.
    fn swiglu_grad(gate: Float<Self>, up: Float<Self>, dy: Float<Self>) -> (Float<Self>, Float<Self>) {
        portable::swiglu_grad::<Self>(gate, up, dy)
    }

    /// `softmax(scale scores + mask)` over keys. Scores `[B, H, R, T]`, mask `[1 or B, 1, R, T]` of 0 and [`BLOCKED`].
    fn masked_softmax(scores: Float<Self>, mask: Float<Self>, scale: f64) -> Float<Self> {
        portable::masked_softmax::<Self>(scores, mask, scale)
    }

    /// Its gradient for the scores, from its result p: `scale p ⊙ (dp - Σ p ⊙ dp)`.
    fn masked_softmax_grad(p: Float<Self>, dp: Float<Self>, scale: f64) -> Float<Self> {
        portable::masked_softmax_grad::<Self>(p, dp, scale)
    }

    /// Turns the two halves of each head as the coordinates of d / 2 rotations (Su et al. 2021), and puts heads before positions: queries and keys
    /// `[B, S, n, d]`, each of its own n, to `[B, n, S, d]`; cos and sin `[1 or B, 1, S, d / 2]`.
    fn rotate(q: Float<Self>, k: Float<Self>, cos: Float<Self>, sin: Float<Self>) -> (Float<Self>, Float<Self>);

    /// The way back, which is also the gradient: `[B, n, S, d]` to `[B, S, n, d]`.
    fn rotate_back(q: Float<Self>, k: Float<Self>, cos: Float<Self>, sin: Float<Self>) -> (Float<Self>, Float<Self>) {
        let one = |y| portable::rotate_back::<Self>(y, cos.clone(), sin.clone());
        (one(q), one(k))
    }
}

/// [`DecoderOps::rms_norm`], differentiable.
pub fn rms_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, epsilon: f64) -> Tensor<D> {
    shapes::expect("the weight", weight.dims(), [x.dims()[D - 1]]);
    Tensor::from_dispatch(Dispatch::rms_norm(x.into_dispatch(), weight.into_dispatch(), epsilon))
}

/// [`DecoderOps::swiglu`], differentiable.
pub fn swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    shapes::expect("up", up.dims(), gate.dims());
    Tensor::from_dispatch(Dispatch::swiglu(gate.into_dispatch(), up.into_dispatch()))
}

/// [`DecoderOps::rotate`], differentiable in queries and keys.
pub fn rotate(q: Tensor<4>, k: Tensor<4>, cos: Tensor<4>, sin: Tensor<4>) -> [Tensor<4>; 2] {
    let ([b, s, _, d], [held, ..]) = (q.dims(), cos.dims());
    assert!(d % 2 == 0, "heads of {d} have no halves");
    let [.., heads, _] = k.dims();
    shapes::expect("the keys", k.dims(), [b, s, heads, d]);
    for (name, table) in [("cos", &cos), ("sin", &sin)] {
        shapes::expect(name, table.dims(), [if held == 1 { 1 } else { b }, 1, s, d / 2]);
    }
    let [q, k, cos, sin] = [q, k, cos, sin].map(Tensor::into_dispatch);
    let (q, k) = Dispatch::rotate(q, k, cos, sin);
    [q, k].map(Tensor::from_dispatch)
}

impl<B: DecoderOps, C: CheckpointStrategy> DecoderOps for Autodiff<B, C> {
    fn rms_norm(x: Float<Self>, weight: Float<Self>, epsilon: f64) -> Float<Self> {
        let (nodes, [x, weight]) = ([x.node(), weight.node()], [x, weight].map(|t| t.into_primitive()));
        let y = B::rms_norm(x.clone(), weight.clone(), epsilon);
        recorded::<B, C, 2>(nodes, &[], y, move |dy, mut parents| {
            parents.give::<B>(1, || B::rms_norm_weight_grad(x.clone(), dy.clone(), epsilon));
            parents.give_onto::<B>(0, |held| match held {
                Some(held) => B::rms_norm_data_grad_onto(x, weight, dy, held, epsilon),
                None => B::rms_norm_data_grad(x, weight, dy, epsilon),
            });
        })
    }

    fn swiglu(gate: Float<Self>, up: Float<Self>) -> Float<Self> {
        let (nodes, [gate, up]) = ([gate.node(), up.node()], [gate, up].map(|t| t.into_primitive()));
        let y = B::swiglu(gate.clone(), up.clone());
        recorded::<B, C, 2>(nodes, &[], y, move |dy, parents| {
            let (dgate, dup) = B::swiglu_grad(gate, up, dy);
            parents.give_all::<B>([dgate, dup]);
        })
    }

    fn rotate(q: Float<Self>, k: Float<Self>, cos: Float<Self>, sin: Float<Self>) -> (Float<Self>, Float<Self>) {
        let (nodes, [q, k, cos, sin]) = ([q.node(), k.node()], [q, k, cos, sin].map(|t| t.into_primitive()));
        let (q, k) = B::rotate(q, k, cos.clone(), sin.clone());
        let turned = recorded_several::<B, C, 2>(nodes, vec![q, k], move |mut dys, parents| {
            dys.sort_by_key(|(number, _)| *number);
            let Ok([(_, dq), (_, dk)]) = <[_; 2]>::try_from(dys) else { unreachable!("a gradient of queries and one of keys") };
            let (dq, dk) = B::rotate_back(dq, dk, cos, sin);
            parents.give_all::<B>([dq, dk]);
        });
        let Ok([q, k]) = <[_; 2]>::try_from(turned) else { unreachable!("queries and keys") };
        (q, k)
    }
}
