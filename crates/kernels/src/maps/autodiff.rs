//! The gradients of the maps of one input, in the order in which those of the results came.

use burn::backend::Backend;
use burn::backend::ops::FloatTensorOps;

use super::operands::{Maps, StoredMap, Wanted};
use super::{MOST_MAPS, MapOps, portable};
use crate::cpu::Precision;
use crate::operands::Bias;
use crate::planes::Parts;
use crate::products::StoredWeight;
use crate::several::{Gathered, result};
use crate::steps::{Autodiff, Backward, CheckpointStrategy, Checkpointer, Float, Gradients, NodeGuard, Ops, recorded, register};

/// x, what is added to, and A and B of each branch.
const PARENTS: usize = 2 + 2 * MOST_MAPS;

/// Parents are x, what is added to, and A and B of each branch.
#[derive(Debug)]
struct Together;

/// What the gradients are made of.
#[derive(Clone, Debug)]
struct State<B: Backend> {
    maps: Maps<B>,
    kept: Parts<B>,
    precision: Precision,
    gathered: Gathered<B>,
}

impl<B: MapOps> Backward<B, PARENTS> for Together {
    type State = State<B>;

    fn backward(self, ops: Ops<Self::State, PARENTS>, grads: &mut Gradients, _: &mut Checkpointer) {
        drop(grads.consume::<B>(&ops.node));
        let State { maps, kept, precision, gathered } = ops.state;
        let (order, dys): (Vec<usize>, Vec<_>) = gathered.take().into_iter().unzip();
        let [x, onto, branches @ ..] = ops.parents;
        if let (Some(first), Some(node)) = (order.iter().position(|number| *number == 0), onto) {
            register!(B, grads, node, dys[first].clone());
        }
        let dys = Parts(dys);
        let has_branch: Vec<bool> = maps.0.iter().map(|map| map.branch.is_some()).collect();
        let wanted = Wanted { x: x.is_some(), branches: branches.iter().any(Option::is_some) };
        let mut of_branches = Vec::new().into_iter();
        match x {
            Some(node) => register!(B, grads, node, |held| {
                let mut all = B::maps_grad(kept, maps, dys, order, held.into(), wanted, precision).0.into_iter();
                let dx = all.next().unwrap_or_else(|| unreachable!("the gradient of x, which was asked for"));
                of_branches = all;
                dx
            }),
            None => of_branches = B::maps_grad(kept, maps, dys, order, Bias::Zero, wanted, precision).0.into_iter(),
        }
        let nodes = branches.into_iter().zip(has_branch.into_iter().flat_map(|has| [has; 2])).filter(|(_, has)| *has && wanted.branches);
        for ((node, _), grad) in nodes.zip(of_branches) {
            if let Some(node) = node {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}

/// A tensor's part in the graph, or that of one that no gradient is asked for.
fn node<B: Backend, C: CheckpointStrategy>(tensor: Option<&Float<Autodiff<B, C>>>, frozen: &Float<Autodiff<B, C>>) -> NodeGuard {
    tensor.unwrap_or(frozen).node()
}

/// Whether a gradient is asked for a map's weight or bias.
fn is_trained<B: Backend, C: CheckpointStrategy>(map: &StoredMap<Autodiff<B, C>>) -> bool {
    let weight = matches!(&map.weight, StoredWeight::Dense(weight) if weight.is_tracked());
    weight || map.bias.as_ref().is_some_and(|bias| bias.is_tracked())
}

impl<B: MapOps, C: CheckpointStrategy> MapOps for Autodiff<B, C> {
    fn maps(x: Float<Self>, maps: Maps<Self>, onto: Bias<Self>, precision: Precision) -> Parts<Self> {
        if maps.0.iter().any(is_trained) {
            let mut results = portable::maps::<Self>(x, maps, Bias::Zero, precision);
            if let Some(onto) = onto.into_option() {
                results.0[0] = Self::float_add(onto, results.0[0].clone());
            }
            return results;
        }
        let onto = onto.into_option();
        let frozen = match &maps.0[0].weight {
            StoredWeight::Dense(weight) => weight.clone(),
            StoredWeight::Blocks { scales, .. } => scales.clone(),
        };
        let branch = |i: usize| {
            maps.0.get(i / 2).and_then(|map| map.branch.as_ref()).map(|branch| if i.is_multiple_of(2) { &branch.a } else { &branch.b })
        };
        let tensors: [Option<&Float<Self>>; PARENTS] = std::array::from_fn(|i| match i {
            0 => Some(&x),
            1 => onto.as_ref(),
            _ => branch(i - 2),
        });
        let trains_branches = tensors[2..].iter().flatten().any(|tensor| tensor.is_tracked());
        let nodes = tensors.map(|tensor| node::<B, C>(tensor, &frozen));
        let prep = Backward::<B, PARENTS>::prepare::<C>(Together, nodes).compute_bound().stateful();
        let inner = Maps(maps.0.into_iter().map(|map| map.map(StoredWeight::off_the_graph, |t| t.into_primitive())).collect());
        let x = x.into_primitive();
        let mut results = B::maps(x.clone(), inner.clone(), onto.map(|onto| onto.into_primitive()).into(), precision).0;
        let besides = results.split_off(inner.0.len());
        let kept = Parts(if trains_branches { [x].into_iter().chain(besides).collect() } else { Vec::new() });
        let (gathered, any) = (Gathered::of(&results), results[0].clone());
        let operation = recorded!(prep, State { maps: inner, kept, precision, gathered: gathered.clone() }, any);
        let one = |(number, y)| result::<B, C>(&operation, &gathered, number, y);
        Parts(results.into_iter().enumerate().map(one).collect())
    }
}
