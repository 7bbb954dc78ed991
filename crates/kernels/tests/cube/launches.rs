//! What is launched, and how much memory is in use when it is: CubeCL tells an observer of every kernel before it runs.

use crate::support::{self, Case, case, cube, device, on_swiftshader, settle};
use bellows_kernels::cube::{Launches, launches, most_at_launches, set_workspace_bytes};
use bellows_kernels::ops::KernelOps;
use bellows_kernels::{ConvConfig, Lowering, NormStep, add, batch_norm_silu, conv2d, conv2d_for_norm, set_keeps};
use burn::tensor::{Device, DeviceKind, Distribution, Tensor};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

/// The kernels that `work` launches, and how often.
pub(crate) fn trace<T>(work: impl FnOnce() -> T) -> Launches {
    let launched = launches(work).1;
    settle();
    launched
}

/// Checks that these kernels of ours were launched so often, and nothing else.
pub(crate) fn assert_ours(launched: &Launches, expected: &[(&str, usize)]) {
    for (name, count) in expected {
        let ours = |(kernel, _): &(&&str, &usize)| kernel.contains("bellows_kernels") && kernel.contains(name);
        assert_eq!(launched.iter().filter(ours).map(|(_, count)| count).sum::<usize>(), *count, "{name} in {launched:?}");
    }
    assert_eq!(launched.values().sum::<usize>(), expected.iter().map(|(_, count)| count).sum::<usize>(), "{launched:?}");
}

/// Any of the backend's convolutions, direct or not.
fn is_convolution(kernel: &str) -> bool {
    !kernel.contains("bellows_kernels") && kernel.to_lowercase().contains("conv")
}

/// With `gemm` no convolution kernel of the backend is launched, in any pass, whatever the shape; without, one is.
#[test]
fn gemm_launches_no_convolution() {
    if !on_swiftshader("launches::gemm_launches_no_convolution") {
        return;
    }
    let stem = case([1, 3, 16, 16], 8, 3, 2, 1);
    let dilated = Case { config: ConvConfig { dilation: [2, 2], groups: 2, ..stem.config }, ..case([1, 4, 12, 12], 8, 3, 1, 2) };
    let ours = trace(|| [stem, case([1, 8, 8, 8], 8, 3, 1, 1), case([1, 8, 8, 8], 16, 1, 1, 0), dilated].map(|case| case.on_cube()));
    for (kernel, count) in &ours {
        eprintln!("> gemm {count} x {kernel}");
        assert!(!is_convolution(kernel), "{kernel}");
        assert!(kernel.contains("bellows_kernels"), "a kernel that is not ours: {kernel}");
    }
    // A pass is a launch, and forward runs twice; of the gradient of the input the residues of the stride are one together.
    let products: usize = ours.iter().filter(|(kernel, _)| kernel.contains("matmul")).map(|(_, count)| count).sum();
    assert_eq!(products, 4 * (2 + 1 + 1), "{ours:?}");

    let direct = ConvConfig { lowering: Lowering::Direct, ..stem.config };
    let (x, w) = (cube(stem.x()), cube(stem.w()));
    let theirs = trace(|| CubeBackend::conv_forward(x, w, None.into(), direct));
    for (kernel, count) in theirs.iter().filter(|(kernel, _)| is_convolution(kernel)) {
        eprintln!("> direct {count} x {kernel}");
    }
    assert!(theirs.keys().any(|kernel| is_convolution(kernel)), "{theirs:?}");
}

/// The same of a step through Burn's tensors and autodiff, with the bias and its gradient.
#[test]
fn training_with_gemm_launches_no_convolution() {
    if !on_swiftshader("launches::training_with_gemm_launches_no_convolution") {
        return;
    }
    let device = Device::vulkan(DeviceKind::DefaultDevice).autodiff();
    let random = |shape: [usize; 4]| Tensor::<4>::random(shape, Distribution::Default, &device).require_grad();
    let (x, w) = (random([1, 3, 16, 16]), random([8, 3, 3, 3]));
    let bias = Tensor::<1>::ones([8], &device).require_grad();
    let config = ConvConfig::new(2, 1, Lowering::Gemm);
    let launched = trace(|| {
        let gradients = conv2d(x.clone(), w.clone(), Some(bias.clone()), config).sum().backward();
        assert!(x.grad(&gradients).is_some() && w.grad(&gradients).is_some() && bias.grad(&gradients).is_some());
    });
    assert!(!launched.keys().any(|kernel| is_convolution(kernel)), "{launched:?}");
    let products = |launched: &Launches| launched.iter().filter(|(k, _)| k.contains("matmul")).map(|(_, n)| n).sum::<usize>();
    assert_eq!(products(&launched), 1 + 1 + 1, "{launched:?}");

    // An image has no gradient, and none is computed to be thrown away.
    let image = Tensor::<4>::random([1, 3, 16, 16], Distribution::Default, &device);
    let launched = trace(|| conv2d(image, w.clone(), None, config).sum().backward());
    assert_eq!(products(&launched), 1 + 1, "{launched:?}");
}

/// What is kept is not made again, and every gradient has the bits that it has where it is: an image of more than 768 KB that is normalised, a sum with another, and
/// a convolution of both side by side.
#[test]
fn what_is_kept_is_not_made_again() {
    if !on_swiftshader("launches::what_is_kept_is_not_made_again") {
        return;
    }
    let device = Device::vulkan(DeviceKind::DefaultDevice).autodiff();
    let made_up = |stream, shape: [usize; 4]| Tensor::<4>::from_data(support::data(stream, shape), &device).require_grad();
    let (x, w, mix) = (made_up(1, [1, 8, 160, 160]), made_up(2, [8, 8, 1, 1]), made_up(3, [8, 16, 1, 1]));
    let channels = |value: f32| Tensor::<1>::full([8], value, &device);
    let config = ConvConfig::new(1, 0, Lowering::Gemm);
    let step = NormStep { epsilon: 1e-3, silu: true, momentum: 0.1 };
    let learnt = |value: f32| channels(value).require_grad();
    let normed = |y, onto| batch_norm_silu(y, learnt(1.0), learnt(0.0), [channels(0.0), channels(1.0)], step, onto).output;
    let run = |keeps: bool| {
        assert_eq!(set_keeps(keeps), !keeps);
        let mut found = Vec::new();
        let launched = trace(|| {
            let y = normed(conv2d_for_norm(vec![x.clone()], w.clone(), config), None);
            let sum = add(y.clone(), x.clone());
            let onto = normed(conv2d_for_norm(vec![sum], w.clone(), config), Some(y.clone()));
            let grads = normed(conv2d_for_norm(vec![y, onto], mix.clone(), config), None).sum().backward();
            found = [&x, &w, &mix].map(|leaf| leaf.grad(&grads).unwrap().into_data().try_into_vec_as::<f32>().unwrap()).into();
        });
        let of = |name: &str| launched.iter().filter(|(kernel, _)| kernel.contains(name)).map(|(_, count)| count).sum::<usize>();
        (found, [of("norm_output_kernel"), of("AddOp")])
    };
    set_keeps(true);
    let (again, kept) = (run(false), run(true));
    // Sums of gradients are made either way.
    assert_eq!((again.1[0], kept.1[0], again.1[1] - kept.1[1]), (5, 3, 1), "{:?} {:?}", again.1, kept.1);
    assert!(again.0 == kept.0 && again.0.iter().flatten().any(|&v| v != 0.0));
}

pub(crate) fn in_use(client: &cubecl::client::Client) -> u64 {
    client.memory_report(cubecl::MemoryScope::Device).usage().bytes_in_use
}

/// The most memory in use at any launch of `work`.
pub(crate) fn most_in_use<T>(work: impl FnOnce() -> T) -> u64 {
    let client = device().client();
    let most = most_at_launches(move || in_use(&client), work).1;
    settle();
    most
}

/// No pass writes columns: beyond x, w, dy and the result there are the parts of dw, within their limit, and nothing else.
#[test]
fn nothing_but_parts_takes_memory() {
    /// A small workspace, and that of `--conv-workspace-mb` unless it says otherwise, which is more than the eighth of x and dy that parts have at most.
    const LIMITS: [u64; 2] = [20_000, 16 << 20];
    /// What rounds a piece of memory up, some times.
    const SLACK: u64 = 4096;
    if !on_swiftshader("launches::nothing_but_parts_takes_memory") {
        return;
    }
    let case = case([2, 16, 40, 40], 16, 3, 1, 1);
    let (x, w, dy) = (cube(case.x()), cube(case.w()), cube(case.dy()));
    let (image, weights) = (2 * 16 * 1600 * 4, 16 * 16 * 9 * 4);
    let forward = || CubeBackend::conv_forward(x.clone(), w.clone(), None.into(), case.config);
    let data_grad = || support::data_grad(dy.clone(), w.clone(), case.input(), case.config);
    let weight_grad = || support::weight_grad(x.clone(), dy.clone(), [3; 2], case.config);
    let passes: [(&str, &dyn Fn() -> CubeTensor, u64, u64); 3] = [
        ("forward", &forward, image, 0),
        ("data gradient", &data_grad, image, 0),
        ("weight gradient", &weight_grad, weights, 2 * image / 8),
    ];
    // x, w and dy are on the device from here on.
    let inputs = in_use(&device().client());
    assert!(inputs >= 2 * image + weights, "{inputs}");
    for limit in LIMITS {
        set_workspace_bytes(limit as usize);
        for (name, pass, result, parts) in passes {
            let most = most_in_use(pass) - inputs - result;
            eprintln!("> {name}, {limit}: {most} B beside {result} B of the result");
            assert!(most <= parts.min(limit) + SLACK, "{name}, {limit}: {most} B");
        }
    }
}
