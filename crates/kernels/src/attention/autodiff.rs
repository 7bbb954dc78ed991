//! The gradient of attention: q, k, v, the result and a number for each row are kept.

use burn::backend::AutodiffBackend;
use burn::backend::tensor::IntTensor;

use super::AttentionOps;
use crate::steps::{Autodiff, CheckpointStrategy, Float, recorded};

impl<B: AttentionOps, C: CheckpointStrategy> AttentionOps for Autodiff<B, C> {
    fn attend(q: Float<Self>, k: Float<Self>, v: Float<Self>, first: IntTensor<Self>, scale: f64) -> (Float<Self>, Float<Self>) {
        let nodes = [q.node(), k.node(), v.node()];
        let [q, k, v] = [q, k, v].map(|t| t.into_primitive());
        let (y, sums) = B::attend(q.clone(), k.clone(), v.clone(), first.clone(), scale);
        let made = (y.clone(), sums.clone());
        let y = recorded::<B, C, 3>(nodes, &[], y, move |dy, parents| {
            let (dq, dk, dv) = B::attend_grad(q, k, v, first, made.0, made.1, dy, scale);
            parents.give_all::<B>([dq, dk, dv]);
        });
        (y, Self::from_inner(sums))
    }
}
