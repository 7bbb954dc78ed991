//! What a detector's loss asks of the anchors that learn an object: CIoU of the box, cross entropy of its sides' distributions, and the part
//! of the classes' cross entropy that [`LogitOps::softplus_sum`] leaves open.
//!
//! Of some hundred thousand anchors a few hundred are such. Composed of Burn's operations their terms are three hundred launches on a GPU;
//! here they are two, and one in the backward pass, which only spreads slopes that were made with the terms.

mod cube;
mod flex;
mod formula;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{AutodiffBackend, Backend, Dispatch, Scalar, TensorMetadata, backend_extension};
use burn::tensor::{DType, Slice, Tensor};

use crate::logits::LogitOps;
use crate::planes::PlaneOps;
use crate::shapes;
use crate::steps::{Autodiff, CheckpointStrategy, recorded};

pub use formula::BINS;

/// Logits of the four sides of a box.
const SIDES: usize = 4 * BINS;

/// An anchor that learns an object. Lengths are in cells of the anchor's level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Positive {
    /// Image, anchor and class.
    pub image: u32,
    /// Among all anchors of the image.
    pub anchor: u32,
    /// The object's class.
    pub class: u32,
    /// Centre of the cell, x and y.
    pub centre: [f32; 2],
    /// The object's box, `x1, y1, x2, y2`.
    pub target: [f32; 4],
    /// The target score over the sum of all of them.
    pub weight: f32,
}

/// The anchors that learn, no two at one place, and what their terms are multiplied by.
#[derive(Clone, Debug)]
pub struct Foreground {
    /// In any order; sums are taken in it.
    pub positives: Arc<Vec<Positive>>,
    /// Factors of the box, class and distribution terms.
    pub gains: [f32; 3],
    /// What the sum over all class logits is divided by.
    pub norm: f32,
}

/// CIoU of two boxes `x1, y1, x2, y2`; see `formula`.
#[inline]
pub fn ciou(a: [f32; 4], b: [f32; 4]) -> f32 {
    let corners = |[x1, y1, x2, y2]: [f32; 4]| formula::Corners { x1, y1, x2, y2 };
    formula::ciou(corners(a), corners(b)).value
}

/// Operations on raw outputs `[B, C, A]`: 64 channels of sides, then the classes.
#[backend_extension(Flex, Cube, Autodiff)]
pub trait ForegroundOps: Backend + LogitOps {
    /// Terms `[3]` and, without gradient, the slopes of the box and of the distribution term for each positive's side logits, 2 M 64 of them, with whatever else a
    /// backend keeps for the gradient. `background [1]` is the softplus sum of all class logits.
    fn foreground_terms(x: Float<Self>, background: Float<Self>, foreground: Foreground) -> (Float<Self>, Float<Self>);

    /// `grad [B, C, A]` plus the gradient of the terms at the foreground, from their slopes and dy `[3]`.
    fn foreground_grad(grad: Float<Self>, slopes: Float<Self>, dy: Float<Self>, foreground: Foreground) -> Float<Self>;

    /// Both in one for the gradient's sake: see [`detection_terms`].
    fn detection_terms(x: Float<Self>, foreground: Foreground) -> Float<Self> {
        let classes = x.shape()[1] - SIDES;
        let (background, _) = Self::softplus_sum(x.clone(), SIDES, classes);
        Self::foreground_terms(x, background, foreground).0
    }
}

/// Box, class and distribution terms of a batch, `[3]`, differentiable in x `[B, 64 + classes, A]`:
///
/// ```text
/// box           gains[0]  Σ w (1 - CIoU(box, target))         box: the centre less and plus the expected bins of its sides
/// class         gains[1] (Σ softplus(x) / norm - Σ w x[class])
/// distribution  gains[2]  Σ w / 4 Σ over sides of the cross entropy of the side's logits against its two-spiked target
/// ```
///
/// in f32. No positives: the first and the last are zero. The formulas' sources are at `formula`.
///
/// # Panics
/// If x is of another type, a positive is not in x, or two are at one place.
pub fn detection_terms(x: Tensor<3>, foreground: Foreground) -> Tensor<1> {
    let [images, channels, anchors] = x.dims();
    shapes::within("side logits", &(0..SIDES), channels);
    let mut places: Vec<_> = foreground.positives.iter().map(|l| (l.image as usize, l.anchor as usize)).collect();
    let inside = |l: &Positive| SIDES + (l.class as usize) < channels && (l.image as usize) < images && (l.anchor as usize) < anchors;
    assert!(foreground.positives.iter().all(inside), "a positive that is not among outputs of {:?}", [images, channels, anchors]);
    places.sort_unstable();
    assert!(places.windows(2).all(|pair| pair[0] != pair[1]), "two positives at one anchor");
    assert!(x.dtype() == DType::F32, "a loss in {:?}", x.dtype());
    Tensor::from_dispatch(Dispatch::detection_terms(x.into_dispatch(), foreground))
}

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
