//! The gradient of attention: q, k, v, the result and a number for each row are kept.

use burn::backend::tensor::IntTensor;

use super::AttentionOps;
use crate::steps::{Autodiff, Backward, CheckpointStrategy, Checkpointer, Float, Gradients, NodeId, Ops, OpsKind};

/// Parents are q, k and v.
#[derive(Debug)]
struct Attention;

#[derive(Clone, Debug)]
struct State<B: AttentionOps> {
    inputs: [NodeId; 3],
    first: IntTensor<B>,
    y: Float<B>,
    sums: Float<B>,
    scale: f64,
}

impl<B: AttentionOps> Backward<B, 3> for Attention {
    type State = State<B>;

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let State { inputs, first, y, sums, scale } = ops.state;
        let [q, k, v] = inputs.map(|id| checkpointer.retrieve_node_output::<Float<B>>(id));
        let (dq, dk, dv) = B::attend_grad(q, k, v, first, y, sums, dy, scale);
        for (node, grad) in ops.parents.into_iter().zip([dq, dk, dv]) {
            if let Some(node) = node {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}

impl<B: AttentionOps, C: CheckpointStrategy> AttentionOps for Autodiff<B, C> {
    fn attend(q: Float<Self>, k: Float<Self>, v: Float<Self>, first: IntTensor<Self>, scale: f64) -> (Float<Self>, Float<Self>) {
        use burn::backend::AutodiffBackend;
        match Backward::<B, 3>::prepare::<C>(Attention, [q.node(), k.node(), v.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let inputs = [&q, &k, &v].map(|t| prep.checkpoint(t));
                let [q, k, v] = [q, k, v].map(|t| t.into_primitive());
                let (y, sums) = B::attend(q, k, v, first.clone(), scale);
                let state = State { inputs, first, y: y.clone(), sums: sums.clone(), scale };
                (prep.finish(state, y), Self::from_inner(sums))
            }
            OpsKind::UnTracked(prep) => {
                let [q, k, v] = [q, k, v].map(|t| t.into_primitive());
                let (y, sums) = B::attend(q, k, v, first, scale);
                (prep.finish(y), Self::from_inner(sums))
            }
        }
    }
}
