//! What is added where something is written: gradients that meet, and the two ends of a shortcut.

use crate::half::{half, has_half};
use crate::launches::trace;
use crate::support::{Order, counted, cube, data, device, image, numbers, on_each_device, on_swiftshader, pattern, relative};
use bellows_kernels::cube::shared_memory_works;
use bellows_kernels::operands::{Maybe, NormChannels};
use bellows_kernels::ops::KernelOps;
use bellows_kernels::planes::{Parts, PlaneOps};
use bellows_kernels::{ConvConfig, Lowering, NormStep, batch_norm_silu, conv2d, conv2d_for_norm};
use burn::tensor::{Device, DeviceKind, Tensor, TensorData};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

/// Images, channels of the maps, side, channels of the result, kernel, stride.
type Case = (usize, &'static [usize], usize, usize, usize, usize);

const CASES: [Case; 5] =
    [(2, &[8], 12, 16, 3, 1), (1, &[5, 12, 7], 9, 6, 1, 1), (2, &[6, 10], 11, 4, 3, 2), (1, &[4], 7, 3, 1, 3), (1, &[64], 40, 64, 3, 1)];

fn config(&(.., k, stride): &Case) -> ConvConfig {
    ConvConfig::new(stride, k / 2, Lowering::Gemm)
}

/// dy, the weight, and what is held of each map.
fn operands(case: &Case, order: Order, upload: fn(TensorData) -> CubeTensor) -> (CubeTensor, CubeTensor, Vec<CubeTensor>) {
    let &(images, channels, side, co, k, stride) = case;
    let out = (side + k / 2 * 2 - k) / stride + 1;
    let dy = upload(data(1, [images, co, out, out]));
    let held = |(i, &c)| image::<CubeBackend>(order, [images, c, side, side], |len| pattern(7 + i as u64, len), upload);
    (dy, cube(data(2, [co, channels.iter().sum(), k, k])), channels.iter().enumerate().map(held).collect())
}

/// What the maps get beside what those `of` hold.
fn onto(case: &Case, dy: CubeTensor, w: CubeTensor, held: Vec<CubeTensor>, of: Vec<usize>) -> Vec<CubeTensor> {
    let &(_, channels, side, ..) = case;
    CubeBackend::conv_data_grad_onto(dy, w, channels.to_vec(), [side; 2], config(case), Parts(held), of).0
}

/// What each map gets, what is added to it, and the sums of both: added behind, and where the gradient is written.
fn sums(case: &Case, order: Order, upload: fn(TensorData) -> CubeTensor) -> [Vec<Vec<f32>>; 4] {
    let all = |tensors: Vec<CubeTensor>| tensors.into_iter().map(numbers).collect();
    let (dy, w, held) = operands(case, order, upload);
    let alone = onto(case, dy.clone(), w.clone(), Vec::new(), Vec::new());
    let behind = alone.iter().zip(&held).map(|(dx, held)| CubeBackend::add(dx.clone(), held.clone())).collect();
    let numbers = [alone, held.clone(), behind].map(all);
    let of = (0..held.len()).collect();
    let [alone, added, behind] = numbers;
    [alone, added, behind, all(onto(case, dy, w, held, of))]
}

/// To the bit what is added behind: any window, residues of a stride and those that no tap reaches, maps side by side, in any order in memory.
#[test]
fn as_added_behind() {
    if !on_swiftshader("onto::as_added_behind") {
        return;
    }
    for case in &CASES {
        for order in [Order::Contiguous, Order::ChannelsLast, Order::Sliced] {
            let [alone, _, behind, there] = sums(case, order, cube);
            assert!(behind == there && alone != there, "{case:?} {order:?}");
        }
    }
    // To one of three maps.
    let (case, (dy, w, mut held)) = (&CASES[1], operands(&CASES[1], Order::Contiguous, cube));
    let [alone, _, behind, _] = sums(case, Order::Contiguous, cube);
    let one: Vec<_> = onto(case, dy, w, vec![held.remove(1)], vec![1]).into_iter().map(numbers).collect();
    assert!(one == [alone[0].clone(), behind[1].clone(), alone[2].clone()]);
}

/// Of f16 the sum is rounded once, where a gradient was rounded before it was added: a rounding is of at most 2^-11 of what it rounds.
#[test]
fn rounded_once() {
    if !on_each_device("onto::rounded_once") || !has_half() {
        return;
    }
    let [alone, added, behind, there] = sums(&CASES[0], Order::Contiguous, half).map(|maps| maps.concat());
    assert_ne!(behind, there);
    for (((dx, added), behind), there) in alone.into_iter().zip(added).zip(behind).zip(there) {
        // dx is known to a rounding, and the sum to another.
        let exact = f64::from(dx) + f64::from(added);
        let rounding = 2.0f64.powi(-11);
        assert!(
            (f64::from(there) - exact).abs() <= rounding * (f64::from(dx).abs() + f64::from(there).abs()) * 1.001,
            "{there}, {behind} behind"
        );
    }
}

/// In as many launches, and bytes of what is held read besides; in its memory, unless another has it too.
#[test]
fn takes_no_launch_and_no_memory() {
    if !on_each_device("onto::takes_no_launch_and_no_memory") {
        return;
    }
    // Each device is asked once.
    assert!(shared_memory_works(&device()));
    let case = &CASES[0];
    let (dy, w, held) = operands(case, Order::Contiguous, cube);
    let bytes = |held: Vec<CubeTensor>| {
        let of = (0..held.len()).collect();
        let counted = counted(|| onto(case, dy.clone(), w.clone(), held, of)).1;
        assert_eq!(counted.launches.len(), 1, "{:?}", counted.launches);
        counted.work["convolution, gradient of the input"].bytes
    };
    assert_eq!(bytes(held) - bytes(Vec::new()), 4 * 2 * 8 * 12 * 12);
    let (_, _, held) = operands(case, Order::Contiguous, cube);
    let other = held[0].clone();
    let before = numbers(other.clone());
    let dx = onto(case, dy.clone(), w.clone(), held, vec![0]).remove(0);
    assert!(numbers(other) == before && numbers(dx) != before, "what another reads was written to");
}

/// A normalised image is added to another without a launch, and made again so: to the bit as behind it, in any order in memory.
#[test]
fn a_normalised_image() {
    if !on_each_device("onto::a_normalised_image") {
        return;
    }
    let shape = [2, 5, 7, 9];
    let step = NormStep { epsilon: 1e-3, silu: true, momentum: 0.1 };
    let all = |stream| cube(data(stream, [5]));
    let of = |mean, variance| NormChannels::<CubeBackend> { mean, variance, gamma: all(4), beta: all(5) };
    for order in [Order::Contiguous, Order::ChannelsLast, Order::Sliced, Order::Swapped] {
        let [x, onto] = [1, 2].map(|stream| image::<CubeBackend>(order, shape, |len| pattern(stream, len), cube));
        let run = |onto| CubeBackend::norm_act(x.clone(), Maybe::None, of(all(6), all(7)), step, onto);
        let alone = run(Maybe::None);
        let behind = numbers(CubeBackend::add(onto.clone(), alone.output));
        let mut there = None;
        let launched = trace(|| there = Some(run(Maybe::Some(onto.clone()))));
        // Images whose rows lie unevenly are put in order first.
        let copies = |kernel: &str| kernel.contains("contiguous");
        assert!(launched.keys().all(|kernel| kernel.contains("bellows_kernels") || copies(kernel)), "{launched:?}");
        let there = there.unwrap();
        let again = CubeBackend::norm_act_again(x, of(there.mean, there.variance), step, Maybe::Some(onto));
        assert!(numbers(there.output) == behind && numbers(again) == behind, "{order:?}");
    }
}

/// What two convolutions read has its gradients added by the second, and by no launch of their own; what one of them reads twice, by one.
#[test]
fn readers_of_one_image() {
    if !on_swiftshader("onto::readers_of_one_image") {
        return;
    }
    let config = ConvConfig::new(1, 1, Lowering::Gemm);
    let gradient = |device: Device, twice: bool| {
        let device = device.autodiff();
        let made_up = |stream, shape: [usize; 4]| Tensor::<4>::from_data(data(stream, shape), &device);
        let x = made_up(1, [1, 8, 10, 10]).require_grad();
        let image = x.clone() * 2.0;
        let maps = if twice { vec![image.clone(), image.clone()] } else { vec![image.clone()] };
        let (one, other) = (made_up(2, [4, 8, 3, 3]), made_up(3, [4, 8 * maps.len(), 3, 3]));
        let channels = |value: f32| Tensor::<1>::full([4], value, &device);
        let step = NormStep { epsilon: 1e-3, silu: true, momentum: 0.1 };
        let y = conv2d_for_norm(maps, other, config);
        let normed = batch_norm_silu(y, channels(1.0), channels(0.5), [channels(0.0), channels(1.0)], step, None).output;
        let all = conv2d(image, one, None, config) * normed;
        x.grad(&all.sum().backward()).unwrap().into_data().try_into_vec_as::<f32>().unwrap()
    };
    for twice in [false, true] {
        let mut found = Vec::new();
        let launched = trace(|| found = gradient(Device::vulkan(DeviceKind::DefaultDevice), twice));
        let sums: usize = launched.iter().filter(|(kernel, _)| kernel.contains("AddOp")).map(|(_, count)| count).sum();
        assert_eq!(sums, usize::from(twice), "{launched:?}");
        let error = relative(&found, &gradient(Device::flex(), twice));
        assert!(error < 1e-5, "{error}");
    }
}
