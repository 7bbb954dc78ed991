//! The arithmetic of an optimizer step, one pass over each [arena](mod@crate::arena) of parameters instead of one per operation and parameter: groups of
//! parameters with rates of their own are ranges of it.
//!
//! The formulas and the order of their roundings are those of the operations in `portable.rs`, which are PyTorch's; on Flex a
//! fused loop gives the same bits. Nothing is changed in place except what the caller gives away.

mod cube;
mod portable;
#[cfg(test)]
mod tests;

use std::ops::Range;

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use crate::buffers::{all_f32, changed, contiguous, owned, tensor, values};
use crate::cpu::machine::TASK;
use crate::planes::Parts;
use crate::shapes;

pub use portable::{Adam, Segments, Sgd};
use portable::{Moved, each_of};

/// What is done to each range of an arena: where it ends, from the end of the one before on. The last ends with the arena.
pub type Ranges<T> = Vec<(usize, T)>;

/// Operations on flat tensors `[K]`, without gradient.
#[backend_extension(Flex, Cube)]
pub trait UpdateOps: Backend {
    /// New weight and buffer: `g += decay w; b = m b + g; w -= lr (g + m b)`.
    fn sgd_step(weight: Float<Self>, grad: Float<Self>, buffer: Float<Self>, steps: Ranges<Sgd>) -> (Float<Self>, Float<Self>);

    /// New weight and moments: `w *= keep; g += decay w; m = β1 m + (1 - β1) g; v = β2 v + (1 - β2) g²; w -= rate m / (√v / root + ε)`.
    fn adam_step(
        w: Float<Self>,
        g: Float<Self>,
        m: Float<Self>,
        v: Float<Self>,
        steps: Ranges<Adam>,
    ) -> (Float<Self>, Float<Self>, Float<Self>);

    /// `a old + b new`.
    fn blend(old: Float<Self>, new: Float<Self>, a: f64, b: f64) -> Float<Self>;

    /// `Σ x²` over the segments, which leave out nothing but zeros; f32 `[1]`.
    fn sum_of_squares(#[extension_type] arenas: Parts<Self>, segments: Segments) -> Float<Self>;

    /// x times `min(1, most / (√squares + 1e-6))`; x as it is where `squares` is not finite.
    fn clip_to_norm(x: Float<Self>, squares: Float<Self>, most: f64) -> Float<Self>;
}

/// Panics unless they rise to `len`.
fn check_ranges<T>(ranges: &[(usize, T)], len: usize) {
    shapes::expect("the end of the last range", [ranges.last().map_or(0, |range| range.0)], [len]);
    assert!(ranges.is_sorted_by_key(|range| range.0), "ranges that do not follow each other");
}

/// New weight and momentum buffer, all `[K]` and without gradient. See [`UpdateOps::sgd_step`]; no buffer yet counts as zeros.
pub fn sgd_step(weight: Tensor<1>, grad: Tensor<1>, buffer: Option<Tensor<1>>, steps: Ranges<Sgd>) -> (Tensor<1>, Tensor<1>) {
    check_ranges(&steps, weight.dims()[0]);
    shapes::expect("the gradient", grad.dims(), weight.dims());
    let buffer = buffer.unwrap_or_else(|| weight.zeros_like());
    shapes::expect("the buffer", buffer.dims(), weight.dims());
    let (weight, buffer) = Dispatch::sgd_step(weight.into_dispatch(), grad.into_dispatch(), buffer.into_dispatch(), steps);
    (Tensor::from_dispatch(weight), Tensor::from_dispatch(buffer))
}

/// New weight and moments of weight, gradient and moments, all `[K]` and without gradient. See [`UpdateOps::adam_step`]; no moments yet count as zeros.
pub fn adam_step(w: Tensor<1>, g: Tensor<1>, m: Option<Tensor<1>>, v: Option<Tensor<1>>, steps: Ranges<Adam>) -> [Tensor<1>; 3] {
    check_ranges(&steps, w.dims()[0]);
    shapes::expect("the gradient", g.dims(), w.dims());
    let [m, v] = [m, v].map(|moment| {
        let moment = moment.unwrap_or_else(|| w.zeros_like());
        shapes::expect("a moment", moment.dims(), w.dims());
        moment.into_dispatch()
    });
    let (w, m, v) = Dispatch::adam_step(w.into_dispatch(), g.into_dispatch(), m, v, steps);
    [w, m, v].map(Tensor::from_dispatch)
}

/// `a old + b new`, `[K]`, without gradient; in old's memory if nobody else holds it.
pub fn blend(old: Tensor<1>, new: Tensor<1>, a: f64, b: f64) -> Tensor<1> {
    shapes::expect("the new value", new.dims(), old.dims());
    Tensor::from_dispatch(Dispatch::blend(old.into_dispatch(), new.into_dispatch(), a, b))
}

/// `Σ x²` as `[1]` in f32, without gradient: not finite if any value is not, or if the sum overflows. At least one arena; the segments leave out nothing but
/// zeros (on a processor they are summed up one by one, so that the order does not follow from how parameters lie; a GPU takes whole arenas).
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

impl UpdateOps for Flex {
    fn sgd_step(weight: FlexTensor, grad: FlexTensor, buffer: FlexTensor, steps: Ranges<Sgd>) -> (FlexTensor, FlexTensor) {
        let true = all_f32([&weight, &grad, &buffer]) else { return portable::sgd_step::<Self>(weight, grad, buffer, &steps) };
        let [mut weight, mut buffer] = [weight, buffer].map(|t| owned(contiguous(t)));
        let grad = contiguous(grad);
        for (range, step) in each_of(&steps) {
            let (lr, momentum, decay) = (step.lr as f32, step.momentum as f32, step.decay as f32);
            let moved = weight[range.clone()].par_chunks_mut(TASK).zip(buffer[range.clone()].par_chunks_mut(TASK));
            moved.zip(values(&grad)[range].par_chunks(TASK)).for_each(|((weight, buffer), grad)| {
                for ((w, b), &g) in weight.iter_mut().zip(buffer).zip(grad) {
                    let g = g + *w * decay;
                    *b = *b * momentum + g;
                    *w -= (g + *b * momentum) * lr;
                }
            });
        }
        let len = weight.len();
        (tensor(weight, [len]), tensor(buffer, [len]))
    }

    fn adam_step(w: FlexTensor, g: FlexTensor, m: FlexTensor, v: FlexTensor, steps: Ranges<Adam>) -> Moved<Self> {
        let true = all_f32([&w, &g, &m, &v]) else { return portable::adam_step::<Self>(w, g, m, v, &steps) };
        let [mut weight, mut first, mut second] = [w, m, v].map(|t| owned(contiguous(t)));
        let grad = contiguous(g);
        for (range, step) in each_of(&steps) {
            let (rate, root, epsilon) = (step.rate as f32, step.root as f32, step.epsilon as f32);
            let (beta1, rest1) = (step.beta1 as f32, (1.0 - step.beta1) as f32);
            let (beta2, rest2) = (step.beta2 as f32, (1.0 - step.beta2) as f32);
            let (decay, keep) = (step.decay as f32, step.keep as f32);
            let moments = first[range.clone()].par_chunks_mut(TASK).zip(second[range.clone()].par_chunks_mut(TASK));
            let chunks = weight[range.clone()].par_chunks_mut(TASK).zip(moments).zip(values(&grad)[range].par_chunks(TASK));
            chunks.for_each(|((weight, (first, second)), grad)| {
                for (((w, m), v), &g) in weight.iter_mut().zip(first).zip(second).zip(grad) {
                    let kept = *w * keep;
                    let g = g + kept * decay;
                    *m = *m * beta1 + g * rest1;
                    *v = *v * beta2 + g * g * rest2;
                    *w = kept - *m / (v.sqrt() / root + epsilon) * rate;
                }
            });
        }
        let len = weight.len();
        (tensor(weight, [len]), tensor(first, [len]), tensor(second, [len]))
    }

    fn blend(old: FlexTensor, new: FlexTensor, a: f64, b: f64) -> FlexTensor {
        let true = all_f32([&old, &new]) else { return portable::blend::<Self>(old, new, a, b) };
        let (new, a, b) = (contiguous(new), a as f32, b as f32);
        let task = |(old, new): (&mut [f32], &[f32])| old.iter_mut().zip(new).for_each(|(o, &n)| *o = *o * a + n * b);
        changed(old, |old| old.par_chunks_mut(TASK).zip(values(&new).par_chunks(TASK)).for_each(task))
    }

    fn sum_of_squares(arenas: Parts<Self>, segments: Segments) -> FlexTensor {
        let true = all_f32(&arenas.0) else { return portable::sum_of_squares::<Self>(arenas, &segments) };
        let arenas: Vec<FlexTensor> = arenas.0.into_iter().map(contiguous).collect();
        let of = |(arena, range): &(usize, Range<usize>)| values(&arenas[*arena])[range.clone()].chunks(TASK);
        let chunks: Vec<&[f32]> = segments.0.iter().flat_map(of).collect();
        let parts: Vec<f64> = chunks.into_par_iter().map(squares).collect();
        let mut parts = parts.into_iter();
        let sums = segments.0.iter().map(|(_, range)| parts.by_ref().take(range.len().div_ceil(TASK)).sum::<f64>() as f32);
        let sums: Vec<f32> = sums.collect();
        let count = sums.len();
        Self::float_sum(tensor(sums, [count]))
    }

    fn clip_to_norm(x: FlexTensor, sum: FlexTensor, most: f64) -> FlexTensor {
        let true = all_f32([&x, &sum]) else { return portable::clip_to_norm::<Self>(x, sum, most) };
        let norm = values(&contiguous(sum)).iter().map(|&sum| f64::from(sum)).sum::<f64>().sqrt();
        let factor = most / (norm + 1e-6);
        let true = (norm.is_finite() && factor < 1.0) else { return x };
        changed(x, |x| x.par_chunks_mut(TASK).for_each(|x| x.iter_mut().for_each(|v| *v *= factor as f32)))
    }
}

/// `Σ x²`: eight sums side by side, so that the additions do not wait for each other.
fn squares(x: &[f32]) -> f64 {
    let (octets, mut sums) = (x.chunks_exact(8), [0.0f64; 8]);
    let rest: f64 = octets.remainder().iter().map(|&v| f64::from(v) * f64::from(v)).sum();
    for octet in octets {
        for (sum, &v) in sums.iter_mut().zip(octet) {
            *sum += f64::from(v) * f64::from(v);
        }
    }
    sums.iter().sum::<f64>() + rest
}
