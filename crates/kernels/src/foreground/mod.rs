//! What a detector's loss asks of the anchors that learn an object: CIoU of the box, cross entropy of its sides' distributions, and the part
//! of the classes' cross entropy that [`LogitOps::softplus_sum`] leaves open.
//!
//! Of some hundred thousand anchors a few hundred are such. Composed of Burn's operations their terms are three hundred launches on a GPU;
//! here they are two, and one in the backward pass, which only spreads slopes that were made with the terms. Four more find the anchors there.

mod cube;
mod cube_assign;
mod cube_objects;
mod formula;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{AutodiffBackend, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{DType, Slice, Tensor};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use crate::buffers::{changed, contiguous, tensor, values};
use crate::cpu::machine::POSITIVES;
use crate::logits::LogitOps;
use crate::planes::PlaneOps;
use crate::shapes;
use crate::steps::{Autodiff, CheckpointStrategy, recorded};
use formula::{Corners, lower_bin, upper_share};

pub use cube_assign::assigned_terms;
pub use cube_objects::{Object, Objects, assigns};
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

/// Which anchors learn.
#[derive(Clone, Debug)]
pub enum Learning {
    /// Those that the host has chosen.
    Chosen(Foreground),
    /// Those that a CubeCL device finds for these objects.
    Assigned(Arc<Objects>),
}

impl Learning {
    fn chosen(&self) -> &Foreground {
        let Self::Chosen(chosen) = self else { unreachable!("only CubeCL devices assign objects") };
        chosen
    }
}

/// CIoU of two boxes `x1, y1, x2, y2`; see `formula`.
#[inline]
pub fn ciou(a: [f32; 4], b: [f32; 4]) -> f32 {
    let corners = |[x1, y1, x2, y2]: [f32; 4]| Corners { x1, y1, x2, y2 };
    formula::ciou(corners(a), corners(b)).value
}

/// Operations on raw outputs `[B, C, A]`: 64 channels of sides, then the classes.
#[backend_extension(Flex, Cube, Autodiff)]
pub trait ForegroundOps: Backend + LogitOps {
    /// Terms `[3]` and, without gradient, the slopes of the box and of the distribution term for each positive's side logits, 2 M 64 of them, with whatever else a
    /// backend keeps for the gradient, and the gain of the softplus sum of all class logits, which is `background`, both `[1]`.
    fn foreground_terms(x: Float<Self>, background: Float<Self>, learning: Learning) -> (Float<Self>, Float<Self>, Float<Self>);

    /// `grad [B, C, A]` plus the gradient of the terms at the foreground, from their slopes and dy `[3]`.
    fn foreground_grad(grad: Float<Self>, slopes: Float<Self>, dy: Float<Self>, learning: Learning) -> Float<Self>;

    /// Both in one for the gradient's sake: see [`detection_terms`].
    fn detection_terms(x: Float<Self>, learning: Learning) -> Float<Self> {
        let classes = x.shape()[1] - SIDES;
        let (background, _) = Self::softplus_sum(x.clone(), SIDES, classes);
        Self::foreground_terms(x, background, learning).0
    }
}

/// Box, class and distribution terms of a batch, `[3]`, differentiable in x `[B, 64 + classes, A]`:
///
/// ```text
/// box           gains[0]  Σ w (1 - CIoU(box, target))         box: the centre less and plus the expected bins of its sides class         gains[1] (Σ
/// softplus(x) / norm - Σ w x[class]) distribution  gains[2]  Σ w / 4 Σ over sides of the cross entropy of the side's logits against its two-spiked target
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
    Tensor::from_dispatch(Dispatch::detection_terms(x.into_dispatch(), Learning::Chosen(foreground)))
}

/// Where a positive's logits are: those of its first bin, and from one channel to the next.
fn places(l: &Positive, [_, channels, anchors]: [usize; 3]) -> (usize, usize) {
    (l.image as usize * channels * anchors + l.anchor as usize, anchors)
}

/// Terms of one positive, unweighted by gains, and both slopes of its side logits.
fn positive(l: &Positive, x: &[f32], shape: [usize; 3], [of_box, of_sides]: [&mut [f32]; 2], gains: [f32; 3]) -> [f64; 3] {
    let (first, step) = places(l, shape);
    let ([cx, cy], [x1, y1, x2, y2]) = (l.centre, l.target);
    let mut p = [0.0f32; SIDES];
    let (mut expected, mut entropy) = ([0.0f32; 4], 0.0f32);
    for (side, distance) in [cx - x1, cy - y1, x2 - cx, y2 - cy].into_iter().enumerate() {
        let logit = |k: usize| x[first + (side * BINS + k) * step];
        let most = (0..BINS).map(logit).fold(f32::NEG_INFINITY, f32::max);
        let p = &mut p[side * BINS..][..BINS];
        p.iter_mut().enumerate().for_each(|(k, p)| *p = (logit(k) - most).exp());
        let sum: f32 = p.iter().sum();
        p.iter_mut().for_each(|p| *p /= sum);
        expected[side] = p.iter().enumerate().map(|(k, p)| k as f32 * p).sum();
        let (lower, upper) = (lower_bin(distance) as usize, upper_share(distance));
        let scale = gains[2] * l.weight / 4.0;
        for (k, (slope, p)) in of_sides[side * BINS..].iter_mut().zip(&*p).enumerate() {
            let spike = [1.0 - upper, upper].get(k.wrapping_sub(lower)).copied().unwrap_or(0.0);
            *slope = scale * (p - spike);
        }
        entropy += sum.ln() + most - (1.0 - upper) * logit(lower) - upper * logit(lower + 1);
    }
    let [left, top, right, bottom] = expected;
    let overlap = formula::ciou(Corners { x1: cx - left, y1: cy - top, x2: cx + right, y2: cy + bottom }, Corners { x1, y1, x2, y2 });
    let s = overlap.slopes;
    for (side, slope) in [-s.x1, -s.y1, s.x2, s.y2].into_iter().enumerate() {
        let slope = -gains[0] * l.weight * slope;
        for (k, out) in of_box[side * BINS..][..BINS].iter_mut().enumerate() {
            *out = slope * p[side * BINS + k] * (k as f32 - expected[side]);
        }
    }
    let hit = x[first + (SIDES + l.class as usize) * step];
    [l.weight * (1.0 - overlap.value), l.weight * hit, l.weight / 4.0 * entropy].map(f64::from)
}

impl ForegroundOps for Flex {
    fn foreground_terms(x: FlexTensor, background: FlexTensor, learning: Learning) -> (FlexTensor, FlexTensor, FlexTensor) {
        let Foreground { positives, gains, norm } = learning.chosen();
        let (shape, m) = (x.shape().dims(), positives.len());
        let x = contiguous(x);
        let background = values(&contiguous(background))[0];
        let mut slopes = vec![0.0; 2 * m * SIDES];
        let (of_box, of_sides) = slopes.split_at_mut(m * SIDES);
        let each = positives.par_iter().zip(of_box.par_chunks_mut(SIDES)).zip(of_sides.par_chunks_mut(SIDES)).with_min_len(POSITIVES);
        let terms: Vec<[f64; 3]> = each.map(|((l, b), s)| positive(l, values(&x), shape, [b, s], *gains)).collect();
        // From zero: the sum of nothing is -0.
        let sum = |i: usize| terms.iter().fold(0.0, |sum, t| sum + t[i]);
        let [on_box, on_class, on_sides] = gains.map(f64::from);
        let class = f64::from(background) / f64::from(*norm) - sum(1);
        let terms = [on_box * sum(0), on_class * class, on_sides * sum(2)];
        let of_sum = (on_class / f64::from(*norm)) as f32;
        (tensor(terms.map(|t| t as f32).to_vec(), [3]), tensor(slopes, [2, m, SIDES]), tensor(vec![of_sum], [1]))
    }

    fn foreground_grad(grad: FlexTensor, slopes: FlexTensor, dy: FlexTensor, learning: Learning) -> FlexTensor {
        let (foreground, shape) = (learning.chosen(), grad.shape().dims::<3>());
        let (slopes, dy) = (contiguous(slopes), contiguous(dy));
        let (of_box, of_sides) = values(&slopes).split_at(foreground.positives.len() * SIDES);
        let [on_box, on_class, on_sides] = [0, 1, 2].map(|i| values(&dy)[i]);
        changed(grad, |grad| {
            for (i, l) in foreground.positives.iter().enumerate() {
                let (first, step) = places(l, shape);
                for c in 0..SIDES {
                    grad[first + c * step] += on_box * of_box[i * SIDES + c] + on_sides * of_sides[i * SIDES + c];
                }
                grad[first + (SIDES + l.class as usize) * step] -= on_class * foreground.gains[1] * l.weight;
            }
        })
    }
}

impl<B: ForegroundOps + PlaneOps, C: CheckpointStrategy> ForegroundOps for Autodiff<B, C> {
    fn foreground_terms(x: Float<Self>, background: Float<Self>, learning: Learning) -> (Float<Self>, Float<Self>, Float<Self>) {
        let (terms, slopes, of_sum) = B::foreground_terms(x.into_primitive(), background.into_primitive(), learning);
        (Self::from_inner(terms), Self::from_inner(slopes), Self::from_inner(of_sum))
    }

    fn foreground_grad(grad: Float<Self>, slopes: Float<Self>, dy: Float<Self>, learning: Learning) -> Float<Self> {
        Self::from_inner(B::foreground_grad(grad.into_primitive(), slopes.into_primitive(), dy.into_primitive(), learning))
    }

    fn detection_terms(x: Float<Self>, learning: Learning) -> Float<Self> {
        let (nodes, x) = ([x.node()], x.into_primitive());
        let classes = x.shape()[1] - SIDES;
        let (background, of_classes) = B::softplus_sum(x.clone(), SIDES, classes);
        let (terms, of_sides, of_sum) = B::foreground_terms(x, background, learning.clone());
        recorded::<B, C, 1>(nodes, &[], terms, move |dy, mut parents| {
            parents.give::<B>(0, || {
                let background = B::float_mul(B::float_slice(dy.clone(), &[Slice::from(1..2)]), of_sum);
                let grad = B::softplus_sum_grad(of_classes, background, SIDES, SIDES + classes);
                B::foreground_grad(grad, of_sides, dy, learning)
            });
        })
    }
}
