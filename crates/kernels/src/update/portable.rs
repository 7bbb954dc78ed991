//! The numbers of an update, the same for every parameter, and what it is in Burn's own words: its definition, and the way of types other than f32.

use std::ops::Range;

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Backend, Scalar, TensorMetadata};
use burn::tensor::{FloatDType, Slice, try_read_sync};

use crate::planes::Parts;
use crate::portable::times;
use crate::reads::note_read;

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

/// Weight and moments.
pub(super) type Moved<B> = (Float<B>, Float<B>, Float<B>);

/// The ranges, and what is done to each.
pub(super) fn each_of<T>(ranges: &[(usize, T)]) -> impl Iterator<Item = (Range<usize>, &T)> {
    let mut start = 0;
    ranges.iter().map(move |(end, of)| (std::mem::replace(&mut start, *end)..*end, of))
}

pub(super) fn sgd_step<B: Backend>(weight: Float<B>, grad: Float<B>, buffer: Float<B>, steps: &[(usize, Sgd)]) -> (Float<B>, Float<B>) {
    let [weight, buffer] = by_ranges::<B, _, 3, 2>([weight, grad, buffer], steps, |[weight, grad, buffer], step| {
        let grad = B::float_add(grad, times::<B>(weight.clone(), step.decay));
        let buffer = B::float_add(times::<B>(buffer, step.momentum), grad.clone());
        let ahead = B::float_add(grad, times::<B>(buffer.clone(), step.momentum));
        [B::float_sub(weight, times::<B>(ahead, step.lr)), buffer]
    });
    (weight, buffer)
}

pub(super) fn adam_step<B: Backend>(w: Float<B>, g: Float<B>, m: Float<B>, v: Float<B>, steps: &[(usize, Adam)]) -> Moved<B> {
    let [w, m, v] = by_ranges::<B, _, 4, 3>([w, g, m, v], steps, |[w, g, m, v], step| {
        let w = times::<B>(w, step.keep);
        let g = B::float_add(g, times::<B>(w.clone(), step.decay));
        let m = blend::<B>(m, g.clone(), step.beta1, 1.0 - step.beta1);
        let v = blend::<B>(v, B::float_mul(g.clone(), g), step.beta2, 1.0 - step.beta2);
        let scaled = B::float_div_scalar(B::float_sqrt(v.clone()), Scalar::Float(step.root));
        let moved = B::float_div(m.clone(), B::float_add_scalar(scaled, Scalar::Float(step.epsilon)));
        [B::float_sub(w, times::<B>(moved, step.rate)), m, v]
    });
    (w, m, v)
}

/// What `step` makes of each range, one behind the other.
fn by_ranges<B: Backend, T, const N: usize, const M: usize>(
    of: [Float<B>; N],
    ranges: &[(usize, T)],
    step: impl Fn([Float<B>; N], &T) -> [Float<B>; M],
) -> [Float<B>; M] {
    let slice = |tensor: &Float<B>, range: &Range<usize>| B::float_slice(tensor.clone(), &[Slice::from(range.clone())]);
    let parts: Vec<_> = each_of(ranges).map(|(range, it)| step(of.each_ref().map(|tensor| slice(tensor, &range)), it)).collect();
    std::array::from_fn(|i| B::float_cat(parts.iter().map(|part| part[i].clone()).collect(), 0))
}

pub(super) fn blend<B: Backend>(old: Float<B>, new: Float<B>, a: f64, b: f64) -> Float<B> {
    B::float_add(times::<B>(old, a), times::<B>(new, b))
}

pub(super) fn sum_of_squares<B: Backend>(arenas: Parts<B>, segments: &Segments) -> Float<B> {
    let of = |(arena, range): &(usize, Range<usize>)| {
        let x = B::float_slice(arenas.0[*arena].clone(), &[Slice::from(range.clone())]);
        B::float_cast(B::float_sum(B::float_mul(x.clone(), x)), FloatDType::F32)
    };
    B::float_sum(B::float_cat(segments.0.iter().map(of).collect(), 0))
}

/// Waits for the sum: what Burn's operations make of one that is not finite differs from device to device, and not every device stores truth values.
pub(super) fn clip_to_norm<B: Backend>(x: Float<B>, squares: Float<B>, most: f64) -> Float<B> {
    note_read();
    let read = try_read_sync(B::float_into_data(squares.clone())).and_then(Result::ok).and_then(|sum| sum.try_into_vec_as::<f32>().ok());
    let true = read.is_some_and(|sum| sum.iter().all(|sum| sum.is_finite())) else { return x };
    let norm = B::float_add_scalar(B::float_sqrt(squares), Scalar::Float(1e-6));
    let factor = B::float_clamp_max(times::<B>(B::float_recip(norm), most), Scalar::Float(1.0));
    let dtype: FloatDType = x.dtype().into();
    B::float_mul(x, B::float_cast(factor, dtype))
}
