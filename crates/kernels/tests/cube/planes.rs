//! Joining, cutting, pooling and doubling on the device against the CPU's version, to the bit, and a trace of what they launch.

use crate::launches::{assert_ours, trace};
use crate::support::{Numbers, ORDERS, Order, cases, counted, cube, data, device, flex, image, numbers, on_each_device, pattern};
use bellows_kernels::cube::{Done, Work, most_at_launches};
use bellows_kernels::operands::Maybe;
use bellows_kernels::planes::{Parts, PlaneOps};
use bellows_kernels::{HALF_GRADIENTS, images};
use burn::backend::Backend;
use burn::backend::Scalar;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Device, DeviceKind, FloatDType, TensorData};
use burn_cubecl::CubeBackend;
use burn_flex::Flex;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
struct Case {
    shape: [usize; 4],
    x: Order,
    dy: Order,
    kernel: usize,
    nan: bool,
    stream: u64,
}

/// The results in the order of [`NAMES`].
fn all<B: PlaneOps>(case: &Case, upload: impl Fn(TensorData) -> B::FloatTensorPrimitive) -> Vec<B::FloatTensorPrimitive> {
    let Case { shape: [n, c, h, w], kernel, .. } = *case;
    // Few distinct values, so that windows have ties.
    let ties = |len: usize| {
        let value = |v: f32| if case.nan && v > 0.9 { f32::NAN } else { (v * 4.0).round() };
        pattern(case.stream, len).into_iter().map(value).collect()
    };
    let any = |len: usize| pattern(case.stream + 1, len);
    let x = || image::<B>(case.x, [n, c, h, w], ties, &upload);
    let dy = image::<B>(case.dy, [n, c, h, w], any, &upload);
    let other = image::<B>(case.dy, [n, c + 2, h, w], any, &upload);
    let doubled = image::<B>(case.dy, [n, c, 2 * h, 2 * w], any, &upload);
    let (start, before) = (case.stream as usize % c, case.stream as usize % 4);
    vec![
        B::max_pool_same(x(), kernel),
        B::max_pool_same_grad(x(), dy, kernel),
        B::double(x()),
        B::double_grad(doubled),
        B::slice_channels(x(), start, (c - start).div_ceil(2)),
        B::pad_channels(x(), before, before + c + case.stream as usize % 3),
        B::add_to_channels(B::concat_channels(Parts(vec![other.clone(), x()])), x(), before),
        B::concat_channels(Parts(vec![x(), other, x()])),
        B::concat_channels(Parts(vec![x()])),
    ]
}

const NAMES: [&str; 9] = ["pool", "pool's gradient", "double", "double's gradient", "slice", "pad", "add", "concat", "concat of one"];

fn check(case: Case) {
    let on_cube = all::<CubeBackend>(&case, cube);
    for ((name, gpu), cpu) in NAMES.into_iter().zip(on_cube).zip(all::<Flex>(&case, flex)) {
        let (gpu, cpu) = (numbers(gpu), cpu.into_f32());
        let same = |(a, b): (&f32, &f32)| a == b || a.is_nan() && b.is_nan();
        assert!(gpu.len() == cpu.len() && gpu.iter().zip(&cpu).all(same), "{case:?} {name}: {gpu:?} for {cpu:?}");
    }
}

/// Of every byte, of gray, colour and what lies between, in planes that end within a word, and in one launch.
#[test]
fn images_of_bytes_are_those_of_the_cpu() {
    if !on_each_device("planes::images_of_bytes_are_those_of_the_cpu") {
        return;
    }
    for (shape @ [n, own, h, w], channels) in
        [([1, 1, 16, 16], 3), ([3, 1, 5, 7], 3), ([2, 3, 3, 5], 3), ([2, 2, 4, 9], 5), ([2, 3, 1, 1], 1)]
    {
        let bytes: Vec<u8> = (0..n * own * h * w).map(|i| (i * 37 % 256) as u8).collect();
        let made = |device: &Device| images(&bytes, shape, channels, device);
        let [ours, theirs] = [Device::vulkan(DeviceKind::DefaultDevice), Device::flex()].map(|device| made(&device));
        assert_eq!(ours.dims(), [n, channels, h, w]);
        let [ours, theirs] = [ours, theirs].map(|images| images.try_into_vec_as::<f32>().unwrap());
        assert!(ours == theirs && theirs.iter().any(|v| *v != 0.0), "{shape:?}: {ours:?} for {theirs:?}");
    }
    let launched = trace(|| images(&[9; 128], [2, 1, 8, 8], 3, &Device::vulkan(DeviceKind::DefaultDevice)));
    assert_ours(&launched, &[("of_bytes_kernel", 1)]);
}

#[test]
fn agrees_with_the_cpu() {
    if !on_each_device("planes::agrees_with_the_cpu") {
        return;
    }
    let shapes = (1usize..=3, 1usize..=9, 1usize..=40, 1usize..=40).prop_map(|(n, c, h, w)| [n, c, h, w]);
    let orders = || prop::sample::select(ORDERS.to_vec());
    let any = (shapes, orders(), orders(), 0usize..4, any::<bool>(), 0u64..1000);
    cases(40, any, |(shape, x, dy, k, nan, stream)| check(Case { shape, x, dy, kernel: 2 * k + 1, nan, stream }));
    for order in ORDERS {
        for shape in [[1, 1, 1, 1], [1, 7, 1, 1], [3, 5, 1, 9], [2, 3, 8, 1], [2, 70, 3, 5], [1, 2, 130, 67]] {
            check(Case { shape, x: order, dy: order, kernel: 5, nan: false, stream: 5 });
        }
    }
}

/// Of few numbers and of many, in any order, and of f16, without Burn's own sums, which tune themselves.
#[test]
fn sums_of_channels() {
    if !on_each_device("planes::sums_of_channels") {
        return;
    }
    for (i, shape @ [n, c, h, w]) in [[1, 1, 1, 3], [1, 5, 1, 1], [2, 3, 5, 7], [3, 70, 9, 8], [1, 4, 130, 67]].into_iter().enumerate() {
        for order in ORDERS {
            let any = |len: usize| pattern(i as u64, len);
            let theirs = Flex::bias_grad(image::<Flex>(order, shape, any, flex), Maybe::None).into_f32();
            let of = |x| numbers(CubeBackend::bias_grad(x, Maybe::None));
            let ours = of(image::<CubeBackend>(order, shape, any, cube));
            assert!(ours.iter().all(|v| v.is_finite()), "{shape:?} {order:?}: {ours:?}");
            let far =
                |a: &[f32], b: &[f32]| a.iter().zip(b).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / ((n * h * w) as f32).sqrt();
            assert!(ours.len() == c && far(&ours, &theirs) < 1e-6, "{shape:?} {order:?}: {ours:?} for {theirs:?}");
            if CubeBackend::supports_dtype(&device(), DType::F16) {
                let mut half = of(CubeBackend::float_cast(image::<CubeBackend>(order, shape, any, cube), FloatDType::F16));
                half.iter_mut().for_each(|sum| *sum *= HALF_GRADIENTS);
                assert!(
                    half.len() == c && half.iter().all(|v| v.is_finite()) && far(&half, &theirs) < 1e-3,
                    "{shape:?} {order:?} in f16: {half:?} for {theirs:?}"
                );
            }
        }
        let all = numbers(CubeBackend::total(cube(TensorData::new(pattern(1, n * c * h * w), [n * c * h * w]))));
        let theirs: f64 = pattern(1, n * c * h * w).into_iter().map(f64::from).sum();
        assert!((f64::from(all[0]) - theirs).abs() < 1e-6 * ((n * c * h * w) as f64).sqrt(), "{shape:?}: {all:?} for {theirs}");
    }
    let launched = trace(|| CubeBackend::bias_grad(cube(TensorData::new(pattern(1, 960), [2, 3, 10, 16])), Maybe::None));
    assert_ours(&launched, &[("channel_parts_kernel", 1), ("total_kernel", 1)]);
    let launched = trace(|| CubeBackend::total(cube(TensorData::new(vec![1.0f32, 2.0, 3.0], [3]))));
    assert_ours(&launched, &[("channel_parts_kernel", 1)]);
}

/// A constant plane: every window's first maximum is its first pixel.
#[test]
fn ties_go_to_the_first() {
    if !on_each_device("planes::ties_go_to_the_first") {
        return;
    }
    let ones = || cube(TensorData::new(vec![1.0f32; 12], [1, 1, 3, 4]));
    let dx = numbers(CubeBackend::max_pool_same_grad(ones(), ones(), 3));
    assert_eq!(dx, [4.0, 2.0, 2.0, 0.0, 2.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

/// What comes out lies in memory as what goes in.
#[test]
fn keeps_the_order() {
    if !on_each_device("planes::keeps_the_order") {
        return;
    }
    for (order, is_last) in [(Order::Contiguous, false), (Order::ChannelsLast, true)] {
        for (name, y) in
            NAMES.iter().zip(all::<CubeBackend>(&Case { shape: [2, 5, 6, 7], x: order, dy: order, kernel: 3, nan: false, stream: 1 }, cube))
        {
            assert_eq!(y.meta.strides()[1] == 1, is_last, "{name} of {order:?}: {:?}", y.meta.strides());
        }
    }
}

/// One launch each, two to pooling's gradient, one to a concatenation; none to a slice that memory can be cut at.
#[test]
fn launches_our_kernels() {
    if !on_each_device("planes::launches_our_kernels") {
        return;
    }
    let x = || cube(data(1, [2, 5, 6, 8]));
    let launched = trace(|| {
        CubeBackend::concat_channels(Parts(vec![x(), x(), x()]));
        CubeBackend::slice_channels(x(), 1, 3);
        CubeBackend::pad_channels(x(), 1, 9);
        CubeBackend::add_to_channels(x(), x(), 0);
        CubeBackend::max_pool_same(x(), 5);
        CubeBackend::max_pool_same_grad(x(), x(), 5);
        CubeBackend::double(x());
        CubeBackend::double_grad(x());
    });
    let once = ["pad_kernel", "max_pool_kernel", "first_maximum_kernel", "max_pool_grad_kernel", "double_kernel", "double_grad_kernel"];
    // Memory is cut where the device's alignment allows it: then a slice is a view.
    let plane = 4 * x().meta.strides()[1] as u64;
    let cut = usize::from(!plane.is_multiple_of(device().client().properties().memory.alignment));
    assert_ours(
        &launched,
        &[&once.map(|name| (name, 1))[..], &[("join_kernel", 1), ("add_runs_kernel", 1), ("extract_kernel", cut)]].concat(),
    );
    let aligned = cube(data(1, [2, 4, 16, 16]));
    assert_ours(&trace(|| CubeBackend::slice_channels(aligned, 1, 2)), &[]);
}

/// To half of the channels: they and what is added are read, and they are written; all are copied before if another has them too.
#[test]
fn only_what_is_added_to_is_moved() {
    if !on_each_device("planes::only_what_is_added_to_is_moved") {
        return;
    }
    let part = cube(data(3, [2, 2, 6, 8]));
    for copied in [0, 1] {
        let whole = cube(data(4, [2, 4, 6, 8]));
        let other = whole.clone();
        let (before, of_another) = (numbers(whole.clone()), (copied == 1).then(|| other.clone()));
        drop(other);
        let (sum, counted) = counted(|| CubeBackend::add_to_channels(whole, part.clone(), 2));
        assert_eq!(counted.launches.values().sum::<usize>(), 1 + copied, "{:?}", counted.launches);
        assert_eq!(counted.work["add_runs_kernel"].bytes, 3 * 4 * (2 * 2 * 6 * 8));
        assert!(of_another.is_none_or(|other| numbers(other) == before && numbers(sum) != before), "what another reads was written to");
    }
}

/// A sum of two is a launch of Burn's, however they lie in memory, that reads both and writes as much: it is told of, which other kernels of Burn's are not.
#[test]
fn sums_are_counted() {
    if !on_each_device("planes::sums_are_counted") {
        return;
    }
    let shape = [2, 5, 6, 8];
    for order in ORDERS {
        let (a, b) = (image::<CubeBackend>(order, shape, |len| pattern(1, len), cube), cube(data(2, shape)));
        let counted = counted(|| CubeBackend::add(a, b)).1;
        let sum = Done { launches: 1, bytes: 3 * 4 * (2 * 5 * 6 * 8), ..Done::default() };
        assert_eq!((counted.launches.len(), counted.unknown.len(), counted.work), (1, 0, Work::from([("sum of two", sum)])), "{order:?}");
    }
    let x = || cube(data(1, shape));
    let doubled = || CubeBackend::float_mul_scalar(x(), Scalar::Float(2.0));
    let one = counted(doubled).1;
    assert!(one.work.is_empty() && one.launches.len() == 1 && one.unknown == one.launches, "{one:?}");
    // What is launched while another watches is told of there: the next launch is not.
    let one = counted(|| {
        most_at_launches(|| 0, || CubeBackend::add(x(), x()));
        doubled()
    });
    assert!(one.1.launches.len() == 1 && one.1.unknown == one.1.launches, "{:?}", one.1);
}
