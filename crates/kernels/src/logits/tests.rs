//! At every instruction set against f64.

use burn::backend::Flex;
use burn::tensor::{Device, Tensor, TensorData};
use burn_flex::FlexTensor;
use proptest::prelude::*;

use super::{LogitOps, expectation};
use crate::buffers::values;
use crate::cpu::machine::{TASK, worth_a_task};
use crate::cpu::reference::{noise, tasks};
use crate::cpu::simd::{Level, with_level};

fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.try_into_vec_as().unwrap()
}

/// The sum over rows `start .. start + len`, and three times its gradient for all of x.
fn ours(x: &[f32], shape: [usize; 3], start: usize, len: usize) -> (f32, Vec<f32>) {
    let x = FlexTensor::from_data(TensorData::new(x.to_vec(), shape));
    let (sum, slope) = Flex::softplus_sum(x, start, len);
    let grad = Flex::softplus_sum_grad(slope, FlexTensor::from_data(TensorData::new(vec![3.0f32], [1])), start, shape[1]);
    (values(&sum)[0], values(&grad).to_vec())
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

proptest! {
    #![proptest_config(crate::test_cases(32))]

    #[test]
    fn sum_and_gradient(
        [b, c, a] in [1usize..4, 1usize..40, 1usize..700],
        (start, len) in (0usize..40, 1usize..40),
        (seed, spread, centre) in (any::<u32>(), 0.1f32..30.0, -20.0f32..5.0),
    ) {
        let start = start.min(c - 1);
        let len = len.min(c - start);
        let x: Vec<f32> = noise(seed.into(), b * c * a).into_iter().map(|v| v * spread + centre).collect();
        let counts = |i: usize| (start..start + len).contains(&(i / a % c));
        let exact: f64 = x.iter().enumerate().filter(|(i, _)| counts(*i)).map(|(_, &x)| softplus(x.into())).sum();
        for level in Level::all() {
            let (sum, grad) = with_level(level, || ours(&x, [b, c, a], start, len));
            prop_assert!((f64::from(sum) - exact).abs() < 2e-6 * exact, "{level:?}: {sum} for {exact}");
            for (i, (&x, &got)) in x.iter().zip(&grad).enumerate() {
                let expected = if counts(i) { 3.0 / (1.0 + (-f64::from(x)).exp()) } else { 0.0 };
                prop_assert!((f64::from(got) - expected).abs() <= 1e-6 * expected, "{level:?}, {i}: {got} for {expected}");
            }
        }
    }
}

proptest! {
    #![proptest_config(crate::test_cases(32))]

    #[test]
    fn expected_bins([b, sides, bins, more, a] in [1usize..4, 1usize..5, 1usize..20, 0usize..5, 1usize..700], seed in any::<u32>(), spread in 0.1f32..40.0) {
        let c = sides * bins + more;
        let x: Vec<f32> = noise(seed.into(), b * c * a).into_iter().map(|v| v * spread + 50.0).collect();
        for level in Level::all() {
            let tensor = Tensor::<3>::from_data(TensorData::new(x.clone(), [b, c, a]), &Device::flex());
            let got = host(with_level(level, || expectation(tensor, sides, bins)));
            for (i, &got) in got.iter().enumerate() {
                let (row, j) = (i / a, i % a);
                let at = |k: usize| f64::from(x[(row / sides * c + row % sides * bins + k) * a + j]);
                let max = (0..bins).map(at).fold(f64::MIN, f64::max);
                let e: Vec<f64> = (0..bins).map(|k| (at(k) - max).exp()).collect();
                let expected = e.iter().enumerate().map(|(k, e)| k as f64 * e).sum::<f64>() / e.iter().sum::<f64>();
                prop_assert!((f64::from(got) - expected).abs() <= 2e-6 * (expected + 1.0), "{level:?}, {i}: {got} for {expected}");
            }
        }
    }
}

#[test]
fn a_distribution_with_no_number_expects_none() {
    for bad in [f32::NAN, f32::INFINITY] {
        for place in 0..4 {
            let x: Vec<f32> = (0..4 * 37).map(|i| if i == place * 37 + 20 { bad } else { 0.0 }).collect();
            for level in Level::all() {
                let tensor = Tensor::<3>::from_data(TensorData::new(x.clone(), [1, 4, 37]), &Device::flex());
                let got = host(with_level(level, || expectation(tensor, 1, 4)));
                assert!(got.iter().enumerate().all(|(j, &v)| if j == 20 { v.is_nan() } else { v == 1.5 }), "{level:?}: {got:?}");
            }
        }
    }
}

#[test]
fn any_number_of_threads() {
    let shape = [2, 10, 8400];
    let x: Vec<f32> = noise(5, shape.iter().product()).into_iter().map(|v| v * 9.0 - 6.0).collect();
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| ours(&x, shape, 3, 7))
    };
    let one = with(1);
    for threads in [2, 3, 8] {
        assert!(with(threads) == one, "{threads} threads give other bits");
    }
}

/// Of YOLOv8n's outputs, four images of 640 pixels: 8,400 anchors, 64 logits of sides and 80 of classes.
#[test]
fn there_is_work_for_every_thread() {
    let (images, anchors) = (4usize, 8400usize);
    assert_eq!(images * (80 * anchors).div_ceil(TASK), 168, "pieces of the class loss");
    assert_eq!(tasks(images * 144, worth_a_task(anchors)), 576, "rows of its gradient");
    assert_eq!(images * 4 * anchors.div_ceil(TASK / 16), 144, "pieces of sides");
}

#[test]
fn extremes() {
    for level in Level::all() {
        for len in [1, 4, 16, 37] {
            let of = |x: f32| with_level(level, || ours(&vec![x; len], [1, 1, len], 0, 1));
            let n = len as f32;
            let (sum, grad) = of(f32::INFINITY);
            assert!(sum == f32::INFINITY && grad.iter().all(|&g| g == 3.0), "{level:?}: {sum}, {grad:?}");
            let (sum, grad) = of(f32::NEG_INFINITY);
            assert!(sum.abs() < 1e-30 && grad.iter().all(|&g| g.abs() < 1e-30), "{level:?}: {sum}, {grad:?}");
            let (sum, grad) = of(f32::NAN);
            assert!(sum.is_nan() && grad.iter().all(|g| g.is_nan()), "{level:?}: {sum}, {grad:?}");
            let (sum, _) = of(1e4);
            assert!((sum - 1e4 * n).abs() <= 1e-3 * n, "{level:?}: {sum}");
        }
    }
}
