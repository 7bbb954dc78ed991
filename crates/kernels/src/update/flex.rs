//! The updates on Flex: f32 in one parallel loop each, everything else through Burn's own operations.

use std::ops::Range;

use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::{Adam, Segments, Sgd, UpdateOps, portable};
use crate::buffers::{all_f32, changed, contiguous, owned, tensor, values};
use crate::cpu::machine::TASK;
use crate::planes::Parts;

impl UpdateOps for Flex {
    fn sgd_step(weight: FlexTensor, grad: FlexTensor, buffer: FlexTensor, step: Sgd) -> (FlexTensor, FlexTensor) {
        let true = all_f32([&weight, &grad, &buffer]) else { return portable::sgd_step::<Self>(weight, grad, buffer, step) };
        let [mut weight, mut buffer] = [weight, buffer].map(|t| owned(contiguous(t)));
        let grad = contiguous(grad);
        let (lr, momentum, decay) = (step.lr as f32, step.momentum as f32, step.decay as f32);
        let chunks = weight.par_chunks_mut(TASK).zip(buffer.par_chunks_mut(TASK)).zip(values(&grad).par_chunks(TASK));
        chunks.for_each(|((weight, buffer), grad)| {
            for ((w, b), &g) in weight.iter_mut().zip(buffer).zip(grad) {
                let g = g + *w * decay;
                *b = *b * momentum + g;
                *w -= (g + *b * momentum) * lr;
            }
        });
        let len = weight.len();
        (tensor(weight, [len]), tensor(buffer, [len]))
    }

    fn adam_step(
        weight: FlexTensor,
        grad: FlexTensor,
        first: FlexTensor,
        second: FlexTensor,
        step: Adam,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        if !all_f32([&weight, &grad, &first, &second]) {
            return portable::adam_step::<Self>(weight, grad, first, second, step);
        }
        let [mut weight, mut first, mut second] = [weight, first, second].map(|t| owned(contiguous(t)));
        let grad = contiguous(grad);
        let (rate, root, epsilon) = (step.rate as f32, step.root as f32, step.epsilon as f32);
        let (beta1, rest1) = (step.beta1 as f32, (1.0 - step.beta1) as f32);
        let (beta2, rest2) = (step.beta2 as f32, (1.0 - step.beta2) as f32);
        let (decay, keep) = (step.decay as f32, step.keep as f32);
        let moments = first.par_chunks_mut(TASK).zip(second.par_chunks_mut(TASK));
        let chunks = weight.par_chunks_mut(TASK).zip(moments).zip(values(&grad).par_chunks(TASK));
        chunks.for_each(|((weight, (first, second)), grad)| {
            for (((w, m), v), &g) in weight.iter_mut().zip(first).zip(second).zip(grad) {
                let kept = *w * keep;
                let g = g + kept * decay;
                *m = *m * beta1 + g * rest1;
                *v = *v * beta2 + g * g * rest2;
                *w = kept - *m / (v.sqrt() / root + epsilon) * rate;
            }
        });
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
