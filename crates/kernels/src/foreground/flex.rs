//! The operations on the processor, some positives to a task; sums in f64 in the positives' order.

use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::formula::{BINS, Corners, ciou, lower_bin, upper_share};
use super::{Foreground, ForegroundOps, Positive, SIDES};
use crate::buffers::{changed, contiguous, tensor, values};
use crate::cpu::machine::POSITIVES;

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
    let overlap = ciou(Corners { x1: cx - left, y1: cy - top, x2: cx + right, y2: cy + bottom }, Corners { x1, y1, x2, y2 });
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
    fn foreground_terms(x: FlexTensor, background: FlexTensor, foreground: Foreground) -> (FlexTensor, FlexTensor) {
        let (shape, m) = (x.shape().dims(), foreground.positives.len());
        let x = contiguous(x);
        let background = values(&contiguous(background))[0];
        let mut slopes = vec![0.0; 2 * m * SIDES];
        let (of_box, of_sides) = slopes.split_at_mut(m * SIDES);
        let each = foreground.positives.par_iter().zip(of_box.par_chunks_mut(SIDES)).zip(of_sides.par_chunks_mut(SIDES));
        let terms: Vec<[f64; 3]> =
            each.with_min_len(POSITIVES).map(|((l, b), s)| positive(l, values(&x), shape, [b, s], foreground.gains)).collect();
        // From zero: the sum of nothing is -0.
        let sum = |i: usize| terms.iter().fold(0.0, |sum, t| sum + t[i]);
        let [on_box, on_class, on_sides] = foreground.gains.map(f64::from);
        let class = f64::from(background) / f64::from(foreground.norm) - sum(1);
        let terms = [on_box * sum(0), on_class * class, on_sides * sum(2)];
        (tensor(terms.map(|t| t as f32).to_vec(), [3]), tensor(slopes, [2, m, SIDES]))
    }

    fn foreground_grad(grad: FlexTensor, slopes: FlexTensor, dy: FlexTensor, foreground: Foreground) -> FlexTensor {
        let shape = grad.shape().dims::<3>();
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
