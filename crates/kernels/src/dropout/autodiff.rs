//! The gradient of dropout.

use burn::backend::tensor::FloatTensor;
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind, unary};

use super::DropoutOps;

/// State: key and p.
#[derive(Debug)]
struct Dropout;

impl<B: DropoutOps> Backward<B, 1> for Dropout {
    type State = (u64, f64);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (key, p) = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |dy| B::dropout(dy, key, p));
    }
}

impl<B: DropoutOps, C: CheckpointStrategy> DropoutOps for Autodiff<B, C> {
    fn dropout(x: FloatTensor<Self>, key: u64, p: f64) -> FloatTensor<Self> {
        let prep = Backward::<B, 1>::prepare::<C>(Dropout, [x.node()]).compute_bound().stateful();
        let y = B::dropout(x.into_primitive(), key, p);
        match prep {
            OpsKind::Tracked(prep) => prep.finish((key, p), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}
