//! The row operations on Flex: f32 through our loops, everything else through Burn's own.

use burn::backend::{Flex, TensorMetadata};
use burn::tensor::DType;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::passes::SoftmaxRow;
use super::{RowOps, portable};
use crate::buffers::{contiguous, owned, tensor};
use crate::cpu::simd;

impl RowOps for Flex {
    fn cross_entropy(logits: FlexTensor, targets: FlexTensor) -> (FlexTensor, FlexTensor) {
        let [n, vocab] = logits.shape().dims();
        let targets = contiguous(targets);
        let (DType::F32, Some(ids)) = (logits.dtype(), ids(&targets)) else {
            return portable::cross_entropy::<Self>(logits, targets);
        };
        if ids.iter().any(|&id| id >= vocab) {
            // Burn's own operation says what it thinks of such an index.
            return portable::cross_entropy::<Self>(logits, targets);
        }
        let (mut grad, level) = (owned(contiguous(logits)), simd::level());
        let loss: Vec<f32> = grad
            .par_chunks_mut(vocab)
            .zip(&ids)
            .map(|(row, &target)| {
                let logit = row[target];
                let (max, sum) = simd::run(level, SoftmaxRow { row });
                row[target] -= 1.0;
                sum.ln() as f32 + max - logit
            })
            .collect();
        (tensor(loss, [n]), tensor(grad, [n, vocab]))
    }
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
