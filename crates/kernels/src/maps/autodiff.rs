//! The gradients of linear maps, alone or together, in the order in which those of the results came. A gradient is computed only for a tensor that asks
//! for one, and x is kept only if such a gradient reads it.

use burn::backend::ops::FloatTensorOps;
use burn::backend::{AutodiffBackend, Backend, TensorMetadata};
use burn::tensor::{DType, FloatDType, Shape};

use super::operands::Maps;
use super::portable::{flat, shaped};
use super::{MOST_MAPS, MapOps, portable};
use crate::cpu::Precision;
use crate::operands::Maybe;
use crate::planes::Parts;
use crate::products::{Branch, ProductOps, StoredBranch, StoredMap, StoredWeight};
use crate::several::recorded_several;
use crate::steps::{Autodiff, CheckpointStrategy, Float};

/// x, what is added to, and of each map the weight, A and B.
const PARENTS: usize = 2 + 3 * MOST_MAPS;

/// Whether a gradient is asked for a map's weight or bias.
fn is_trained<B: Backend, C: CheckpointStrategy>(map: &StoredMap<Autodiff<B, C>>) -> bool {
    let weight = matches!(&map.weight, StoredWeight::Dense(weight) if weight.is_tracked());
    weight || matches!(&map.bias, Maybe::Some(bias) if bias.is_tracked())
}

/// A weight without its part in a graph.
fn off_the_graph<B: Backend, C: CheckpointStrategy>(weight: StoredWeight<Autodiff<B, C>>) -> StoredWeight<B> {
    match weight {
        StoredWeight::Dense(weight) => StoredWeight::Dense(weight.into_primitive()),
        StoredWeight::Blocks { codes, scales, form, shape } => StoredWeight::Blocks { codes, scales: scales.into_primitive(), form, shape },
    }
}

/// The same of a map.
fn inner<B: Backend, C: CheckpointStrategy>(StoredMap { weight, bias, branch }: StoredMap<Autodiff<B, C>>) -> StoredMap<B> {
    let bias = bias.into_option().map(|bias| bias.into_primitive());
    let branch = branch.into_option().map(|it| StoredBranch { a: it.a.into_primitive(), b: it.b.into_primitive(), scaling: it.scaling });
    StoredMap { weight: off_the_graph(weight), bias: bias.into(), branch: branch.into() }
}

/// The results in the graph: maps `together`, or one by one. Biases are none that are trained.
fn recorded<B: MapOps, C: CheckpointStrategy>(
    x: Float<Autodiff<B, C>>,
    maps: Maps<Autodiff<B, C>>,
    onto: Option<Float<Autodiff<B, C>>>,
    precision: Precision,
    together: bool,
) -> Vec<Float<Autodiff<B, C>>> {
    let tensor = |i: usize| {
        let map = maps.all.get(i / 3)?;
        match (i % 3, &map.weight, &map.branch) {
            (0, StoredWeight::Dense(weight), _) => Some(weight),
            (1, _, Branch::LowRank(branch)) => Some(&branch.a),
            (2, _, Branch::LowRank(branch)) => Some(&branch.b),
            _ => None,
        }
    };
    // A parent that there is not is one that no gradient is asked for.
    let none = Autodiff::<B, C>::from_inner(x.clone().into_primitive());
    let parents = std::array::from_fn::<_, PARENTS, _>(|i| match i {
        0 => x.node(),
        1 => onto.as_ref().unwrap_or(&none).node(),
        _ => tensor(i - 2).unwrap_or(&none).node(),
    });
    let keeps_x = (0..3 * MOST_MAPS).filter_map(tensor).any(|tensor| tensor.is_tracked());
    let branches: Vec<usize> = (0..maps.all.len()).filter(|&i| matches!(maps.all[i].branch, Branch::LowRank(_))).collect();

    let maps = Maps { all: maps.all.into_iter().map(inner).collect(), half: maps.half };
    let (x, onto, count) = (x.into_primitive(), onto.map(|onto| onto.into_primitive()), maps.all.len());
    let forward = if together { B::maps } else { portable::maps::<B> };
    let mut results = forward(x.clone(), maps.clone(), onto.into(), precision).0;
    let besides = results.split_off(count);
    let maps = Maps { half: x.dtype() == DType::F16, ..maps };
    let kept: Vec<Float<B>> = if keeps_x { [x].into_iter().chain(besides).collect() } else { Vec::new() };

    recorded_several::<B, C, PARENTS>(parents, results, move |came, mut parents| {
        let (order, dys): (Vec<usize>, Vec<_>) = came.into_iter().unzip();
        for (&map, dy) in order.iter().zip(&dys) {
            if map == 0 {
                parents.give::<B>(1, || dy.clone());
            }
            parents.give::<B>(2 + 3 * map, || B::linear_weight_grad(flat::<B>(kept[0].clone()), flat::<B>(dy.clone())));
        }
        let sides: Vec<usize> = branches.into_iter().flat_map(|map| [3 + 3 * map, 4 + 3 * map]).collect();
        let kept = Parts(if sides.iter().any(|&side| parents.wants(side)) { kept } else { Vec::new() });
        let (wants, backward) = (parents.wants(0), if together { B::maps_grad } else { portable::maps_grad::<B> });
        let grads = |held: Option<_>| backward(kept, maps, Parts(dys), order, held.into(), wants, precision).0.into_iter();
        let mut of_branches = Vec::new().into_iter();
        if wants {
            parents.give_onto::<B>(0, |held| {
                of_branches = grads(held);
                of_branches.next().unwrap_or_else(|| unreachable!("the gradient of x, which was asked for"))
            });
        } else {
            of_branches = grads(None);
        }
        for (side, grad) in sides.into_iter().zip(of_branches) {
            parents.give::<B>(side, || grad);
        }
    })
}

/// The same with any biases: one that is trained is added behind the map.
fn with_biases<B: MapOps, C: CheckpointStrategy>(
    x: Float<Autodiff<B, C>>,
    mut maps: Maps<Autodiff<B, C>>,
    mut onto: Option<Float<Autodiff<B, C>>>,
    precision: Precision,
    together: bool,
) -> Vec<Float<Autodiff<B, C>>> {
    let trained = |map: &mut StoredMap<Autodiff<B, C>>| match &map.bias {
        Maybe::Some(bias) if bias.is_tracked() => std::mem::replace(&mut map.bias, Maybe::None).into_option(),
        _ => None,
    };
    let biases: Vec<_> = maps.all.iter_mut().map(trained).collect();
    let behind = onto.take_if(|_| biases[0].is_some());
    let mut results = if together {
        recorded::<B, C>(x, maps, onto, precision, true)
    } else {
        // In f32, whatever x is. A trained weight whose result nobody reads has no gradient, and not one of zeros.
        let x = if x.dtype() == DType::F16 { Autodiff::<B, C>::float_cast(x, FloatDType::F32) } else { x };
        let alone = |map| recorded::<B, C>(x.clone(), Maps { all: vec![map], half: false }, onto.take(), precision, false);
        maps.all.into_iter().flat_map(alone).collect()
    };
    for (y, bias) in results.iter_mut().zip(biases) {
        if let Some(bias) = bias {
            let (shape, out) = (y.shape(), bias.shape().num_elements());
            let bias = Autodiff::<B, C>::float_reshape(bias, Shape::new([1, out]));
            *y = shaped::<Autodiff<B, C>>(Autodiff::<B, C>::float_add(flat::<Autodiff<B, C>>(y.clone()), bias), &shape);
        }
    }
    if let Some(onto) = behind {
        results[0] = Autodiff::<B, C>::float_add(onto, results[0].clone());
    }
    results
}

impl<B: MapOps, C: CheckpointStrategy> MapOps for Autodiff<B, C> {
    fn maps(x: Float<Self>, maps: Maps<Self>, onto: Maybe<Self>, precision: Precision) -> Parts<Self> {
        let together = !maps.all.iter().any(is_trained);
        Parts(with_biases::<B, C>(x, maps, onto.into_option(), precision, together))
    }
}

impl<B: MapOps, C: CheckpointStrategy> ProductOps for Autodiff<B, C> {
    fn linear_forward(x: Float<Self>, map: StoredMap<Self>, precision: Precision) -> Float<Self> {
        with_biases::<B, C>(x, Maps { all: vec![map], half: false }, None, precision, false).remove(0)
    }

    fn dense_weight(weight: StoredWeight<Self>) -> Float<Self> {
        Self::from_inner(B::dense_weight(off_the_graph(weight)))
    }
}
