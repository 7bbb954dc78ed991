//! Linear maps and their gradients against Burn's own products in f64.

use burn::tensor::{DType, Device, Tensor, TensorData};
use half::bf16;

use super::{LowRank, Weight, linear};
use crate::cpu::Precision;
use crate::cpu::reference::{greatest, noise};
use crate::cpu::simd::{Level, with_level};
use crate::maps::{Map, maps};

/// [`linear`] with a branch beside the weight.
pub(super) fn lora_linear(
    x: Tensor<2>,
    weight: impl Into<Weight>,
    bias: Option<Tensor<1>>,
    branch: LowRank,
    precision: Precision,
) -> Tensor<2> {
    let [y] = maps(x, [Map { weight: weight.into(), bias, branch: Some(branch) }], None, false, precision);
    y
}

/// y and the gradients of x, W, b, A and B.
fn run(device: &Device, dtype: DType, weight: DType, branch: bool, precision: Precision) -> Vec<Vec<f64>> {
    let (n, input, out, rank) = (37, 70, 90, 4);
    let drawn = |seed: u64, shape: [usize; 2]| {
        let values: Vec<f32> = noise(seed, shape[0] * shape[1]).iter().map(|&v| bf16::from_f32(v).to_f32()).collect();
        Tensor::<2>::from_data(TensorData::new(values, shape), (device, dtype))
    };
    let leaf = |seed: u64, shape: [usize; 2]| drawn(seed, shape).require_grad();
    let (x, b) = (leaf(1, [n, input]), leaf(3, [1, out]));
    let (low_a, low_b) = (leaf(4, [rank, input]), leaf(5, [out, rank]));
    let trained = !branch;
    let w = drawn(2, [out, input]);
    let w = if weight == DType::BF16 { w.cast(DType::BF16) } else { w };
    let w = if trained && weight != DType::BF16 { w.require_grad() } else { w };
    let bias = Some(b.clone().reshape([out]));
    let y = match branch {
        false => linear(x.clone(), w.clone(), bias, precision),
        true => lora_linear(x.clone(), w.clone(), bias, LowRank { a: low_a.clone(), b: low_b.clone(), scaling: 0.7 }, precision),
    };
    let host = |t: Tensor<2>| t.cast(DType::F64).try_into_vec_as::<f64>().unwrap();
    let dy = drawn(6, [n, out]);
    let mut graph = (y.clone() * dy).sum().backward();
    let mut all = vec![host(y)];
    for leaf in [x, w, b, low_a, low_b] {
        all.extend(leaf.grad_remove(&mut graph).map(host));
    }
    all
}

#[test]
fn gradients_are_those_of_burns_products() {
    let device = Device::flex().autodiff();
    for branch in [false, true] {
        let expected = run(&device, DType::F64, DType::F64, branch, Precision::F32);
        assert_eq!(expected.len(), if branch { 5 } else { 4 });
        for level in Level::all() {
            for weight in [DType::F32, DType::BF16] {
                for (precision, limit) in
                    [(Precision::F32, 3e-6), (Precision::Bf16, 1.5e-2), (Precision::F16, 2e-3), (Precision::PureF16, 2e-3)]
                {
                    let got = with_level(level, || run(&device, DType::F32, weight, branch, precision));
                    let trained = usize::from(!branch && weight == DType::BF16);
                    assert_eq!(got.len() + trained, expected.len());
                    let mut expected = expected.clone();
                    if trained == 1 {
                        expected.remove(2);
                    }
                    for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                        let scale = expected.iter().fold(1e-3, |m: f64, v| m.max(v.abs()));
                        let worst = greatest(got.iter().zip(expected).map(|(a, b)| (a - b).abs())) / scale;
                        assert!(worst < limit, "{level:?} {weight:?} {precision:?} branch {branch} tensor {i}: {worst:e}");
                    }
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "x has 3 columns, and the weight is [2, 4]")]
fn a_weight_that_does_not_fit_is_named() {
    let device = Device::flex();
    drop(linear(Tensor::zeros([1, 3], &device), Tensor::zeros([2, 4], &device), None, Precision::F32));
}

#[test]
#[should_panic(expected = "A is [2, 5] and not [2, 4]")]
fn a_branch_that_does_not_fit_is_named() {
    let device = Device::flex();
    let branch = LowRank { a: Tensor::zeros([2, 5], &device), b: Tensor::zeros([3, 2], &device), scaling: 1.0 };
    drop(lora_linear(Tensor::zeros([1, 4], &device), Tensor::zeros([3, 4], &device), None, branch, Precision::F32));
}
