//! Products of two matrices by our kernel, in any strides, against the CPU in f64.

use crate::launches::trace;
use crate::support::{Numbers, ORDERS, Order, cases, cube, flex64, image, numbers, on_swiftshader, pattern};
use bellows_kernels::matrices::MatrixOps;
use bellows_kernels::{Lowering, set_default_lowering};
use burn::tensor::TensorData;
use burn_cubecl::CubeBackend;
use burn_flex::Flex;
use proptest::prelude::*;

/// `a b` of made-up numbers; a `[n, g, m, k]`, b `[n, g, k, c]`.
fn made<B: MatrixOps>(
    [n, g, m, k, c]: [usize; 5],
    [left, right]: [Order; 2],
    upload: impl Fn(TensorData) -> B::FloatTensorPrimitive,
) -> B::FloatTensorPrimitive {
    let a = image::<B>(left, [n, g, m, k], |len| pattern(1, len), &upload);
    let b = image::<B>(right, [n, g, k, c], |len| pattern(2, len), &upload);
    B::product(a, b)
}

fn check(shape: [usize; 5], orders: [Order; 2]) {
    let theirs = made::<Flex>(shape, orders, flex64).into_f32();
    let ours = numbers(made::<CubeBackend>(shape, orders, cube));
    assert_eq!(ours.len(), theirs.len());
    // The largest difference passes over what is no number.
    assert!(ours.iter().chain(&theirs).all(|v| v.is_finite()), "{shape:?} {orders:?}: no numbers");
    let scale = (shape[3] as f32).sqrt();
    let error = ours.iter().zip(&theirs).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / scale;
    assert!(error < 2e-6, "{shape:?} {orders:?}: {error:.1e}");
}

#[test]
fn agree_with_the_cpu_and_tune_nothing() {
    if !on_swiftshader("matrices::agree_with_the_cpu_and_tune_nothing") {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    let orders = || prop::sample::select(ORDERS.to_vec());
    let shapes = (1usize..=2, 1usize..=3, 1usize..=40, 1usize..=70, 1usize..=40).prop_map(|(n, g, m, k, c)| [n, g, m, k, c]);
    cases(30, (shapes, orders(), orders()), |(shape, left, right)| check(shape, [left, right]));
    // A gradient of a low-rank factor: few numbers, long sums, which are cut.
    check([1, 1, 4, 1500, 33], [Order::Swapped, Order::Contiguous]);
    let launched = trace(|| made::<CubeBackend>([1, 1, 4, 1500, 33], [Order::Swapped, Order::Contiguous], cube));
    assert!(launched.keys().any(|name| name.contains("add_parts_kernel")), "{launched:?}");
    assert!(launched.keys().all(|name| name.contains("bellows_kernels")), "{launched:?}");
}

/// Without tuning it is one kernel of Burn's, the first that takes the shapes, and right.
#[test]
fn are_burns_without_tuning_where_that_fails() {
    if !on_swiftshader("matrices::are_burns_without_tuning_where_that_fails") {
        return;
    }
    set_default_lowering(Lowering::Untuned);
    let shape = [2, 1, 33, 65, 17];
    check(shape, [Order::Contiguous, Order::Swapped]);
    let launched = trace(|| made::<CubeBackend>(shape, [Order::Contiguous; 2], cube));
    assert!(launched.values().sum::<usize>() == 1 && launched.keys().all(|name| !name.contains("bellows_kernels")), "{launched:?}");
}

/// With another lowering the product is Burn's.
#[test]
fn are_burns_unless_asked_for() {
    if !on_swiftshader("matrices::are_burns_unless_asked_for") {
        return;
    }
    let shape = [1, 1, 8, 8, 8];
    let launched = trace(|| made::<CubeBackend>(shape, [Order::Contiguous; 2], cube));
    assert!(launched.keys().all(|name| !name.contains("bellows_kernels")), "{launched:?}");
}
