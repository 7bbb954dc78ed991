//! The decoder's operations on the device against Burn's own operations on the CPU in f64: values, gradients, launches, memory.

use crate::launches::{assert_ours, most_in_use, trace};
use crate::support::{Numbers, ORDERS, Order, cases, cube, data, device, flex, flex64, image, numbers, on_each_device, pattern};
use bellows_kernels::cube::shared_memory_works;
use bellows_kernels::decoder::{BLOCKED, DecoderOps};
use burn::tensor::{Slice, TensorData};
use burn_cubecl::CubeBackend;
use burn_flex::Flex;
use proptest::prelude::*;
use std::cell::Cell;

/// Large, so that a row of one small number has no huge gradient.
const EPSILON: f64 = 1e-2;
const SCALE: f64 = 0.3;

#[derive(Clone, Copy, Debug)]
struct Case {
    shape: [usize; 4],
    x: Order,
    dy: Order,
    /// Whether each image has its own mask and angles.
    own: bool,
    /// Whether somebody else holds what the results replace.
    held: bool,
    spread: f32,
    stream: u64,
}

const NAMES: [&str; 14] = [
    "rms_norm",
    "rms_norm's dx",
    "rms_norm's dx added",
    "rms_norm's dw",
    "swiglu",
    "swiglu's dgate",
    "swiglu's dup",
    "softmax",
    "softmax's gradient",
    "rotate",
    "rotate's keys",
    "rotate_back",
    "rotate_back's keys",
    "there and back",
];

/// The results in the order of [`NAMES`].
fn all<B: DecoderOps>(
    case: &Case,
    upload: impl Fn(TensorData) -> B::FloatTensorPrimitive,
    host: impl Fn(B::FloatTensorPrimitive) -> Vec<f32>,
) -> Vec<Vec<f32>> {
    let Case { shape: [b, m, n, k], own, spread, stream, .. } = *case;
    let owners = if own { b } else { 1 };
    let values = |stream: u64| move |len: usize| pattern(stream, len).into_iter().map(|v| v * spread).collect::<Vec<_>>();
    let mut keep = Vec::new();
    let mut hold = |tensor: B::FloatTensorPrimitive| {
        if case.held {
            keep.push((tensor.clone(), host(tensor.clone())));
        }
        tensor
    };
    let x = image::<B>(case.x, [b, m, n, k], values(stream), &upload);
    let up = image::<B>(case.dy, [b, m, n, k], |len| pattern(stream + 1, len), &upload);
    let dy = || image::<B>(case.dy, [b, m, n, k], |len| pattern(stream + 2, len), &upload);
    let weight = || upload(TensorData::new(pattern(stream + 3, k), [k]));
    // Some rows have all keys blocked.
    let blocked = |len: usize| pattern(stream + 4, len).into_iter().map(|v| if v > 0.1 { BLOCKED } else { 0.0 }).collect();
    let mask = image::<B>(case.dy, [owners, 1, n, k], blocked, &upload);
    let heads = |shape| image::<B>(case.x, shape, values(stream), &upload);
    let table = |f: fn(f32) -> f32, positions: usize| {
        let angles = |len: usize| pattern(stream + 5, len).into_iter().map(|v| f(v * 3.0)).collect();
        image::<B>(case.dy, [owners, 1, positions, k], angles, &upload)
    };
    let (dgate, dup) = B::swiglu_grad(x.clone(), up.clone(), hold(dy()));
    let scores = hold(heads([b, m, n, k]));
    let p = B::masked_softmax(scores, mask, SCALE);
    // Keys of fewer heads.
    let few = |heads: B::FloatTensorPrimitive, axis: usize| {
        let all = [b, m, n, 2 * k].map(|extent| Slice::from(0..extent as isize));
        B::float_slice(heads, &std::array::from_fn::<_, 4, _>(|i| if i == axis { Slice::from(0..1) } else { all[i] }))
    };
    let (turned, keys) = {
        let x = heads([b, m, n, 2 * k]);
        B::rotate(x.clone(), few(x, 2), table(f32::cos, m), table(f32::sin, m))
    };
    let y = heads([b, m, n, 2 * k]);
    let (back, keys_back) = B::rotate_back(y.clone(), few(y, 1), table(f32::cos, n), table(f32::sin, n));
    let there_and_back = B::rotate_back(turned.clone(), keys.clone(), table(f32::cos, m), table(f32::sin, m)).0;
    let results = vec![
        B::rms_norm(x.clone(), weight(), EPSILON),
        B::rms_norm_data_grad(x.clone(), weight(), hold(dy()), EPSILON),
        B::rms_norm_data_grad_onto(x.clone(), weight(), dy(), hold(up.clone()), EPSILON),
        B::rms_norm_weight_grad(x.clone(), dy(), EPSILON),
        B::swiglu(x, up),
        dgate,
        dup,
        p.clone(),
        B::masked_softmax_grad(p, hold(dy()), SCALE),
        turned,
        keys,
        back,
        keys_back,
        there_and_back,
    ];
    for (tensor, before) in keep {
        assert_eq!(host(tensor), before, "{case:?}: what is still held was changed");
    }
    results.into_iter().map(host).collect()
}

impl Case {
    /// The largest error, relative to the largest number of each result or 1.
    fn error(&self) -> f32 {
        let mut worst = 0.0f32;
        let (on_cube, on_flex) = (all::<CubeBackend>(self, cube, numbers), all::<Flex>(self, flex64, Numbers::into_f32));
        for ((name, gpu), cpu) in NAMES.into_iter().zip(&on_cube).zip(&on_flex) {
            assert_eq!(gpu.len(), cpu.len(), "{self:?} {name}");
            let scale = cpu.iter().fold(1.0f32, |scale, number| scale.max(number.abs()));
            let error = gpu.iter().zip(cpu).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / scale;
            assert!(error <= 4e-6 && gpu.iter().chain(cpu).all(|number| number.is_finite()), "{self:?} {name}: relative error {error:.1e}");
            worst = worst.max(error);
        }
        worst
    }
}

#[test]
fn agrees_with_the_cpu() {
    if !on_each_device("decoder::agrees_with_the_cpu") {
        return;
    }
    let shapes = (1usize..=3, 1usize..=5, 1usize..=14, 1usize..=300).prop_map(|(b, m, n, k)| [b, m, n, k]);
    let orders = || prop::sample::select(ORDERS.to_vec());
    let any = (shapes, orders(), orders(), any::<[bool; 2]>(), 0.1f32..20.0, 0u64..1000);
    let worst = Cell::new(0.0f32);
    let check = |case: Case| worst.set(worst.get().max(case.error()));
    cases(40, any, |(shape, x, dy, [own, held], spread, stream)| check(Case { shape, x, dy, own, held, spread, stream }));
    for (order, own) in ORDERS.into_iter().zip([false, true, false, true, false]) {
        for shape in [[1, 1, 1, 1], [1, 1, 70, 3], [2, 1, 1, 9], [1, 2, 3, 1025], [1, 3, 1, 64]] {
            check(Case { shape, x: order, dy: order, own, held: false, spread: 2.0, stream: 5 });
        }
    }
    eprintln!("> largest relative error {:.1e}", worst.get());
}

/// A blocked key weighs nothing, however high its score; a row of blocked keys is uniform.
#[test]
fn blocked_keys() {
    if !on_each_device("decoder::blocked_keys") {
        return;
    }
    let scores = TensorData::new(vec![1.0f32, 90.0, -3.0, 5.0, 1.0, -7.0], [1, 1, 2, 3]);
    let mask = TensorData::new(vec![0.0, BLOCKED, 0.0, BLOCKED, BLOCKED, BLOCKED], [1, 1, 2, 3]);
    let on_cube = numbers(CubeBackend::masked_softmax(cube(scores.clone()), cube(mask.clone()), 1.0));
    let on_flex = Flex::masked_softmax(flex(scores), flex(mask), 1.0).into_f32();
    for p in [on_cube, on_flex] {
        assert_eq!(p[1], 0.0);
        assert!((p[0] + p[2] - 1.0).abs() < 1e-6 && p[0] > 0.98, "{p:?}");
        assert!(p[3..].iter().all(|p| (p - 1.0 / 3.0).abs() < 1e-6), "{p:?}");
    }
}

/// A number that is none is seen in its own row and in no other.
#[test]
fn no_number_stays_in_its_row() {
    if !on_each_device("decoder::no_number_stays_in_its_row") {
        return;
    }
    const K: usize = 50;
    let mut values = pattern(1, 3 * K);
    values[K + 17] = f32::NAN;
    let x = || cube(TensorData::new(values.clone(), [1, 1, 3, K]));
    let (weight, mask) = (cube(data(2, [K])), cube(TensorData::new(vec![0.0f32; 3 * K], [1, 1, 3, K])));
    for y in [CubeBackend::rms_norm(x(), weight, EPSILON), CubeBackend::masked_softmax(x(), mask, SCALE)] {
        let y = numbers(y);
        assert!(y[K..2 * K].iter().all(|y| y.is_nan()) && y[..K].iter().chain(&y[2 * K..]).all(|y| y.is_finite()), "{y:?}");
    }
}

#[test]
fn launches_our_kernels() {
    if !on_each_device("decoder::launches_our_kernels") {
        return;
    }
    let x = || cube(data(1, [2, 3, 5, 40]));
    let (weight, mask, table) = (|| cube(data(2, [40])), cube(data(3, [1, 1, 5, 40])), || cube(data(4, [1, 1, 3, 20])));
    let there_and_back = || cube(data(4, [2, 5, 3, 40]));
    // Each device is asked once.
    assert!(shared_memory_works(&device()));
    let launched = trace(|| {
        CubeBackend::rms_norm(x(), weight(), EPSILON);
        CubeBackend::rms_norm_data_grad(x(), weight(), x(), EPSILON);
        CubeBackend::rms_norm_weight_grad(x(), x(), EPSILON);
        CubeBackend::swiglu(x(), x());
        CubeBackend::swiglu_grad(x(), x(), x());
        CubeBackend::masked_softmax(x(), mask, SCALE);
        CubeBackend::masked_softmax_grad(x(), x(), SCALE);
        CubeBackend::rotate(x(), x(), table(), table());
        CubeBackend::rotate_back(there_and_back(), there_and_back(), table(), table());
    });
    let once = [
        "rms_norm_row_kernel",
        "rms_norm_row_grad_kernel",
        "rho_kernel",
        "rms_norm_columns_kernel",
        "rms_norm_weight_grad_kernel",
        "swiglu_kernel",
        "swiglu_grad_kernel",
        "softmax_sums_kernel",
        "masked_softmax_kernel",
        "products_kernel",
        "masked_softmax_grad_kernel",
    ];
    assert_ours(&launched, &[&once.map(|name| (name, 1))[..], &[("row_squares_kernel", 1), ("rotate_kernel", 2)]].concat());
}

/// Scores that nobody else holds become their softmax where they are.
#[test]
fn softmax_takes_no_memory() {
    const SHAPE: [usize; 4] = [1, 1, 1024, 1024];
    if !on_each_device("decoder::softmax_takes_no_memory") {
        return;
    }
    let (scores, mask) = (cube(data(1, SHAPE)), cube(TensorData::new(vec![0.0f32; 1 << 20], SHAPE)));
    let shared = most_in_use(|| CubeBackend::masked_softmax(scores.clone(), mask.clone(), SCALE));
    let alone = most_in_use(|| CubeBackend::masked_softmax(scores, mask, SCALE));
    eprintln!("> {shared} B in use with the scores held by another, {alone} B without");
    assert!(alone + (3 << 20) < shared);
}
