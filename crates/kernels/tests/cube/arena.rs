//! Arenas on the device: what lies where, launches, and what is not copied.

use crate::launches::{assert_ours, trace};
use crate::support::{cube, numbers, on_each_device, on_swiftshader, pattern};
use bellows_kernels::arena::ArenaOps;
use bellows_kernels::planes::Parts;
use bellows_kernels::{
    ConvConfig, LowRank, Lowering, Map, NormStep, Places, Precision, Weight, arena, arena_parts, batch_norm_silu, conv2d, conv2d_for_norm,
    in_place, maps, set_default_lowering,
};
use burn::tensor::{Device, DeviceKind, Shape, Tensor, TensorData};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

fn parts(lengths: &[usize]) -> Vec<CubeTensor> {
    lengths.iter().enumerate().map(|(i, &len)| cube(TensorData::new(pattern(i as u64, len), [len]))).collect()
}

/// Thirty tensors of uneven lengths: a launch for as many as the device binds beside the result and the launch's numbers (6 on SwiftShader, 14 at
/// most), none to take them apart and to put them together again.
#[test]
fn tensors_come_back_from_their_places() {
    if !on_each_device("arena::tensors_come_back_from_their_places") {
        return;
    }
    let lengths: Vec<usize> = (0..30).map(|i| [1, 64, 1000, 63, 40_001][i % 5] + i / 5).collect();
    let places = Places::of(lengths.iter().copied());
    let mut whole = None;
    let launched = trace(|| whole = Some(CubeBackend::arena(Parts(parts(&lengths)), places.clone())));
    let whole: CubeTensor = whole.unwrap();
    let bound = whole.client.properties().hardware.max_bindings as usize - 2;
    assert_ours(&launched, &[("join_kernel", 30_usize.div_ceil(bound.min(14)))]);
    let values = numbers(whole.clone());
    for (i, &(start, len)) in places.all.iter().enumerate() {
        assert_eq!(values[start..start + len], pattern(i as u64, len), "tensor {i}");
        let next = places.all.get(i + 1).map_or(values.len(), |place| place.0);
        assert!(values[start + len..next].iter().all(|&v| v == 0.0), "zeros behind tensor {i}");
    }
    let mut again = None;
    let launched = trace(|| again = Some(CubeBackend::arena(CubeBackend::arena_parts(whole.clone(), places.clone()), places.clone())));
    assert_ours(&launched, &[]);
    assert_eq!(numbers(again.unwrap()), values);
    let back = CubeBackend::arena_parts(whole, places.clone()).0;
    for (i, (part, &len)) in back.into_iter().zip(&lengths).enumerate() {
        assert_eq!(numbers(part), pattern(i as u64, len), "tensor {i}");
    }
}

/// A tensor in longer memory, as CUDA and ROCm give to one of a single axis: what lies behind it is not put into the gap.
#[test]
fn memory_behind_a_tensor_is_not_copied() {
    if !on_each_device("arena::memory_behind_a_tensor_is_not_copied") {
        return;
    }
    let mut values = pattern(0, 10);
    values.resize(64, f32::NAN);
    let longer = cube(TensorData::new(values, [64]));
    let mut tensors = parts(&[10, 3]);
    tensors[0] = CubeTensor::new_contiguous(longer.client, longer.device, Shape::new([10]), longer.handle, longer.dtype);
    let places = Places::of([10, 3]);
    let gap = vec![0.0; places.all[1].0 - 10];
    assert_eq!(numbers(CubeBackend::arena(Parts(tensors), places)), [pattern(0, 10), gap, pattern(1, 3)].concat());
}

/// Views that lie elsewhere are put together anew.
#[test]
fn views_in_another_order_are_copied() {
    if !on_each_device("arena::views_in_another_order_are_copied") {
        return;
    }
    let places = Places::of([128, 128]);
    let whole = CubeBackend::arena(Parts(parts(&[128, 128])), places.clone());
    let mut views = CubeBackend::arena_parts(whole, places.clone()).0;
    views.reverse();
    let swapped = numbers(CubeBackend::arena(Parts(views), places));
    assert_eq!(swapped, [pattern(1, 128), pattern(0, 128)].concat());
}

/// Tensors of these lengths in an arena of the device.
fn flat(lengths: &[usize], device: &Device) -> (Vec<Tensor<1>>, Places) {
    let places = Places::of(lengths.iter().copied());
    let part = |(i, &len): (usize, &usize)| Tensor::from_data(TensorData::new(pattern(30 + i as u64, len), [len]), device);
    let whole = arena(lengths.iter().enumerate().map(part).collect(), &places);
    (arena_parts(whole, &places), places)
}

fn host(tensors: &[Tensor<1>]) -> Vec<Vec<f32>> {
    tensors.iter().map(|tensor| tensor.clone().try_to_vec_as().unwrap()).collect()
}

/// A convolution with normalisation, one with a bias, and two maps with branches: the gradients of all, the running statistics, and, put together, what that launches.
fn in_arenas(device: &Device, placed: bool, twice: bool) -> (Vec<Vec<f32>>, usize) {
    const LENGTHS: [usize; 9] = [8 * 3 * 9, 8, 8, 5 * 8, 5, 4 * 20, 150 * 4, 4 * 20, 7 * 4];
    let ((values, places), (running, of_running)) = (flat(&LENGTHS, device), flat(&[8, 8], device));
    let pass = || {
        let leaves: Vec<Tensor<1>> = values.iter().map(|part| part.clone().autodiff().require_grad()).collect();
        let leaf = |i: usize| leaves[i].clone();
        let made = |stream: u64, shape: [usize; 4]| {
            Tensor::<4>::from_data(TensorData::new(pattern(stream, shape.iter().product()), shape), device)
        };
        let mut moved = running.clone();
        let mut loss = Tensor::<1>::zeros([1], &device.clone().autodiff());
        for image in 0..1 + u64::from(twice) {
            let x = made(1 + image, [2, 3, 9, 7]).autodiff();
            let y = conv2d_for_norm(vec![x], leaf(0).reshape([8, 3, 3, 3]), ConvConfig::new(1, 1, Lowering::Gemm));
            let step = NormStep { epsilon: 1e-3, silu: true, momentum: 0.03 };
            let y = batch_norm_silu(y, leaf(1), leaf(2), [moved[0].clone(), moved[1].clone()], step, None);
            moved = y.running.map(Tensor::without_autodiff).to_vec();
            let y = conv2d(y.output, leaf(3).reshape([5, 8, 1, 1]), Some(leaf(4)), ConvConfig::new(1, 0, Lowering::Gemm));
            loss = loss + (y * made(5 + image, [2, 5, 9, 7]).autodiff()).sum();
        }
        let map = |at: usize, out: usize| {
            let weight = Weight::Dense(made(7, [1, 1, out, 20]).reshape([out, 20]).autodiff());
            let (a, b) = (leaf(at).reshape([4, 20]), leaf(at + 1).reshape([out, 4]));
            Map { weight, bias: None, branch: Some(LowRank { a, b, scaling: 0.5 }) }
        };
        let x = made(8, [1, 1, 6, 20]).reshape([6, 20]).autodiff();
        let [y, z] = maps(x, [map(5, 150), map(7, 7)], None, false, Precision::F32);
        let grads = (loss + y.square().sum() + z.square().sum()).backward();
        let grads: Vec<Tensor<1>> = leaves.iter().map(|leaf| leaf.grad(&grads).unwrap()).collect();
        (grads, moved)
    };
    let arenas = if placed { vec![(values.clone(), &places), (running.clone(), &of_running)] } else { Vec::new() };
    let (grads, moved) = in_place(arenas, pass);
    let values = [host(&grads), host(&moved)].concat();
    let mut put = Vec::new();
    let launched = trace(|| put = vec![arena(grads.clone(), &places), arena(moved.clone(), &of_running)]);
    // All of it, with zeros between.
    let sum = |tensors: &[Tensor<1>]| host(tensors).concat().iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
    assert_eq!(sum(&put[..1]), sum(&grads));
    assert_eq!(sum(&put[1..]), sum(&moved));
    (values, launched.values().sum())
}

/// What a pass makes of what lies in an arena lies in an arena, too, with the same bits; but not a second gradient, nor what it is added to.
#[test]
fn gradients_and_statistics_are_written_to_their_places() {
    if !on_swiftshader("arena::gradients_and_statistics_are_written_to_their_places") {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    let device = Device::vulkan(DeviceKind::DefaultDevice);
    let (apart, copies) = in_arenas(&device, false, false);
    let (placed, none) = in_arenas(&device, true, false);
    assert!(copies >= 2 && none == 0, "{copies} launches, and {none}");
    assert_eq!(placed, apart);
    let ((apart, _), (placed, copies)) = (in_arenas(&device, false, true), in_arenas(&device, true, true));
    assert!(copies > 0);
    assert_eq!(placed, apart);
}
