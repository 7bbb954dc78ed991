//! The gradient: the slope was made with the sum.

use burn::backend::tensor::FloatTensor;
use burn::backend::{AutodiffBackend, TensorMetadata};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind, unary};

use super::LogitOps;

/// State: the slope, the first row and the number of all.
#[derive(Debug)]
struct SoftplusSum;

impl<B: LogitOps> Backward<B, 1> for SoftplusSum {
    type State = (FloatTensor<B>, usize, usize);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (slope, start, total) = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |dy| B::softplus_sum_grad(slope, dy, start, total));
    }
}

impl<B: LogitOps, C: CheckpointStrategy> LogitOps for Autodiff<B, C> {
    fn softplus_sum(x: FloatTensor<Self>, start: usize, len: usize) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let total = x.shape()[1];
        let prep = Backward::<B, 1>::prepare::<C>(SoftplusSum, [x.node()]).compute_bound().stateful();
        let (sum, slope) = B::softplus_sum(x.into_primitive(), start, len);
        let sum = match prep {
            OpsKind::Tracked(prep) => prep.finish((slope.clone(), start, total), sum),
            OpsKind::UnTracked(prep) => prep.finish(sum),
        };
        (sum, Self::from_inner(slope))
    }

    fn expectation(x: FloatTensor<Self>, sides: usize, bins: usize) -> FloatTensor<Self> {
        Self::from_inner(B::expectation(x.into_primitive(), sides, bins))
    }
}
