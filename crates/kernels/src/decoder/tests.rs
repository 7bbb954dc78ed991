//! The decoder's operations at every instruction set, and in Burn's own words (which is where f64 goes), against f64 functions; their gradients
//! against differences of those functions.

use burn::tensor::{DType, Device, Tensor, TensorData};
use proptest::prelude::*;

use super::{BLOCKED, masked_softmax, rms_norm, rotate, swiglu};
use crate::cpu::reference::{self, greatest, widen};
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
    fn masked_softmax_and_its_gradient(
        (b, h, r, t) in (1usize..3, 1usize..3, 1usize..5, 1usize..80),
        own in any::<bool>(), seed in any::<u32>(), spread in 0.1f64..20.0,
    ) {
        let scale = 0.3;
        let held = if own { b } else { 1 };
        // The first key of every row is seen.
        let hidden = |i: usize, v: f64| if !i.is_multiple_of(t) && v > 0.2 { f64::from(BLOCKED) } else { 0.0 };
        let mask: Vec<f64> = noise(seed ^ 9, held * r * t).into_iter().enumerate().map(|(i, v)| hidden(i, v)).collect();
        let scores: Vec<f64> = noise(seed, b * h * r * t).iter().map(|v| v * spread).collect();
        let reference = |v: &[&[f64]]| {
            let row = |(i, row): (usize, &[f64])| {
                let at = if held == 1 { i % r } else { i / (h * r) * r + i % r } * t;
                let e: Vec<f64> = row.iter().zip(&mask[at..]).map(|(s, m)| if *m < 0.0 { 0.0 } else { (s * scale).exp() }).collect();
                let sum: f64 = e.iter().sum();
                e.into_iter().map(move |e| e / sum).collect::<Vec<f64>>()
            };
            v[0].chunks(t).enumerate().flat_map(row).collect()
        };
        check(&[(scores, [b, h, r, t])], &reference, &|leaves| {
            let x = &leaves[0];
            let mask = Tensor::from_data(TensorData::new(mask.clone(), [held, 1, r, t]), (&x.device(), x.dtype()));
            masked_softmax(x.clone(), mask, scale)
        })?;
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

#[test]
fn a_blocked_key_weighs_nothing_at_all() {
    for level in Level::all() {
        let scores = Tensor::<4>::from_data([[[[1.0f32, 90.0, -3.0]]]], &Device::flex());
        let mask = Tensor::<4>::from_data([[[[0.0, BLOCKED, 0.0]]]], &Device::flex());
        let p = with_level(level, || masked_softmax(scores, mask, 1.0)).try_into_vec_as::<f32>().unwrap();
        assert_eq!(p[1], 0.0, "{level:?}");
        assert!((p[0] + p[2] - 1.0).abs() < 1e-6, "{level:?}");
    }
}

#[test]
fn a_row_of_blocked_keys_is_uniform() {
    for level in Level::all() {
        let scores = Tensor::<4>::from_data(TensorData::new(noise(3, 37), [1, 1, 1, 37]), &Device::flex()).cast(DType::F32);
        let mask = Tensor::<4>::full([1, 1, 1, 37], BLOCKED, &Device::flex());
        let p = with_level(level, || masked_softmax(scores, mask, 1.0)).try_into_vec_as::<f32>().unwrap();
        assert!(p.iter().all(|p| (p - 1.0 / 37.0).abs() < 1e-7), "{level:?}: {p:?}");
    }
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
            // Also where the key is blocked.
            let masks = [0.0, BLOCKED].map(|at| on_flex((0..3 * k).map(|i| if i == k + place { at } else { 0.0 }).collect(), 3));
            let [weight, other] = [1.0, 2.0].map(|v| on_flex(vec![v; k], 1));
            let [seen, blocked] = masks.map(|mask| with_level(level, || masked_softmax(x(), mask, 0.3)));
            let normed = with_level(level, || rms_norm(x(), weight.reshape([k]), EPSILON));
            let [gated, up] =
                with_level(level, || [swiglu(x(), other.clone().expand([1, 1, 3, k])), swiglu(other.expand([1, 1, 3, k]), x())]);
            for (name, y) in [("softmax", seen), ("softmax of a blocked key", blocked)] {
                let y = y.try_into_vec_as::<f32>().unwrap();
                assert!(y[k..2 * k].iter().all(|y| y.is_nan()), "{level:?} {name}, {odd} at {place} of {k}: {y:?}");
                assert!(y[..k].iter().chain(&y[2 * k..]).all(|y| y.is_finite()), "{level:?} {name}, {odd} at {place} of {k}: {y:?}");
            }
            for (name, y) in [("rms_norm", normed), ("gate", gated), ("up", up)] {
                let y = y.try_into_vec_as::<f32>().unwrap();
                assert!(!y[k + place].is_finite(), "{level:?} {name}, {odd} at {place} of {k}: {y:?}");
                assert!(y[..k].iter().chain(&y[2 * k..]).all(|y| y.is_finite()), "{level:?} {name}, {odd} at {place} of {k}: {y:?}");
            }
        }
    }
}
