//! Operations on the rows of `[N, K]` that language models are made of.

mod cube;
#[cfg(test)]
mod tests;

use burn::backend::tensor::{FloatTensor as Float, IntTensor};
use burn::backend::{Backend, Dispatch, Flex, Scalar, TensorMetadata, backend_extension};
use burn::tensor::{DType, IndexingUpdateOp, Int, Shape, Tensor};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use crate::buffers::{contiguous, owned, tensor};
use crate::cpu::machine::RUN;
use crate::cpu::simd;
use crate::shapes;
use crate::tasks::task;

/// Operations on rows, without gradient.
#[backend_extension(Flex, Cube)]
pub trait RowOps: Backend {
    /// `-log softmax(x)[target]` of each row, `[N]`, and its gradient `softmax(x) - onehot(target)`, `[N, V]`, in x's memory if nobody else
    /// holds it. Logits `[N, V]`, targets `[N]` in 0..V.
    fn cross_entropy(logits: Float<Self>, targets: IntTensor<Self>) -> (Float<Self>, Float<Self>);

    /// The first of the two alone, whose bits it has on the processor; what x's memory holds then is nothing of use.
    fn cross_entropy_loss(logits: Float<Self>, targets: IntTensor<Self>) -> Float<Self>;
}

/// `-log softmax(x)[target]` of each row, `[N]`, and its gradient with respect to x, `[N, V]`. Logits `[N, V]`, targets `[N]` in 0..V; without autodiff.
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> (Tensor<1>, Tensor<2>) {
    shapes::expect("targets", targets.dims(), [logits.dims()[0]]);
    let (loss, grad) = Dispatch::cross_entropy(logits.into_dispatch(), targets.into_dispatch());
    (Tensor::from_dispatch(loss), Tensor::from_dispatch(grad))
}

/// `-log softmax(x)[target]` of each row alone, `[N]`: [`cross_entropy`] where nothing is learnt.
pub fn cross_entropy_loss(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    shapes::expect("targets", targets.dims(), [logits.dims()[0]]);
    Tensor::from_dispatch(Dispatch::cross_entropy_loss(logits.into_dispatch(), targets.into_dispatch()))
}

/// The loss and its gradient in Burn's own words.
fn composed<B: Backend>(logits: Float<B>, targets: IntTensor<B>) -> (Float<B>, Float<B>) {
    let n = logits.shape()[0];
    let targets = B::int_reshape(targets, Shape::new([n, 1]));
    let centred = B::float_sub(logits.clone(), B::float_max_dim(logits, 1));
    let exp = B::float_exp(centred.clone());
    let sum = B::float_sum_dim(exp.clone(), 1);
    let loss = B::float_sub(B::float_log(sum.clone()), B::float_gather(1, centred, targets.clone()));
    let minus_one = B::float_full(Shape::new([n, 1]), Scalar::Float(-1.0), &exp.device(), exp.dtype().into());
    let grad = B::float_scatter(1, B::float_div(exp, sum), targets, minus_one, IndexingUpdateOp::Add);
    (B::float_reshape(loss, Shape::new([n])), grad)
}

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
        let Some(ids) = ours(&logits, &targets) else { return composed::<Self>(logits, targets) };
        let mut grad = owned(contiguous(logits));
        let loss = losses(&mut grad, &ids, true);
        (tensor(loss, [ids.len()]), tensor(grad, shape))
    }

    fn cross_entropy_loss(logits: FlexTensor, targets: FlexTensor) -> FlexTensor {
        let targets = contiguous(targets);
        let Some(ids) = ours(&logits, &targets) else { return composed::<Self>(logits, targets).0 };
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
