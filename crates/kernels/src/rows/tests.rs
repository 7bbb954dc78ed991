//! The row kernels at every instruction set against f64.

use burn::tensor::{Device, Int, Tensor, TensorData};
use proptest::prelude::*;

use super::{cross_entropy, cross_entropy_loss};
use crate::cpu::reference::noise;
use crate::cpu::simd::{Level, with_level};

fn on_flex<const D: usize>(values: &[f32], shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), &Device::flex())
}

fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.try_into_vec_as().unwrap()
}

proptest! {
    #![proptest_config(crate::test_cases(24))]

    #[test]
    fn cross_entropy_and_its_gradient(
        (n, vocab) in (1usize..6, 1usize..700),
        seed in any::<u32>(),
        spread in 0.1f32..40.0,
        turned: bool,
    ) {
        let logits: Vec<f32> = noise(seed.into(), n * vocab).into_iter().map(|v| v * spread + 100.0).collect();
        // In memory as rows, or as columns.
        let columns: Vec<f32> = (0..n * vocab).map(|i| logits[i % n * vocab + i / n]).collect();
        let tensor = || if turned { on_flex(&columns, [vocab, n]).transpose() } else { on_flex(&logits, [n, vocab]) };
        let targets: Vec<i64> = (0..n).map(|i| ((seed as usize + 31 * i) % vocab) as i64).collect();
        for level in Level::all() {
            let ids = Tensor::<1, Int>::from_data(TensorData::new(targets.clone(), [n]), &Device::flex());
            let (loss, grad) = with_level(level, || cross_entropy(tensor(), ids.clone()));
            let (loss, grad) = (host(loss), host(grad));
            let alone = host(with_level(level, || cross_entropy_loss(tensor(), ids)));
            prop_assert!(alone.iter().zip(&loss).all(|(a, b)| a.to_bits() == b.to_bits()), "{level:?}: {alone:?} for {loss:?}");
            for (r, row) in logits.chunks(vocab).enumerate() {
                let row: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
                let max = row.iter().copied().fold(f64::MIN, f64::max);
                let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
                let target = targets[r] as usize;
                prop_assert!((f64::from(loss[r]) - (sum.ln() + max - row[target])).abs() < 2e-5, "{level:?}: loss {r}");
                for (j, x) in row.iter().enumerate() {
                    let expected = (x - max).exp() / sum - f64::from(u8::from(j == target));
                    let got = f64::from(grad[r * vocab + j]);
                    prop_assert!((got - expected).abs() < 1e-6 + 2e-6 * expected.abs(), "{level:?}: {got} for {expected}");
                }
            }
        }
    }
}

/// Minus infinity weighs nothing, and a row with what is no number, or with infinity, is none: the loss does not hide it.
#[test]
fn extremes() {
    let (none, no) = (f32::NEG_INFINITY, f32::NAN);
    for width in [4, 5, 16, 37, 2000] {
        // The odd value at the beginning, in the middle, at the end.
        for place in [1, width / 2, width - 1] {
            let row = |odd: f32| (0..width).map(|j| if j == place { odd } else { 0.5 }).collect::<Vec<_>>();
            let first = (0..width).map(|j| if j == 0 { 0.0 } else { none }).collect();
            let rows = [first, row(no), row(f32::INFINITY), row(none), vec![none; width], vec![no; width]];
            for level in Level::all() {
                let ids = Tensor::<1, Int>::from_data([0i64; 6], &Device::flex());
                let (loss, grad) = with_level(level, || cross_entropy(on_flex(&rows.concat(), [6, width]), ids));
                let (loss, grad) = (host(loss), host(grad));
                let what = format!("{level:?}, {width} with {place}: {loss:?}");
                assert!(loss[0].abs() < 1e-6 && loss[3].is_finite(), "{what}");
                assert!([1, 2, 4, 5].iter().all(|&r: &usize| loss[r].is_nan()), "{what}");
                for (r, grad) in grad.chunks(width).enumerate() {
                    assert!(grad.iter().all(|g| if [0, 3].contains(&r) { g.is_finite() } else { g.is_nan() }), "{what}, row {r}: {grad:?}");
                }
                assert!(grad[..width].iter().all(|g| g.abs() < 1e-6), "{what}");
            }
        }
    }
}
