//! Gradients of the decoder's operations. A gradient is computed only for an input that asks for one.

use super::DecoderOps;
use crate::several::recorded_several;
use crate::steps::{Autodiff, CheckpointStrategy, Float, recorded};

impl<B: DecoderOps, C: CheckpointStrategy> DecoderOps for Autodiff<B, C> {
    fn rms_norm(x: Float<Self>, weight: Float<Self>, epsilon: f64) -> Float<Self> {
        let (nodes, [x, weight]) = ([x.node(), weight.node()], [x, weight].map(|t| t.into_primitive()));
        let y = B::rms_norm(x.clone(), weight.clone(), epsilon);
        recorded::<B, C, 2>(nodes, &[], y, move |dy, mut parents| {
            parents.give::<B>(1, || B::rms_norm_weight_grad(x.clone(), dy.clone(), epsilon));
            parents.give_onto::<B>(0, |held| match held {
                Some(held) => B::rms_norm_data_grad_onto(x, weight, dy, held, epsilon),
                None => B::rms_norm_data_grad(x, weight, dy, epsilon),
            });
        })
    }

    fn swiglu(gate: Float<Self>, up: Float<Self>) -> Float<Self> {
        let (nodes, [gate, up]) = ([gate.node(), up.node()], [gate, up].map(|t| t.into_primitive()));
        let y = B::swiglu(gate.clone(), up.clone());
        recorded::<B, C, 2>(nodes, &[], y, move |dy, parents| {
            let (dgate, dup) = B::swiglu_grad(gate, up, dy);
            parents.give_all::<B>([dgate, dup]);
        })
    }

    fn rotate(q: Float<Self>, k: Float<Self>, cos: Float<Self>, sin: Float<Self>) -> (Float<Self>, Float<Self>) {
        let (nodes, [q, k, cos, sin]) = ([q.node(), k.node()], [q, k, cos, sin].map(|t| t.into_primitive()));
        let (q, k) = B::rotate(q, k, cos.clone(), sin.clone());
        let turned = recorded_several::<B, C, 2>(nodes, vec![q, k], move |mut dys, parents| {
            dys.sort_by_key(|(number, _)| *number);
            let Ok([(_, dq), (_, dk)]) = <[_; 2]>::try_from(dys) else { unreachable!("a gradient of queries and one of keys") };
            let (dq, dk) = B::rotate_back(dq, dk, cos, sin);
            parents.give_all::<B>([dq, dk]);
        });
        let Ok([q, k]) = <[_; 2]>::try_from(turned) else { unreachable!("queries and keys") };
        (q, k)
    }
}
