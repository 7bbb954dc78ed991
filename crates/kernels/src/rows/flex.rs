//! The row operations on Flex: f32 through our loops, everything else through Burn's own.

use burn::backend::{Flex, TensorMetadata};
use burn::tensor::DType;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::{RowOps, portable};
use crate::buffers::{contiguous, owned, tensor};
use crate::cpu::machine::RUN;
use crate::cpu::simd;
use crate::tasks::task;

task! {
    /// Turns a row into its softmax, or into exp(x - max) if it is not to be `scaled`; returns its maximum and Σ exp(x - max). A row with NaN or +inf, or of
    /// nothing but -inf, becomes NaN, as does its sum.
    fn softmax<S>(simd, row: &'a mut [f32], scaled: bool) -> (f32, f64) {
        // What is NaN is no maximum, but minus the maximum it is NaN, and so is then the sum.
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (centre, mut sum) = (simd.splat(max), 0.0);
        for run in row.chunks_mut(RUN * S::LANES) {
            let mut lanes = simd.zero();
            for part in run.chunks_mut(S::LANES) {
                let e = simd.exp(simd.sub(simd.read(part), centre));
                simd.write(e, part);
                if part.len() == S::LANES {
                    lanes = simd.add(lanes, e);
                } else {
                    sum += part.iter().map(|&v| f64::from(v)).sum::<f64>();
                }
            }
            sum += simd.total(lanes, S::LANES);
        }
        let scale = simd.splat((1.0 / sum) as f32);
        for part in row.chunks_mut(S::LANES).take(if scaled { usize::MAX } else { 0 }) {
            simd.write(simd.mul(simd.read(part), scale), part);
        }
        (max, sum)
    }
}

impl RowOps for Flex {
    fn cross_entropy(logits: FlexTensor, targets: FlexTensor) -> (FlexTensor, FlexTensor) {
        let (shape, targets) = (logits.shape(), contiguous(targets));
        let Some(ids) = ours(&logits, &targets) else { return portable::cross_entropy::<Self>(logits, targets) };
        let mut grad = owned(contiguous(logits));
        let loss = losses(&mut grad, &ids, true);
        (tensor(loss, [ids.len()]), tensor(grad, shape))
    }

    fn cross_entropy_loss(logits: FlexTensor, targets: FlexTensor) -> FlexTensor {
        let targets = contiguous(targets);
        let Some(ids) = ours(&logits, &targets) else { return portable::cross_entropy::<Self>(logits, targets).0 };
        tensor(losses(&mut owned(contiguous(logits)), &ids, false), [ids.len()])
    }
}

/// The targets, where our loops know the types. (Of an index that is in no row Burn's own operation says what it thinks.)
fn ours(logits: &FlexTensor, targets: &FlexTensor) -> Option<Vec<usize>> {
    let vocab = logits.shape()[1];
    ids(targets).filter(|ids| logits.dtype() == DType::F32 && ids.iter().all(|&id| id < vocab))
}

/// The loss of each row of logits, which become its gradient if they are to be `graded`.
fn losses(rows: &mut [f32], ids: &[usize], graded: bool) -> Vec<f32> {
    let (level, vocab) = (simd::level(), rows.len() / ids.len().max(1));
    rows.par_chunks_mut(vocab.max(1))
        .zip(ids)
        .map(|(row, &target)| {
            let logit = row[target];
            let (max, sum) = softmax(level, row, graded);
            row[target] -= f32::from(u8::from(graded));
            sum.ln() as f32 + max - logit
        })
        .collect()
}

/// The values of an integer tensor as indices.
pub(crate) fn ids(tensor: &FlexTensor) -> Option<Vec<usize>> {
    let index = |id: i64| usize::try_from(id).unwrap_or(usize::MAX);
    match tensor.dtype() {
        DType::I64 => Some(tensor.as_slice::<i64>()?.iter().map(|&id| index(id)).collect()),
        DType::I32 => Some(tensor.as_slice::<i32>()?.iter().map(|&id| index(id.into())).collect()),
        _ => None,
    }
}
