//! The optimizers' updates on the device against Burn's own operations on the CPU in f64: values, launches, memory.

use crate::launches::{assert_ours, most_in_use, trace};
use crate::support::{Numbers, cube, device, flex64, numbers, on_each_device, pattern, relative};
use bellows_kernels::cube::shared_memory_works;
use bellows_kernels::planes::Parts;
use bellows_kernels::update::UpdateOps;
use bellows_kernels::{Adam, Segments, Sgd};
use burn::tensor::TensorData;
use burn_cubecl::CubeBackend;
use burn_flex::Flex;

pub(crate) const SGD: Sgd = Sgd { lr: 0.01, momentum: 0.937, decay: 5e-4 };
pub(crate) const ADAM: Adam = Adam { rate: 0.002, beta1: 0.9, beta2: 0.999, root: 0.1, epsilon: 1e-8, decay: 5e-4, keep: 0.9995 };

fn whole(len: usize) -> Segments {
    Segments(vec![(0, 0..len)])
}

fn vector(stream: u64, len: usize) -> TensorData {
    TensorData::new(pattern(stream, len), [len])
}

/// New weight and buffer, new weight and moments, an average, a clipped tensor. `held`: somebody else holds what the results replace.
fn updates<B: UpdateOps>(
    len: usize,
    held: bool,
    upload: impl Fn(TensorData) -> B::FloatTensorPrimitive,
    host: impl Fn(B::FloatTensorPrimitive) -> Vec<f32>,
) -> Vec<Vec<f32>> {
    let tensors = || [1, 2, 3].map(|stream| upload(vector(stream, len)));
    let second = || upload(TensorData::new(pattern(4, len).into_iter().map(|v| v * v).collect::<Vec<_>>(), [len]));
    let mut keep = Vec::new();
    let mut hold = |tensors: &[B::FloatTensorPrimitive]| {
        if held {
            keep.extend(tensors.iter().cloned().map(|tensor| (tensor.clone(), host(tensor))));
        }
    };
    let [w, g, b] = tensors();
    hold(&[w.clone(), g.clone(), b.clone()]);
    // Three groups, of which the first may be empty.
    let groups = |step: Sgd| vec![(len / 5, step), (len - 1, Sgd { lr: 0.1, decay: 0.0, ..step }), (len, step)];
    let sgd = B::sgd_step(w, g, b, groups(SGD));
    let ([w, g, m], v) = (tensors(), second());
    hold(&[w.clone(), g.clone(), m.clone(), v.clone()]);
    let groups = |step: Adam| vec![(len / 5, step), (len - 1, Adam { rate: 0.1, keep: 1.0, ..step }), (len, step)];
    let adam = B::adam_step(w, g, m, v, groups(ADAM));
    let [old, new, _] = tensors();
    hold(&[old.clone(), new.clone()]);
    let blend = B::blend(old, new, 0.99, 0.01);
    for (tensor, before) in keep {
        assert_eq!(host(tensor), before, "what is still held was changed");
    }
    let [x, ..] = tensors();
    let squares = upload(TensorData::new(vec![7.0f32], [1]));
    let clipped = B::clip_to_norm(x, squares, 1.0);
    [sgd.0, sgd.1, adam.0, adam.1, adam.2, blend, clipped].into_iter().map(host).collect()
}

#[test]
fn agrees_with_the_cpu() {
    if !on_each_device("update::agrees_with_the_cpu") {
        return;
    }
    let mut worst = 0.0f32;
    // The last is more than one row of workgroups.
    for len in [1, 7, 63, 64, 65, 1000, 40_001, 65_536 * 64 + 3] {
        for held in [false, true] {
            let cpu = updates::<Flex>(len, held, flex64, Numbers::into_f32);
            let gpu = updates::<CubeBackend>(len, held, cube, numbers);
            for (i, (gpu, cpu)) in gpu.iter().zip(&cpu).enumerate() {
                let error = relative(gpu, cpu);
                assert!(error <= 1e-6, "result {i} of {len} numbers: relative error {error:.1e}");
                worst = worst.max(error);
            }
        }
        let exact: f64 = pattern(1, len).into_iter().map(|v| f64::from(v).powi(2)).sum();
        let ours = numbers(CubeBackend::sum_of_squares(Parts(vec![cube(vector(1, len))]), whole(len)));
        assert!((f64::from(ours[0]) - exact).abs() <= 1e-6 * exact, "{ours:?} for {exact}");
    }
    for bad in [f32::NAN, f32::INFINITY] {
        let ours = numbers(CubeBackend::sum_of_squares(Parts(vec![cube(TensorData::new(vec![1.0, bad, 2.0], [3]))]), whole(3)));
        assert!(!ours[0].is_finite());
        let [x, squares] = [vec![1.0, -3.0], vec![bad]].map(|values| cube(TensorData::new(values.clone(), [values.len()])));
        let clipped = CubeBackend::clip_to_norm(x, squares, 0.5);
        assert_eq!(numbers(clipped), [1.0, -3.0]);
    }
    eprintln!("> largest relative error {worst:.1e}");
}

/// One launch to an update, and to a sum of squares one more than arenas.
#[test]
fn launches_one_kernel_each() {
    if !on_each_device("update::launches_one_kernel_each") {
        return;
    }
    let tensors = || [1, 2, 3, 4].map(|stream| cube(vector(stream, 5000)));
    let [w, g, m, v] = tensors();
    // What a device is asked once.
    shared_memory_works(&device());
    let launched = trace(|| {
        CubeBackend::sgd_step(w.clone(), g.clone(), m.clone(), vec![(2500, SGD), (5000, SGD)]);
        CubeBackend::adam_step(w.clone(), g.clone(), m.clone(), v, vec![(2500, ADAM), (5000, ADAM)]);
        CubeBackend::blend(w.clone(), g, 0.9, 0.1);
        CubeBackend::clip_to_norm(w.clone(), cube(vector(5, 1)), 1.0);
        CubeBackend::sum_of_squares(Parts(vec![w.clone(), w]), Segments(vec![(0, 0..5000), (1, 0..5000)]));
    });
    let names = [("sgd", 1), ("adam", 1), ("blend", 1), ("clip", 1), ("squares_kernel", 2), ("whole_kernel", 1)];
    assert_ours(&launched, &names);
}

/// An average that nobody else holds is replaced where it is.
#[test]
fn averages_take_no_memory() {
    const LEN: usize = 1 << 20;
    if !on_each_device("update::averages_take_no_memory") {
        return;
    }
    let (old, new) = (cube(vector(1, LEN)), cube(vector(2, LEN)));
    let shared = most_in_use(|| CubeBackend::blend(old.clone(), new.clone(), 0.9, 0.1));
    let alone = most_in_use(|| CubeBackend::blend(old, new, 0.9, 0.1));
    eprintln!("> {shared} B in use with old held by another, {alone} B without");
    assert!(alone + 3 * (LEN as u64) < shared);
}
