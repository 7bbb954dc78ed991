//! Optimizers whose momentum changes from batch to batch and whose whole state can be saved by name.
//!
//! Burn's optimizers fix momentum when they are built and keep their state behind parameter ids drawn at random in each process;
//! detector training ramps momentum during warm-up, and a resumed run has to find each moment again. The formulas of SGD and Adam are PyTorch's,
//! and stand in `bellows-kernels`: one pass over each parameter; those of its rarer rules in [`adaptive`](crate::adaptive). The steps of Adafactor
//! and Lion are Burn's, which are pure functions of the same kind; only where their state is kept is ours.

use bellows_kernels::{Adam, Sgd, adam_step, sgd_step};
use burn::optim::{AdafactorConfig, AdafactorState, LionConfig, LionState, Optimizer as _};
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::adaptive::{Update, Updated};
use crate::arenas::Arenas;
use crate::grads::GradBuffer;
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
    /// Adam with Nesterov momentum (Dozat 2016); weight decay is added to the gradient.
    NAdam,
    /// Adam whose rate is rectified while the second moment is uncertain (Liu et al. 2019); weight decay is added to the gradient.
    RAdam,
    /// Adam by the largest gradient (Kingma and Ba 2014); weight decay is added to the gradient.
    Adamax,
    /// RMSprop with momentum, not centred; weight decay is added to the gradient.
    #[serde(rename = "RMSProp")]
    RmsProp,
    /// Adafactor (Shazeer and Stern 2018) without first moment, at the rate it is given: second moments of matrices by row and column only,
    /// updates clipped to a root mean square of 1; decoupled weight decay.
    Adafactor,
    /// Lion (Chen et al. 2023): the sign of an average of gradients; decoupled weight decay.
    Lion,
}

impl OptimizerKind {
    /// The layout with tensors of these groups together as this rule can take them: Adafactor asks for the shape of each.
    pub fn arrange(self, layout: Layout, groups: &[Group]) -> Layout {
        if self == Self::Adafactor {
            return layout.apart();
        }
        // So that neighbours in the model are neighbours in memory, as the two factors of an adapter are. Only these rules have steps of several groups.
        let of_one = !matches!(self, Self::Sgd | Self::Adam | Self::AdamW);
        layout.together(|group| groups.iter().position(|other| groups.get(group) == Some(other)).unwrap_or(group), of_one)
    }

    /// Shapes of a parameter's two buffers, given its own.
    pub(crate) fn buffer_shapes(self, shape: &[usize]) -> [Vec<usize>; 2] {
        match (self, shape) {
            (Self::Adafactor, [batch @ .., rows, cols]) => [[batch, &[*rows, 1]].concat(), [batch, &[1, *cols]].concat()],
            _ => [shape.to_vec(), shape.to_vec()],
        }
    }

    /// The numbers in a parameter's buffers after its first update, given its shape.
    pub(crate) fn kept(self, shape: &[usize]) -> usize {
        let [first, second] = self.buffer_shapes(shape).map(|shape| shape.iter().product::<usize>());
        match self {
            Self::Sgd | Self::Lion => first,
            Self::Adafactor if shape.len() < 2 => first,
            _ => first + second,
        }
    }
}

/// The constants of a rule that no schedule moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// Decay of the second moment of Adam and its kin (RMSprop's α), or of Lion's momentum, which forgets more slowly than the average that Lion
    /// takes the sign of.
    pub beta2: f64,
    /// What keeps a division from being one by 0.
    pub eps: f64,
}

impl OptimizerKind {
    /// The rule's own constants: 0.999 (Lion and RMSprop: 0.99) and 1e-8.
    pub fn constants(self) -> Constants {
        Constants { beta2: if matches!(self, Self::Lion | Self::RmsProp) { 0.99 } else { 0.999 }, eps: 1e-8 }
    }
}

/// Up to two buffers a parameter, in arenas.
#[derive(Clone, Debug)]
pub struct Optimizer {
    /// The update rule.
    pub kind: OptimizerKind,
    /// Its constants.
    pub constants: Constants,
    /// Momentum (SGD, Lion, RMSprop), first moment (Adam and its kin), second moments by row (Adafactor; all of them for a vector); `None` until
    /// a parameter's first update.
    pub first: Arenas,
    /// Second moment (Adam and its kin, RMSprop), largest gradient (Adamax), second moments by column (Adafactor).
    pub second: Arenas,
}

impl Optimizer {
    /// An optimizer that has not seen a gradient.
    pub fn new(kind: OptimizerKind, constants: Constants, layout: &Layout) -> Self {
        Self { kind, constants, first: vec![None; layout.pieces.0.len()], second: vec![None; layout.pieces.0.len()] }
    }

    /// Whether `momentum` is one rather than a beta1, which does not rise in warm-up.
    pub fn has_momentum(&self) -> bool {
        matches!(self.kind, OptimizerKind::Sgd | OptimizerKind::RmsProp)
    }

    /// New values of the arenas in which a parameter has a gradient, and the optimizer after this update.
    ///
    /// `update` counts updates from 1 (Adam's bias correction, Adafactor's decay). Nothing is changed in place, so a caller that finds the result
    /// non-finite drops both.
    pub fn step(
        &self,
        layout: &Layout,
        groups: &[Group],
        hyper: &Hyper,
        update: u64,
        weights: &Arenas,
        grads: GradBuffer,
    ) -> (Arenas, Self) {
        let mut next = self.clone();
        let mut updated = vec![None; weights.len()];
        let Constants { beta2, eps } = self.constants;
        let learns = |entry: usize| grads.seen[entry];
        for (i, (piece, grad)) in layout.pieces.0.iter().zip(grads.sums).enumerate() {
            let (Some(grad), Some(weight)) = (grad, weights[i].clone()) else { continue };
            let (first, second) = (self.first[i].clone(), self.second[i].clone());
            let of_group = |group: usize| (hyper.lr[group], groups[group].weight_decay);
            let (weight, first, second) = match self.kind {
                OptimizerKind::Sgd => {
                    let step = |(lr, decay)| Sgd { lr, momentum: hyper.momentum, decay };
                    let steps = piece.groups.iter().map(|&(end, group)| (end, step(of_group(group)))).collect();
                    let (weight, buffer) = sgd_step(weight, grad, first, steps);
                    (weight, Some(buffer), None)
                }
                OptimizerKind::Adam | OptimizerKind::AdamW => {
                    let t = update as f64;
                    let (beta1, decoupled) = (hyper.momentum, self.kind == OptimizerKind::AdamW);
                    let step = |(lr, decay)| Adam {
                        rate: lr / (1.0 - beta1.powf(t)),
                        beta1,
                        beta2,
                        root: (1.0 - beta2.powf(t)).sqrt(),
                        epsilon: eps,
                        decay: if decoupled { 0.0 } else { decay },
                        keep: if decoupled { 1.0 - lr * decay } else { 1.0 },
                    };
                    let steps = piece.groups.iter().map(|&(end, group)| (end, step(of_group(group)))).collect();
                    let [weight, first, second] = adam_step(weight, grad, first, second, steps);
                    (weight, Some(first), Some(second))
                }
                _ => {
                    let Some(&(_, group)) = piece.groups.first() else { continue };
                    let (lr, decay) = of_group(group);
                    let rule = Update { lr, beta1: hyper.momentum, beta2, eps, decay, number: update };
                    self.rarer(rule, [weight, grad], [first, second], &layout.entries[piece.entries[0]].shape)
                }
            };
            // A parameter without gradient stays as it is, and so do its moments.
            let choose = |old: &Option<Tensor<1>>, new: Tensor<1>| piece.choose(old.clone(), new, learns);
            updated[i] = choose(&weights[i], weight);
            next.first[i] = first.and_then(|new| choose(&self.first[i], new));
            next.second[i] = second.and_then(|new| choose(&self.second[i], new));
        }
        (updated, next)
    }
}

impl Optimizer {
    /// A step of the rules that are made of Burn's operations, for parameters of one group; Adafactor's for one of this shape.
    fn rarer(&self, rule: Update, [weight, grad]: [Tensor<1>; 2], [first, second]: [Option<Tensor<1>>; 2], shape: &[usize]) -> Stepped {
        match self.kind {
            OptimizerKind::Sgd | OptimizerKind::Adam | OptimizerKind::AdamW => unreachable!("rules with kernels of their own"),
            OptimizerKind::NAdam => stepped(rule.nadam(weight, grad, [first, second])),
            OptimizerKind::RAdam => stepped(rule.radam(weight, grad, [first, second])),
            OptimizerKind::Adamax => stepped(rule.adamax(weight, grad, [first, second])),
            OptimizerKind::RmsProp => stepped(rule.rmsprop(weight, grad, [first, second])),
            OptimizerKind::Adafactor => adafactor_step(weight, grad, (first, second), shape, rule.number, rule.lr, rule.decay),
            OptimizerKind::Lion => {
                let lion = LionConfig::new().with_beta_1(rule.beta1 as f32).with_beta_2(rule.beta2 as f32);
                let lion = lion.with_weight_decay(rule.decay as f32).build();
                let (weight, state) = lion.step(rule.lr, weight, grad, first.map(LionState::new));
                (weight, state.map(|s| s.momentum), None)
            }
        }
    }
}

type Stepped = (Tensor<1>, Option<Tensor<1>>, Option<Tensor<1>>);

fn stepped([weight, first, second]: Updated) -> Stepped {
    (weight, Some(first), Some(second))
}

/// Adafactor at an absolute rate: the options `scale_parameter=False, relative_step=False` of transformers, whose other defaults are
/// Burn's too (eps 1e-30, clip_threshold 1, decay_rate -0.8). Dimensions before the last two are a batch of matrices.
fn adafactor_step(
    weight: Tensor<1>,
    grad: Tensor<1>,
    (first, second): (Option<Tensor<1>>, Option<Tensor<1>>),
    shape: &[usize],
    update: u64,
    lr: f64,
    decay: f64,
) -> Stepped {
    let time = update.saturating_sub(1) as usize;
    let &[ref batch @ .., rows, cols] = shape else {
        let state = first.map(|second_moment| AdafactorState { time, second_moment, column_second_moment: None });
        let (weight, state) = clipped_step(weight, grad, state, lr, decay);
        return (weight, state.map(|s| s.second_moment), None);
    };
    let n: usize = batch.iter().product();
    let state = first.zip(second).map(|(row, column)| AdafactorState {
        time,
        second_moment: row.reshape([n, rows, 1]),
        column_second_moment: Some(column.reshape([n, 1, cols])),
    });
    let (weight, state) = clipped_step(weight.reshape([n, rows, cols]), grad.reshape([n, rows, cols]), state, lr, decay);
    let flat = |t: Tensor<3>| t.reshape([-1]);
    let (row, column) = state.map_or((None, None), |s| (Some(s.second_moment), s.column_second_moment));
    (flat(weight), row.map(flat), column.map(flat))
}

/// Burn's step, with the root mean square that it is clipped by taken of rows first: from 4 M numbers on Burn sums all at once, on threads that add in
/// no fixed order. So the step is taken from zeros at a rate of 1, unclipped.
fn clipped_step<const D: usize>(
    weight: Tensor<D>,
    grad: Tensor<D>,
    state: Option<AdafactorState<D>>,
    lr: f64,
    decay: f64,
) -> (Tensor<D>, Option<AdafactorState<D>>) {
    let rule = AdafactorConfig::new().with_relative_step(false).with_scale_parameter(false).with_clip_threshold(f32::MAX).build();
    let (step, state) = rule.step(1.0, weight.zeros_like(), grad, state);
    let clipping = step.clone().square().mean_dim(D - 1).mean().sqrt().clamp_min(1.0);
    (weight.mul_scalar(1.0 - lr * decay) + step.div(clipping.unsqueeze()).mul_scalar(lr), state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Entry;
    use burn::tensor::{DType, Device, TensorData};

    const START: [f32; 4] = [0.5, -1.25, 2.0, 0.03];
    const GRADS: [[f32; 4]; 4] = [[0.1, -0.2, 0.3, 0.0], [-0.05, 0.4, 0.2, 1.0], [0.3, 0.1, -0.6, 0.02], [0.0, 0.0, 0.1, -0.4]];

    fn upload(values: &[f32], device: &Device) -> Tensor<1> {
        Tensor::from_data(TensorData::from(values), device)
    }

    /// Four updates at rate 0.02, momentum 0.9, weight decay 0.05.
    fn after_four_updates(kind: OptimizerKind) -> Vec<f32> {
        let device = Device::flex();
        let layout = Layout::from_entries(vec![Entry { name: "w".into(), shape: vec![4], group: Some(0), dtype: DType::F32 }]);
        let groups = [Group { lr_scale: 1.0, weight_decay: 0.05, bias: false }];
        let hyper = Hyper { lr: vec![0.02], momentum: 0.9, accumulate: 1 };
        let (mut weights, mut optimizer) = (vec![Some(upload(&START, &device))], Optimizer::new(kind, kind.constants(), &layout));
        for (i, grad) in GRADS.iter().enumerate() {
            let grads = GradBuffer::of(&layout, vec![Some(upload(grad, &device))]);
            (weights, optimizer) = optimizer.step(&layout, &groups, &hyper, i as u64 + 1, &weights, grads);
        }
        weights[0].as_ref().unwrap().try_to_vec_as::<f32>().unwrap()
    }

    /// As in PyTorch: neither weight decay nor momentum moves it.
    #[test]
    fn a_parameter_without_gradient_stays_as_it_is() {
        let device = Device::flex();
        let entry = |name: &str| Entry { name: name.into(), shape: vec![4], group: Some(0), dtype: DType::F32 };
        let layout = Layout::from_entries(vec![entry("a"), entry("b")]);
        let groups = [Group { lr_scale: 1.0, weight_decay: 0.05, bias: false }];
        let hyper = Hyper { lr: vec![0.02], momentum: 0.9, accumulate: 1 };
        let host =
            |values: Vec<Option<Tensor<1>>>| values.into_iter().flatten().map(|v| v.try_to_vec_as::<f32>().unwrap()).collect::<Vec<_>>();
        let both = || layout.gather(vec![Some(upload(&START, &device)), Some(upload(&START, &device))]);
        for kind in [OptimizerKind::Sgd, OptimizerKind::AdamW] {
            let optimizer = Optimizer::new(kind, kind.constants(), &layout);
            let step = |optimizer: &Optimizer, number, weights: &Arenas, grads: [Option<&[f32; 4]>; 2]| {
                let grads = grads.map(|grad| grad.map(|grad| upload(grad, &device))).to_vec();
                optimizer.step(&layout, &groups, &hyper, number, weights, GradBuffer::of(&layout, grads))
            };
            let (first, optimizer) = step(&optimizer, 1, &both(), [Some(&GRADS[0]), None]);
            let [a, b] = host(layout.scatter(&first)).try_into().unwrap();
            assert!(a != START && b == START, "{kind:?}: {a:?} {b:?}");
            let (second, optimizer) = step(&optimizer, 2, &first, [Some(&GRADS[1]), Some(&GRADS[0])]);
            let moments = host(layout.scatter(&optimizer.first));
            let (third, optimizer) = step(&optimizer, 3, &second, [Some(&GRADS[2]), None]);
            assert_eq!(host(layout.scatter(&third))[1], host(layout.scatter(&second))[1], "{kind:?}");
            let after = host(layout.scatter(&optimizer.first));
            assert!(after[1] == moments[1] && after[0] != moments[0], "{kind:?}: the moments of b");
        }
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
