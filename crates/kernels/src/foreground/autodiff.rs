//! The gradient: slopes were made with the terms.

use burn::backend::{AutodiffBackend, Scalar, TensorMetadata};
use burn::tensor::Slice;

use super::{Foreground, ForegroundOps, SIDES};
use crate::planes::PlaneOps;
use crate::steps::{Autodiff, CheckpointStrategy, Float, recorded};

impl<B: ForegroundOps + PlaneOps, C: CheckpointStrategy> ForegroundOps for Autodiff<B, C> {
    fn foreground_terms(x: Float<Self>, background: Float<Self>, foreground: Foreground) -> (Float<Self>, Float<Self>) {
        let (terms, slopes) = B::foreground_terms(x.into_primitive(), background.into_primitive(), foreground);
        (Self::from_inner(terms), Self::from_inner(slopes))
    }

    fn foreground_grad(grad: Float<Self>, slopes: Float<Self>, dy: Float<Self>, foreground: Foreground) -> Float<Self> {
        Self::from_inner(B::foreground_grad(grad.into_primitive(), slopes.into_primitive(), dy.into_primitive(), foreground))
    }

    fn detection_terms(x: Float<Self>, foreground: Foreground) -> Float<Self> {
        let (nodes, x) = ([x.node()], x.into_primitive());
        let classes = x.shape()[1] - SIDES;
        let (background, of_classes) = B::softplus_sum(x.clone(), SIDES, classes);
        let (terms, of_sides) = B::foreground_terms(x, background, foreground.clone());
        recorded::<B, C, 1>(nodes, &[], terms, move |dy, mut parents| {
            parents.give::<B>(0, || {
                let of_sum = Scalar::Float(f64::from(foreground.gains[1]) / f64::from(foreground.norm));
                let background = B::float_mul_scalar(B::float_slice(dy.clone(), &[Slice::from(1..2)]), of_sum);
                let grad = B::softplus_sum_grad(of_classes, background, SIDES, SIDES + classes);
                B::foreground_grad(grad, of_sides, dy, foreground)
            });
        })
    }
}
