//! Gradients of the decoder's operations. A gradient is computed only for an input that asks for one.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::tensor::FloatTensor;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn_autodiff::{Autodiff, NodeId};

use super::DecoderOps;
use crate::meeting::register;

/// State: x, the weight, ε.
#[derive(Debug)]
struct RmsNorm;

impl<B: DecoderOps> Backward<B, 2> for RmsNorm {
    type State = (NodeId, NodeId, f64);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (x, weight, epsilon) = ops.state;
        let dy = grads.consume::<B>(&ops.node);
        let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(x);
        let weight = checkpointer.retrieve_node_output::<FloatTensor<B>>(weight);
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
        let [gate, up] = ops.state.map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id));
        let (dgate, dup) = B::swiglu_grad(gate, up, dy);
        for (node, grad) in ops.parents.into_iter().zip([dgate, dup]) {
            if let Some(node) = node {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}

/// State: the result and the scale.
#[derive(Debug)]
struct MaskedSoftmax;

impl<B: DecoderOps> Backward<B, 1> for MaskedSoftmax {
    type State = (FloatTensor<B>, f64);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (p, scale) = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |dp| B::masked_softmax_grad(p, dp, scale));
    }
}

/// Queries (0) or keys (1), turned; whichever gradient comes last makes both.
#[derive(Debug)]
struct Rotate(usize);

/// The gradients that have come, and the angles.
#[derive(Clone, Debug)]
struct Turned<B: DecoderOps> {
    dys: [Option<FloatTensor<B>>; 2],
    cos: FloatTensor<B>,
    sin: FloatTensor<B>,
}

impl<B: DecoderOps> Backward<B, 2> for Rotate {
    type State = Arc<Mutex<Turned<B>>>;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let mut turned = ops.state.lock().unwrap_or_else(PoisonError::into_inner);
        turned.dys[self.0] = Some(grads.consume::<B>(&ops.node));
        let [Some(dq), Some(dk)] = turned.dys.clone() else { return };
        turned.dys = [None, None];
        let (dq, dk) = B::rotate_back(dq, dk, turned.cos.clone(), turned.sin.clone());
        for (node, grad) in ops.parents.into_iter().zip([dq, dk]) {
            if let Some(node) = node {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}

impl<B: DecoderOps, C: CheckpointStrategy> DecoderOps for Autodiff<B, C> {
    fn rms_norm(x: FloatTensor<Self>, weight: FloatTensor<Self>, epsilon: f64) -> FloatTensor<Self> {
        match Backward::<B, 2>::prepare::<C>(RmsNorm, [x.node(), weight.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let state = (prep.checkpoint(&x), prep.checkpoint(&weight), epsilon);
                prep.finish(state, B::rms_norm(x.into_primitive(), weight.into_primitive(), epsilon))
            }
            OpsKind::UnTracked(prep) => prep.finish(B::rms_norm(x.into_primitive(), weight.into_primitive(), epsilon)),
        }
    }

    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        match Backward::<B, 2>::prepare::<C>(Swiglu, [gate.node(), up.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let state = [prep.checkpoint(&gate), prep.checkpoint(&up)];
                prep.finish(state, B::swiglu(gate.into_primitive(), up.into_primitive()))
            }
            OpsKind::UnTracked(prep) => prep.finish(B::swiglu(gate.into_primitive(), up.into_primitive())),
        }
    }

    fn masked_softmax(scores: FloatTensor<Self>, mask: FloatTensor<Self>, scale: f64) -> FloatTensor<Self> {
        let prep = Backward::<B, 1>::prepare::<C>(MaskedSoftmax, [scores.node()]).compute_bound().stateful();
        let p = B::masked_softmax(scores.into_primitive(), mask.into_primitive(), scale);
        match prep {
            OpsKind::Tracked(prep) => prep.finish((p.clone(), scale), p),
            OpsKind::UnTracked(prep) => prep.finish(p),
        }
    }

    fn rotate(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let prep = |i| Backward::<B, 2>::prepare::<C>(Rotate(i), [q.node(), k.node()]).compute_bound().stateful();
        let preps = [prep(0), prep(1)];
        let [q, k, cos, sin] = [q, k, cos, sin].map(|t| t.into_primitive());
        let (q, k) = B::rotate(q, k, cos.clone(), sin.clone());
        let turned = Arc::new(Mutex::new(Turned { dys: [None, None], cos, sin }));
        let finish = |prep, y| match prep {
            OpsKind::Tracked(prep) => prep.finish(Arc::clone(&turned), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        };
        let [of_q, of_k] = preps;
        (finish(of_q, q), finish(of_k, k))
    }
}
