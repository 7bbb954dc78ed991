//! Gradients of the decoder's operations. A gradient is computed only for an input that asks for one.

use super::DecoderOps;
use crate::several::{Gathered, result};
use crate::steps::{Autodiff, Backward, CheckpointStrategy, Checkpointer, Float, Gradients, NodeId, Ops, recorded, register};

/// State: x, the weight, ε.
#[derive(Debug)]
struct RmsNorm;

impl<B: DecoderOps> Backward<B, 2> for RmsNorm {
    type State = (NodeId, NodeId, f64);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (x, weight, epsilon) = ops.state;
        let dy = grads.consume::<B>(&ops.node);
        let x = checkpointer.retrieve_node_output::<Float<B>>(x);
        let weight = checkpointer.retrieve_node_output::<Float<B>>(weight);
        let [x_node, weight_node] = ops.parents;
        if let Some(node) = weight_node {
            grads.register::<B>(node.id, B::rms_norm_weight_grad(x.clone(), dy.clone(), epsilon));
        }
        if let Some(node) = x_node {
            register!(B, grads, node, |held| match held {
                Some(held) => B::rms_norm_data_grad_onto(x, weight, dy, held, epsilon),
                None => B::rms_norm_data_grad(x, weight, dy, epsilon),
            });
        }
    }
}

/// State: gate and up.
#[derive(Debug)]
struct Swiglu;

impl<B: DecoderOps> Backward<B, 2> for Swiglu {
    type State = [NodeId; 2];

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let [gate, up] = ops.state.map(|id| checkpointer.retrieve_node_output::<Float<B>>(id));
        let (dgate, dup) = B::swiglu_grad(gate, up, dy);
        for (node, grad) in ops.parents.into_iter().zip([dgate, dup]) {
            if let Some(node) = node {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}

/// Parents are queries and keys. State: the gradients of both, turned, and the angles.
#[derive(Debug)]
struct Rotate;

impl<B: DecoderOps> Backward<B, 2> for Rotate {
    type State = (Gathered<B>, [Float<B>; 2]);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        drop(grads.consume::<B>(&ops.node));
        let (gathered, [cos, sin]) = ops.state;
        let mut dys = gathered.take();
        dys.sort_by_key(|(number, _)| *number);
        let mut dys = dys.into_iter().map(|(_, dy)| dy);
        let (Some(dq), Some(dk)) = (dys.next(), dys.next()) else { unreachable!("a gradient of queries and one of keys") };
        let (dq, dk) = B::rotate_back(dq, dk, cos, sin);
        for (node, grad) in ops.parents.into_iter().zip([dq, dk]) {
            if let Some(node) = node {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}

impl<B: DecoderOps, C: CheckpointStrategy> DecoderOps for Autodiff<B, C> {
    fn rms_norm(x: Float<Self>, weight: Float<Self>, epsilon: f64) -> Float<Self> {
        let prep = Backward::<B, 2>::prepare::<C>(RmsNorm, [x.node(), weight.node()]).compute_bound().stateful();
        recorded!(
            prep,
            |prep| (prep.checkpoint(&x), prep.checkpoint(&weight), epsilon),
            B::rms_norm(x.into_primitive(), weight.into_primitive(), epsilon)
        )
    }

    fn swiglu(gate: Float<Self>, up: Float<Self>) -> Float<Self> {
        let prep = Backward::<B, 2>::prepare::<C>(Swiglu, [gate.node(), up.node()]).compute_bound().stateful();
        recorded!(prep, |prep| [prep.checkpoint(&gate), prep.checkpoint(&up)], B::swiglu(gate.into_primitive(), up.into_primitive()))
    }

    fn rotate(q: Float<Self>, k: Float<Self>, cos: Float<Self>, sin: Float<Self>) -> (Float<Self>, Float<Self>) {
        let prep = Backward::<B, 2>::prepare::<C>(Rotate, [q.node(), k.node()]).compute_bound().stateful();
        let [q, k, cos, sin] = [q, k, cos, sin].map(|t| t.into_primitive());
        let (q, k) = B::rotate(q, k, cos.clone(), sin.clone());
        let gathered = Gathered::of([&q, &k]);
        let operation = recorded!(prep, (gathered.clone(), [cos, sin]), q.clone());
        let one = |number, y| result::<B, C>(&operation, &gathered, number, y);
        (one(0, q), one(1, k))
    }
}
