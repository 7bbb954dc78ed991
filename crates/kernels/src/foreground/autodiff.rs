//! The gradient: slopes were made with the terms.

use burn::backend::{AutodiffBackend, Scalar, TensorMetadata};
use burn::tensor::Slice;

use super::{Foreground, ForegroundOps, SIDES};
use crate::steps::{Autodiff, Backward, CheckpointStrategy, Checkpointer, Float, Gradients, Ops, recorded, unary};

#[derive(Debug)]
struct DetectionTerms;

/// Slopes of the class logits and of the positives' sides.
type State<B> = (Float<B>, Float<B>, Foreground);

impl<B: ForegroundOps> Backward<B, 1> for DetectionTerms {
    type State = State<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (classes, sides, foreground) = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |dy| {
            let of_sum = Scalar::Float(f64::from(foreground.gains[1]) / f64::from(foreground.norm));
            let background = B::float_mul_scalar(B::float_slice(dy.clone(), &[Slice::from(1..2)]), of_sum);
            let total = SIDES + classes.shape()[1];
            let grad = B::softplus_sum_grad(classes, background, SIDES, total);
            B::foreground_grad(grad, sides, dy, foreground)
        });
    }
}

impl<B: ForegroundOps, C: CheckpointStrategy> ForegroundOps for Autodiff<B, C> {
    fn foreground_terms(x: Float<Self>, background: Float<Self>, foreground: Foreground) -> (Float<Self>, Float<Self>) {
        let (terms, slopes) = B::foreground_terms(x.into_primitive(), background.into_primitive(), foreground);
        (Self::from_inner(terms), Self::from_inner(slopes))
    }

    fn foreground_grad(grad: Float<Self>, slopes: Float<Self>, dy: Float<Self>, foreground: Foreground) -> Float<Self> {
        Self::from_inner(B::foreground_grad(grad.into_primitive(), slopes.into_primitive(), dy.into_primitive(), foreground))
    }

    fn detection_terms(x: Float<Self>, foreground: Foreground) -> Float<Self> {
        let prep = Backward::<B, 1>::prepare::<C>(DetectionTerms, [x.node()]).compute_bound().stateful();
        let x = x.into_primitive();
        let classes = x.shape()[1] - SIDES;
        let (background, of_classes) = B::softplus_sum(x.clone(), SIDES, classes);
        let (terms, of_sides) = B::foreground_terms(x, background, foreground.clone());
        recorded!(prep, (of_classes, of_sides, foreground), terms)
    }
}
