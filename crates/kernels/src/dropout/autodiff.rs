//! The gradient of dropout.

use super::DropoutOps;
use crate::steps::{Autodiff, Backward, CheckpointStrategy, Checkpointer, Float, Gradients, Ops, recorded, unary};

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
    fn dropout(x: Float<Self>, key: u64, p: f64) -> Float<Self> {
        let prep = Backward::<B, 1>::prepare::<C>(Dropout, [x.node()]).compute_bound().stateful();
        let y = B::dropout(x.into_primitive(), key, p);
        recorded!(prep, (key, p), y)
    }
}
