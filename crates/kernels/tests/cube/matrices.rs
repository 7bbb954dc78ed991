//! Products of two matrices by our kernel, in any strides, against the CPU in f64; and a language model's layers without a kernel of Burn's that is tuned.

use crate::launches::trace;
use crate::support::{Numbers, ORDERS, Order, cases, cube, device, flex, flex64, image, numbers, on_swiftshader, pattern};
use bellows_kernels::attention::AttentionOps;
use bellows_kernels::cube::launches;
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

/// Attention, forward and backward, as the processor's in tiles has it, by products of ours alone.
#[test]
fn attention_is_that_of_the_processor() {
    if !on_swiftshader("matrices::attention_is_that_of_the_processor") {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    const B: usize = 2;
    const S: usize = 9;
    fn all<T: AttentionOps>(upload: impl Fn(TensorData) -> T::FloatTensorPrimitive, device: &T::Device) -> Vec<T::FloatTensorPrimitive> {
        let tensor = |stream, shape: [usize; 4]| upload(TensorData::new(pattern(stream, shape.iter().product()), shape));
        let first = || T::int_from_data(TensorData::new(vec![0i32; B * S], [B, S]), device);
        let (q, k, v) = (|| tensor(1, [B, 4, S, 16]), || tensor(2, [B, 2, S, 16]), || tensor(3, [B, 2, S, 16]));
        let (y, sums) = T::attend(q(), k(), v(), first(), 0.25);
        let (dq, dk, dv) = T::attend_grad(q(), k(), v(), first(), y.clone(), sums, tensor(4, [B, 4, S, 16]), 0.25);
        vec![y, dq, dk, dv]
    }
    let (results, launched) = launches(|| all::<CubeBackend>(cube, &device()));
    let theirs = all::<Flex>(flex, &Default::default());
    for (ours, theirs) in results.into_iter().zip(theirs) {
        let (ours, theirs) = (numbers(ours), theirs.into_f32());
        assert!(ours.iter().zip(&theirs).all(|(a, b)| (a - b).abs() < 1e-5), "{ours:?}\n{theirs:?}");
    }
    let products = launched.iter().filter(|(name, _)| name.contains("matmul_kernel")).map(|(_, count)| count).sum::<usize>();
    assert_eq!(products, 2 + 5, "{launched:?}");
    assert!(launched.keys().all(|name| name.contains("bellows_kernels") || !name.contains("matmul")), "{launched:?}");
}
