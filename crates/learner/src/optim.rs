//! Optimizers whose momentum changes from batch to batch and whose whole state can be saved by name.
//!
//! Burn's optimizers fix momentum when they are built and keep their state behind parameter ids drawn at random in each process;
//! detector training ramps momentum during warm-up, and a resumed run has to find each moment again. The formulas are PyTorch's.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::schedule::Hyper;
use crate::task::Group;

/// The update rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OptimizerKind {
    /// Gradient descent with Nesterov momentum; weight decay is added to the gradient.
    #[serde(rename = "SGD")]
    Sgd,
    /// Adam; weight decay is added to the gradient.
    Adam,
    /// Adam with decoupled weight decay.
    AdamW,
}

const BETA2: f64 = 0.999;
const EPS: f64 = 1e-8;

/// First and, for Adam, second moments, parallel to [`Layout::entries`].
#[derive(Clone, Debug)]
pub struct Optimizer {
    /// The update rule.
    pub kind: OptimizerKind,
    /// Momentum buffer (SGD) or first moment; `None` until a parameter's first update.
    pub first: Vec<Option<Tensor<1>>>,
    /// Second moment (Adam, AdamW).
    pub second: Vec<Option<Tensor<1>>>,
}

impl Optimizer {
    /// An optimizer that has not seen a gradient.
    pub fn new(kind: OptimizerKind, layout: &Layout) -> Self {
        Self { kind, first: vec![None; layout.entries.len()], second: vec![None; layout.entries.len()] }
    }

    /// Whether `momentum` is Adam's beta1 rather than SGD's momentum.
    pub fn is_adam(&self) -> bool {
        self.kind != OptimizerKind::Sgd
    }

    /// New values of the parameters that have a gradient, and the optimizer after this update.
    ///
    /// `update` counts updates from 1 (Adam's bias correction). Nothing is changed in place, so a caller that finds the result
    /// non-finite drops both.
    pub fn step(
        &self,
        layout: &Layout,
        groups: &[Group],
        hyper: &Hyper,
        update: u64,
        weights: &[Tensor<1>],
        grads: Vec<Option<Tensor<1>>>,
    ) -> (Vec<Option<Tensor<1>>>, Self) {
        let mut next = self.clone();
        let mut updated = vec![None; weights.len()];
        for (i, grad) in grads.into_iter().enumerate() {
            let (Some(grad), Some(group)) = (grad, layout.entries[i].group) else { continue };
            let (lr, decay) = (hyper.lr[group], groups[group].weight_decay);
            let weight = weights[i].clone();
            updated[i] = Some(match self.kind {
                OptimizerKind::Sgd => next.sgd(i, lr, hyper.momentum, decay, weight, grad),
                OptimizerKind::Adam => {
                    let grad = decayed(grad, &weight, decay);
                    next.adam(i, lr, hyper.momentum, update, weight, grad)
                }
                OptimizerKind::AdamW => {
                    let shrunk = if decay == 0.0 { weight } else { weight.mul_scalar(1.0 - lr * decay) };
                    next.adam(i, lr, hyper.momentum, update, shrunk, grad)
                }
            });
        }
        (updated, next)
    }

    /// buf = m·buf + g; w −= lr·(g + m·buf)
    fn sgd(&mut self, i: usize, lr: f64, momentum: f64, decay: f64, weight: Tensor<1>, grad: Tensor<1>) -> Tensor<1> {
        let grad = decayed(grad, &weight, decay);
        let buffer = match self.first[i].take() {
            Some(buffer) => buffer.mul_scalar(momentum) + grad.clone(),
            None => grad.clone(),
        };
        self.first[i] = Some(buffer.clone());
        weight - (grad + buffer.mul_scalar(momentum)).mul_scalar(lr)
    }

    /// m = β1·m + (1−β1)·g; v = β2·v + (1−β2)·g²; w −= lr/(1−β1ᵗ) · m / (√v/√(1−β2ᵗ) + ε)
    fn adam(&mut self, i: usize, lr: f64, beta1: f64, update: u64, weight: Tensor<1>, grad: Tensor<1>) -> Tensor<1> {
        let moment = |old: Option<Tensor<1>>, beta: f64, new: Tensor<1>| match old {
            Some(old) => old.mul_scalar(beta) + new.mul_scalar(1.0 - beta),
            None => new.mul_scalar(1.0 - beta),
        };
        let first = moment(self.first[i].take(), beta1, grad.clone());
        let second = moment(self.second[i].take(), BETA2, grad.clone() * grad);
        let t = update as f64;
        let denominator = second.clone().sqrt().div_scalar((1.0 - BETA2.powf(t)).sqrt()).add_scalar(EPS);
        let step = first.clone().div(denominator).mul_scalar(lr / (1.0 - beta1.powf(t)));
        self.first[i] = Some(first);
        self.second[i] = Some(second);
        weight - step
    }
}

fn decayed(grad: Tensor<1>, weight: &Tensor<1>, decay: f64) -> Tensor<1> {
    if decay == 0.0 { grad } else { grad + weight.clone().mul_scalar(decay) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Entry, upload};
    use burn::tensor::Device;

    const START: [f32; 4] = [0.5, -1.25, 2.0, 0.03];
    const GRADS: [[f32; 4]; 4] = [[0.1, -0.2, 0.3, 0.0], [-0.05, 0.4, 0.2, 1.0], [0.3, 0.1, -0.6, 0.02], [0.0, 0.0, 0.1, -0.4]];

    /// Four updates at rate 0.02, momentum 0.9, weight decay 0.05.
    fn after_four_updates(kind: OptimizerKind) -> Vec<f32> {
        let device = Device::flex();
        let layout = Layout { entries: vec![Entry { name: "w".into(), shape: vec![4], group: Some(0) }] };
        let groups = [Group { lr_scale: 1.0, weight_decay: 0.05, bias: false }];
        let hyper = Hyper { lr: vec![0.02], momentum: 0.9, accumulate: 1 };
        let (mut weights, mut optimizer) = (vec![upload(&START, &device)], Optimizer::new(kind, &layout));
        for (i, grad) in GRADS.iter().enumerate() {
            let grads = vec![Some(upload(grad, &device))];
            let (new, next) = optimizer.step(&layout, &groups, &hyper, i as u64 + 1, &weights, grads);
            (weights, optimizer) = (new.into_iter().flatten().collect(), next);
        }
        weights[0].try_to_vec_as::<f32>().unwrap()
    }

    /// The right-hand sides are torch.optim's (2.15), same settings: SGD with nesterov, Adam, AdamW.
    #[test]
    fn updates_are_pytorchs() {
        let cases = [
            (OptimizerKind::Sgd, [0.472986013, -1.25140631, 1.96629393, -0.0248200279]),
            (OptimizerKind::Adam, [0.442353368, -1.23891306, 1.95428085, -0.021296015]),
            (OptimizerKind::AdamW, [0.448365629, -1.24748921, 1.95690727, -0.00134060089]),
        ];
        for (kind, expected) in cases {
            for (ours, torch) in after_four_updates(kind).into_iter().zip(expected) {
                assert!((f64::from(ours) - torch).abs() < 1e-6, "{kind:?}: {ours} for {torch}");
            }
        }
    }
}
