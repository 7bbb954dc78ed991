//! The decoder's operations at every instruction set, and in Burn's own words (which is where f64 goes), against f64 functions; their gradients
//! against differences of those functions.

use burn::backend::Flex;
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_flex::FlexTensor;
use proptest::prelude::*;

use super::{BLOCKED, DecoderOps, rms_norm, rotate, swiglu};
use crate::cpu::machine::{TASK, worth_a_task};
use crate::cpu::reference::{self, greatest, tasks, widen};
use crate::cpu::simd::{Level, level, with_level};

const EPSILON: f64 = 1e-6;

fn noise(seed: u32, n: usize) -> Vec<f64> {
    widen(&reference::noise(seed.into(), n))
}

/// The largest difference relative to the largest value, which counts as at least 1e-3; infinite if either has what is no number.
fn distance(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(1e-3, |m: f64, v| m.max(v.abs()));
    greatest(got.iter().zip(expected).map(|(a, b)| (a - b).abs() / largest))
}

type Inputs = [(Vec<f64>, [usize; 4])];

/// The gradients of `Σ dy f` by central differences in every coordinate.
fn differences(inputs: &Inputs, dy: &[f64], f: &dyn Fn(&[&[f64]]) -> Vec<f64>) -> Vec<Vec<f64>> {
    let slope = |i: usize, j: usize| {
        let at = |step: f64| {
            let mut moved = inputs.to_vec();
            moved[i].0[j] += step;
            let values: Vec<&[f64]> = moved.iter().map(|(v, _)| v.as_slice()).collect();
            f(&values).iter().zip(dy).map(|(y, d)| y * d).sum::<f64>()
        };
        (at(1e-5) - at(-1e-5)) / 2e-5
    };
    inputs.iter().enumerate().map(|(i, (values, _))| (0..values.len()).map(|j| slope(i, j)).collect()).collect()
}

/// Checks `ours`, value and gradients, against `reference`.
fn check(
    inputs: &Inputs,
    reference: &dyn Fn(&[&[f64]]) -> Vec<f64>,
    ours: &dyn Fn(&[Tensor<4>]) -> Tensor<4>,
) -> Result<(), TestCaseError> {
    let values: Vec<&[f64]> = inputs.iter().map(|(v, _)| v.as_slice()).collect();
    let expected = reference(&values);
    let dy = noise(77, expected.len());
    let slopes = differences(inputs, &dy, reference);
    let kernels = Level::all().map(|l| (l, DType::F32));
    for (level, dtype) in kernels.chain([(level(), DType::F64)]) {
        let device = Device::flex().autodiff();
        let leaf = |(values, shape): &(Vec<f64>, [usize; 4])| {
            Tensor::<4>::from_data(TensorData::new(values.clone(), *shape), (&device, dtype)).require_grad()
        };
        let leaves: Vec<Tensor<4>> = inputs.iter().map(leaf).collect();
        let host = |t: Tensor<4>| t.cast(DType::F64).try_into_vec_as::<f64>().unwrap();
        let (y, grads) = with_level(level, || {
            let y = ours(&leaves);
            let above = Tensor::<4>::from_data(TensorData::new(dy.clone(), y.dims()), (&device, dtype));
            let mut graph = (y.clone() * above).sum().backward();
            (host(y), leaves.iter().map(|leaf| host(leaf.grad_remove(&mut graph).unwrap())).collect::<Vec<_>>())
        });
        prop_assert!(distance(&y, &expected) < 3e-6, "{level:?} {dtype:?}: {}", distance(&y, &expected));
        for (i, (grad, slope)) in grads.iter().zip(&slopes).enumerate() {
            prop_assert!(distance(grad, slope) < 2e-5, "{level:?} {dtype:?}: gradient {i}: {}", distance(grad, slope));
        }
    }
    Ok(())
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

proptest! {
    #![proptest_config(crate::test_cases(16))]

    #[test]
    fn rms_norm_and_its_gradients((n, k) in (1usize..5, 1usize..90), seed in any::<u32>(), spread in 0.01f64..20.0) {
        let x: Vec<f64> = noise(seed, n * k).iter().map(|v| v * spread).collect();
        let inputs = [(x, [1, n, 1, k]), (noise(!seed, k), [1, 1, 1, k])];
        let reference = |v: &[&[f64]]| {
            let normed = |x: &[f64]| {
                let rho = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / k as f64 + EPSILON).sqrt();
                x.iter().zip(v[1]).map(move |(x, w)| x * rho * w).collect::<Vec<f64>>()
            };
            v[0].chunks(k).flat_map(normed).collect()
        };
        check(&inputs, &reference, &|t| rms_norm(t[0].clone(), t[1].clone().reshape([k]), EPSILON))?;
    }

    #[test]
    fn swiglu_and_its_gradients(n in 1usize..200, seed in any::<u32>(), spread in 0.1f64..30.0) {
        let gate: Vec<f64> = noise(seed, n).iter().map(|v| v * spread).collect();
        let inputs = [(gate, [1, 1, 1, n]), (noise(!seed, n), [1, 1, 1, n])];
        let reference = |v: &[&[f64]]| v[0].iter().zip(v[1]).map(|(g, u)| g * sigmoid(*g) * u).collect();
        check(&inputs, &reference, &|t| swiglu(t[0].clone(), t[1].clone()))?;
    }

    #[test]
    fn rotate_and_its_gradient(
        (b, s, n, half) in (1usize..3, 1usize..5, 1usize..4, 1usize..40),
        keys in any::<bool>(), own in any::<bool>(), seed in any::<u32>(),
    ) {
        let (held, d) = (if own { b } else { 1 }, 2 * half);
        let angles = noise(!seed, held * s * half);
        let reference = |v: &[&[f64]]| {
            let mut y = vec![0.0; b * n * s * d];
            for i in 0..b * s * n * d {
                let (batch, position, head, j) = (i / (s * n * d), i / (n * d) % s, i / d % n, i % d);
                let angle = angles[(if own { batch } else { 0 } * s + position) * half + j % half];
                let other = if j < half { -v[0][i + half] } else { v[0][i - half] };
                y[((batch * n + head) * s + position) * d + j] = v[0][i] * angle.cos() + other * angle.sin();
            }
            y
        };
        check(&[(noise(seed, b * s * n * d), [b, s, n, d])], &reference, &|leaves| {
            let x = &leaves[0];
            let table = |f: fn(f64) -> f64| {
                let values: Vec<f64> = angles.iter().map(|&a| f(a)).collect();
                Tensor::from_data(TensorData::new(values, [held, 1, s, half]), (&x.device(), x.dtype()))
            };
            // Nobody reads the other's result.
            let others = x.clone().mul_scalar(2.0);
            let pair = if keys { [others, x.clone()] } else { [x.clone(), others] };
            let [q, k] = pair;
            let [q, k] = rotate(q, k, table(f64::cos), table(f64::sin));
            if keys { k } else { q }
        })?;
    }
}

/// Of a 0.5B model with 512 tokens: 896 wide, 4,864 in the MLP, 14 query heads and 2 key heads of 64.
#[test]
fn there_is_work_for_every_thread() {
    let tokens = 512;
    assert_eq!(tasks(tokens, worth_a_task(896)), 64, "rows normalised");
    assert_eq!((tokens * 4864).div_ceil(TASK), 152, "pieces gated");
    assert_eq!([14, 2].map(|heads| tasks(tokens * heads, worth_a_task(64))), [64, 16], "rows of queries and of keys turned");
}

#[test]
fn a_blocked_key_weighs_nothing_and_a_row_of_them_is_uniform() {
    let softmax = |scores: Vec<f32>, mask: Vec<f32>| {
        let tensor = |values: Vec<f32>| FlexTensor::from_data(TensorData::new(values, [1, 1, 1, 3]));
        Flex::masked_softmax(tensor(scores), tensor(mask), 1.0).into_data().try_into_vec_as::<f32>().unwrap()
    };
    let p = softmax(vec![1.0, 90.0, -3.0], vec![0.0, BLOCKED, 0.0]);
    assert!(p[1] == 0.0 && (p[0] + p[2] - 1.0).abs() < 1e-6, "{p:?}");
    let p = softmax(vec![1.0, 90.0, -3.0], vec![BLOCKED; 3]);
    assert!(p.iter().all(|p| (p - 1.0 / 3.0).abs() < 1e-6), "{p:?}");
}

/// What is no number, or infinite, is seen in its own row and in no other.
#[test]
fn no_number_stays_in_its_row() {
    for (level, k) in Level::all().flat_map(|level| [4, 37, 50, 2000].map(|k| (level, k))) {
        for (odd, place) in [f32::NAN, f32::INFINITY].into_iter().flat_map(|odd| [0, k / 2, k - 1].map(|place| (odd, place))) {
            let mut values = reference::noise(1, 3 * k);
            values[k + place] = odd;
            let on_flex = |values: Vec<f32>, rows| Tensor::<4>::from_data(TensorData::new(values, [1, 1, rows, k]), &Device::flex());
            let x = || on_flex(values.clone(), 3);
            let [weight, other] = [1.0, 2.0].map(|v| on_flex(vec![v; k], 1));
            let normed = with_level(level, || rms_norm(x(), weight.reshape([k]), EPSILON));
            let [gated, up] =
                with_level(level, || [swiglu(x(), other.clone().expand([1, 1, 3, k])), swiglu(other.expand([1, 1, 3, k]), x())]);
            for (name, y) in [("rms_norm", normed), ("gate", gated), ("up", up)] {
                let y = y.try_into_vec_as::<f32>().unwrap();
                assert!(!y[k + place].is_finite(), "{level:?} {name}, {odd} at {place} of {k}: {y:?}");
                assert!(y[..k].iter().chain(&y[2 * k..]).all(|y| y.is_finite()), "{level:?} {name}, {odd} at {place} of {k}: {y:?}");
            }
        }
    }
}
