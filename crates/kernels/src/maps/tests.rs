//! Maps together against maps one by one, on the processor: the same bits.

use burn::tensor::{Device, Tensor, TensorData};

use super::{Map, maps};
use crate::cpu::Precision;
use crate::cpu::reference::noise;
use crate::graph::{enter, lead};
use crate::products::{LowRank, linear};

const ROWS: usize = 37;
const INPUT: usize = 70;

fn drawn<const D: usize>(device: &Device, seed: u64, shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(noise(seed, shape.iter().product()), shape), device)
}

/// What is trained beside x and what is added to.
#[derive(Clone, Copy, PartialEq)]
enum Trained {
    Branches,
    Everything,
    Nothing,
}

/// Results of three maps, of which the first and last have a branch, and all gradients of those that are `read`.
fn run(together: bool, trained: Trained, read: [bool; 3]) -> Vec<Vec<f32>> {
    let device = Device::flex().autodiff();
    let leaf = |seed: u64, shape: [usize; 2], wanted: bool| drawn(&device, seed, shape).set_require_grad(wanted);
    let outs = [50, 30, 90];
    let (x, onto) = (leaf(1, [ROWS, INPUT], true), leaf(2, [ROWS, outs[0]], true));
    let weights = [3, 4, 5].map(|seed| leaf(seed, [outs[seed as usize - 3], INPUT], trained == Trained::Everything));
    let bias = drawn(&device, 6, [outs[0]]).set_require_grad(trained == Trained::Everything);
    let branch = |seed: u64, out: usize| {
        let wanted = trained != Trained::Nothing;
        LowRank { a: leaf(seed, [8, INPUT], wanted), b: leaf(seed + 1, [out, 8], wanted), scaling: 0.7 }
    };
    let branches = [Some(branch(10, outs[0])), None, Some(branch(20, outs[2]))];
    let all: [Map; 3] = std::array::from_fn(|i| Map {
        weight: weights[i].clone().into(),
        bias: (i == 0).then(|| bias.clone()),
        branch: branches[i].clone(),
    });
    let input = enter(x.clone());
    let results = if together {
        maps(input, all, Some(onto.clone()), false, Precision::F32)
    } else {
        let mut onto = Some(onto.clone());
        all.map(|Map { weight, bias, branch }| {
            let y = match branch {
                Some(branch) => {
                    let [y] = maps(input.clone(), [Map { weight, bias, branch: Some(branch) }], None, false, Precision::F32);
                    y
                }
                None => linear(input.clone(), weight, bias, Precision::F32),
            };
            onto.take().map_or(y.clone(), |onto| onto + y)
        })
    };
    let joined = Tensor::cat(results.iter().zip(read).filter(|(_, read)| *read).map(|(y, _)| y.clone()).collect(), 1);
    let dy = drawn(&device, 7, joined.dims()).detach();
    let mut graph = lead(joined, dy).backward();
    let host = |t: Tensor<2>| t.try_into_vec_as::<f32>().unwrap();
    let mut found: Vec<Vec<f32>> = results.into_iter().map(host).collect();
    let of_branches = branches.into_iter().flatten().flat_map(|branch| [branch.a, branch.b]);
    let leaves = [x, onto].into_iter().chain(weights).chain(of_branches);
    let wanted = leaves.filter(|leaf| leaf.is_require_grad());
    found.extend(wanted.map(|leaf| leaf.grad_remove(&mut graph).unwrap_or_else(|| leaf.zeros_like())).map(host));
    found.extend(bias.grad_remove(&mut graph).map(|grad| grad.try_into_vec_as::<f32>().unwrap()));
    found
}

#[test]
fn together_they_are_what_they_are_one_by_one() {
    for (trained, gradients) in [(Trained::Branches, 2 + 4), (Trained::Everything, 2 + 3 + 4 + 1), (Trained::Nothing, 2)] {
        let [together, alone] = [true, false].map(|together| run(together, trained, [true; 3]));
        assert_eq!(together.len(), 3 + gradients);
        assert_eq!(together, alone);
        assert!(together.iter().flatten().all(|v| v.is_finite()) && together.iter().all(|t| t.iter().any(|v| *v != 0.0)));
    }
}

#[test]
fn a_result_that_nobody_reads_has_a_gradient_of_zeros() {
    for read in (1..7u32).map(|bits| [0, 1, 2].map(|i| bits >> i & 1 == 1)) {
        let [together, alone] = [true, false].map(|together| run(together, Trained::Branches, read));
        assert_eq!(together, alone, "{read:?}");
        // x, what is added to, and two of each branch, behind the results.
        let gradients = [true, read[0], read[0], read[0], read[2], read[2]];
        assert_eq!([3, 4, 5, 6, 7, 8].map(|i| together[i].iter().any(|v| *v != 0.0)), gradients, "{read:?}");
    }
}

#[test]
#[should_panic(expected = "x has 3 columns, and a weight is [2, 4]")]
fn a_weight_that_does_not_fit_is_named() {
    let device = Device::flex();
    let map = Map { weight: Tensor::<2>::zeros([2, 4], &device).into(), bias: None, branch: None };
    drop(maps(Tensor::<2>::zeros([1, 3], &device), [map], None, false, Precision::F32));
}
