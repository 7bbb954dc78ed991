//! Cross entropy on the device against Burn's own operations on the CPU in f64: losses, gradients, launches.

use crate::launches::{assert_ours, trace};
use crate::support::{Numbers, cases, cube, data, device, flex64, numbers, on_each_device, pattern};
use bellows_kernels::rows::RowOps;
use burn::backend::ops::{FloatTensorOps, IntTensorOps};
use burn::tensor::TensorData;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use burn_flex::Flex;
use proptest::prelude::*;
use std::cell::Cell;

fn targets(ids: &[i32]) -> CubeTensor {
    CubeBackend::int_from_data(TensorData::new(ids.to_vec(), [ids.len()]), &device())
}

/// Loss and gradient of these logits, in memory as columns if `turned`.
fn on_cube(logits: &[f32], ids: &[i32], turned: bool) -> [Vec<f32>; 2] {
    let (n, vocab) = (ids.len(), logits.len() / ids.len());
    let tensor = if turned {
        let columns = (0..vocab * n).map(|i| logits[i % n * vocab + i / n]).collect::<Vec<_>>();
        CubeBackend::float_swap_dims(cube(TensorData::new(columns, [vocab, n])), 0, 1)
    } else {
        cube(TensorData::new(logits.to_vec(), [n, vocab]))
    };
    let alone = numbers(CubeBackend::cross_entropy_loss(tensor.clone(), targets(ids)));
    let (loss, grad) = CubeBackend::cross_entropy(tensor, targets(ids));
    let both = [loss, grad].map(numbers);
    let same = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * (1.0 + b.abs()) || a == b || (a.is_nan() && b.is_nan());
    assert!(alone.iter().zip(&both[0]).all(same), "{alone:?} for {:?}", both[0]);
    both
}

#[test]
fn agrees_with_the_cpu() {
    if !on_each_device("rows::agrees_with_the_cpu") {
        return;
    }
    let worst = Cell::new(0.0f32);
    let check = |n: usize, vocab: usize, spread: f32, turned: bool, stream: u64| {
        let logits: Vec<f32> = pattern(stream, n * vocab).into_iter().map(|v| v * spread + 100.0).collect();
        let ids: Vec<i32> = (0..n).map(|i| ((stream as usize + 31 * i) % vocab) as i32).collect();
        let long = Flex::int_from_data(TensorData::new(ids.iter().map(|&id| i64::from(id)).collect::<Vec<_>>(), [n]), &Default::default());
        let (loss, grad) = Flex::cross_entropy(flex64(TensorData::new(logits.clone(), [n, vocab])), long);
        for (gpu, cpu) in on_cube(&logits, &ids, turned).into_iter().zip([loss, grad].map(Numbers::into_f32)) {
            assert!(gpu.len() == cpu.len() && gpu.iter().chain(&cpu).all(|number| number.is_finite()));
            let error = gpu.iter().zip(&cpu).fold(0.0f32, |most, (a, b)| most.max((a - b).abs() / (1.0 + b.abs())));
            assert!(error <= 1e-6, "{n} x {vocab}, {spread}, {turned}, {stream}: error {error:.1e}");
            worst.set(worst.get().max(error));
        }
    };
    let any = (1usize..=70, 1usize..=700, 0.1f32..40.0, any::<bool>(), 0u64..1000);
    cases(40, any, |(n, vocab, spread, turned, stream)| check(n, vocab, spread, turned, stream));
    check(1, 1, 1.0, false, 1);
    check(1, 151_936, 10.0, false, 2);
    eprintln!("> largest error {:.1e}", worst.get());
}

/// Infinities weigh what they should, what is no number stays in its row, and a target outside has no loss.
#[test]
fn extremes() {
    if !on_each_device("rows::extremes") {
        return;
    }
    let (none, no) = (f32::NEG_INFINITY, f32::NAN);
    let logits = [[0.0, none, none, none], [1.0, no, 2.0, 3.0], [0.0; 4], [0.0; 4], [none; 4]].concat();
    let [loss, grad] = on_cube(&logits, &[0, 0, 4, -1, 0], false);
    assert!(loss[0].abs() < 1e-6 && loss[1..4].iter().all(|loss| loss.is_nan()) && !loss[4].is_finite(), "{loss:?}");
    assert!(grad[..4].iter().all(|grad| grad.abs() < 1e-6), "{grad:?}");
    assert!(grad[4..8].iter().all(|grad| grad.is_nan()), "{grad:?}");
    assert!(grad[8..16].iter().all(|grad| (grad - 0.25).abs() < 1e-6), "{grad:?}");
}

/// Logits that somebody else holds stay as they are.
#[test]
fn launches_two_kernels() {
    if !on_each_device("rows::launches_two_kernels") {
        return;
    }
    let (logits, ids) = (cube(data(1, [7, 90])), targets(&[1; 7]));
    let launched = trace(|| CubeBackend::cross_entropy(logits.clone(), ids));
    assert_ours(&launched, &[("softmax_sums_kernel", 1), ("cross_entropy_kernel", 1)]);
    let launched = trace(|| CubeBackend::cross_entropy_loss(logits.clone(), targets(&[1; 7])));
    assert_ours(&launched, &[("softmax_sums_kernel", 1), ("losses_kernel", 1)]);
    assert_eq!(numbers(logits), pattern(1, 7 * 90));
}
