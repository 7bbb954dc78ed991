//! A device to test on, a convolution to test with, and what the CPU says it should give.
//!
//! The Vulkan loader reads `VK_DRIVER_FILES` when the device is made, so every test runs again in a process of its own that has it set:
//! [`on_each_device`] starts this executable with the test's name as its filter, once for every software device there is.

use bellows_kernels::cube::Counted;
use bellows_kernels::operands::Maybe;
use bellows_kernels::ops::KernelOps;
use bellows_kernels::planes::Parts;
use bellows_kernels::{ConvConfig, Lowering};
use burn::backend::ops::{ActivationOps, FloatTensorOps, ModuleOps};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::TensorData;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use burn_flex::{Flex, FlexTensor};
use cubecl::device::{WgpuBackend, WgpuDevice, WgpuDeviceKind};
use proptest::prelude::prop;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use std::env;
use std::ffi::OsStr;
use std::process::Command;
use std::time::Instant;

/// The variables that name an ICD file of a software device, and the scripts that print one.
const DEVICES: [(&str, &str); 2] = [("BELLOWS_SWIFTSHADER", ".ci/swiftshader"), ("BELLOWS_LAVAPIPE", ".ci/lavapipe")];

/// Whether to go on: true in the child. In the parent, runs a child on each device and checks that it passed.
pub(crate) fn on_each_device(name: &str) -> bool {
    on(&DEVICES, name)
}

/// The same on the first device: for what makes many kernels of the matrix product, over each of which lavapipe's compiler sits for seconds. It meets
/// convolutions in `half` and in the whole networks of other crates.
pub(crate) fn on_swiftshader(name: &str) -> bool {
    on(&DEVICES[..1], name)
}

#[expect(clippy::print_stderr, reason = "a test that is skipped must say so")]
fn on(devices: &[(&str, &str)], name: &str) -> bool {
    if env::var_os("BELLOWS_CUBE_CHILD").is_some() {
        return true;
    }
    for (variable, script) in devices {
        match env::var_os(variable) {
            Some(icd) => child(name, &[("VK_DRIVER_FILES", &icd)]),
            None => eprintln!("skipped: set {variable} to a Vulkan ICD file ({script} prints one)"),
        }
    }
    false
}

/// Runs the test `name` in a process with these variables.
#[expect(clippy::print_stderr, reason = "what the child has to say")]
pub(crate) fn child(name: &str, variables: &[(&str, &OsStr)]) {
    let start = Instant::now();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture"]).env("BELLOWS_CUBE_CHILD", "1").envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    // SwiftShader says this of every pointer; it means nothing.
    let errors = text[1].lines().filter(|line| !line.contains("UNREACHABLE")).collect::<Vec<_>>().join("\n");
    assert!(output.status.success() && text[0].contains("1 passed"), "{}: {}\n{errors}", output.status, text[0]);
    let said = |text: &str| text.lines().filter(|line| line.starts_with("> ")).map(|line| format!("\n{line}")).collect::<String>();
    eprintln!("{name}: {:.1} s{}{}", start.elapsed().as_secs_f32(), said(&text[0]), said(&text[1]));
}

/// The device of the tests; all but one of them mean Vulkan.
pub(crate) fn device() -> cubecl::Device {
    let backend = if env::var_os("BELLOWS_CUBE_GL").is_some() { WgpuBackend::Gl } else { WgpuBackend::Vulkan };
    let device = cubecl::Device::Wgpu(WgpuDevice { kind: WgpuDeviceKind::DefaultDevice, backend });
    if env::var_os("BELLOWS_CUBE_UNSHARED").is_some() {
        bellows_kernels::cube::distrust_shared_memory(&device);
    }
    device
}

/// Checks so many cases, the same in every run.
pub(crate) fn cases<S: Strategy>(count: u32, strategy: S, check: impl Fn(S::Value)) {
    cases_from(1, count, strategy, check);
}

/// The same, others for another seed.
pub(crate) fn cases_from<S: Strategy>(seed: u64, count: u32, strategy: S, check: impl Fn(S::Value)) {
    let config = Config { cases: count, failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..Config::default() };
    let checked = TestRunner::new(config).run(&strategy, |case| {
        check(case);
        Ok(())
    });
    checked.unwrap();
}

/// How the numbers of an image tensor lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Contiguous,
    /// Channels side by side, as Burn's own convolutions return them.
    ChannelsLast,
    /// Columns before rows, which no even step describes.
    Swapped,
    /// The middle channels of a larger tensor.
    Sliced,
    /// One image for all, of step 0.
    Expanded,
}

pub(crate) const ORDERS: [Order; 5] = [Order::Contiguous, Order::ChannelsLast, Order::Swapped, Order::Sliced, Order::Expanded];

/// The same tensor on both backends, made by `B`'s views of what `upload` puts there.
pub(crate) fn image<B: Backend>(
    order: Order,
    [n, c, h, w]: [usize; 4],
    values: impl Fn(usize) -> Vec<f32>,
    upload: impl Fn(TensorData) -> B::FloatTensorPrimitive,
) -> B::FloatTensorPrimitive {
    let filled = |shape: [usize; 4]| upload(TensorData::new(values(shape.iter().product()), shape));
    match order {
        Order::Contiguous => filled([n, c, h, w]),
        Order::ChannelsLast => B::float_permute(filled([n, h, w, c]), &[0, 3, 1, 2]),
        Order::Swapped => B::float_swap_dims(filled([n, c, w, h]), 2, 3),
        Order::Sliced => B::float_slice(filled([n, c + 3, h, w]), &[(0..n).into(), (2..c + 2).into()]),
        Order::Expanded => B::float_expand(filled([1, c, h, w]), [n, c, h, w].into()),
    }
}

/// A convolution: x `[n, ci, h, w]`, w `[co, ci/g, k, k]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) x: [usize; 4],
    pub(crate) co: usize,
    pub(crate) k: usize,
    pub(crate) config: ConvConfig,
}

pub(crate) fn case(x: [usize; 4], co: usize, k: usize, stride: usize, padding: usize) -> Case {
    Case { x, co, k, config: ConvConfig::new(stride, padding, Lowering::Gemm) }
}

/// Kernel, stride and padding.
pub(crate) type Window = (usize, usize, usize);

pub(crate) fn any_window() -> impl Strategy<Value = Window> {
    (prop::sample::select(vec![1usize, 3, 5]), 1usize..=3, 0usize..=2)
}

/// A convolution with such a window, of at most `work` numbers by taps, and the bytes that the parts of its weight gradient may take.
pub(crate) fn any_convolution(work: usize, window: impl Strategy<Value = Window>) -> impl Strategy<Value = (Case, usize)> {
    let sizes = [1usize..=5, 1..=130, 1..=130, 1..=70, 1..=70];
    (sizes, window, 0..5usize, 1usize..200_000).prop_map(move |(mut sizes, (k, stride, padding), first, workspace)| {
        // A software device has no time for all of them at once; which one stays long is drawn too.
        for i in (0..5).map(|i| (first + i) % 5) {
            while sizes.iter().product::<usize>() * k * k > work && sizes[i] > 1 {
                sizes[i] /= 2;
            }
        }
        let [n, ci, co, h, w] = sizes;
        (case([n, ci, h.max(k), w.max(k)], co, k, stride, padding), workspace)
    })
}

/// Numbers in [-1, 1) from a hash.
pub(crate) fn pattern(stream: u64, len: usize) -> Vec<f32> {
    let value = |index: u64| {
        let mut x = (stream << 32 ^ index).wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len as u64).map(value).collect()
}

pub(crate) fn data<const D: usize>(stream: u64, shape: [usize; D]) -> TensorData {
    TensorData::new(pattern(stream, shape.iter().product()), shape)
}

pub(crate) fn cube(data: TensorData) -> CubeTensor {
    CubeBackend::float_from_data(data, &device())
}

pub(crate) fn flex(data: TensorData) -> FlexTensor {
    Flex::float_from_data(data, &Default::default())
}

/// The same in f64, which our kernels leave to Burn's own operations: what a formula of ours is compared with is not of ours.
pub(crate) fn flex64(data: TensorData) -> FlexTensor {
    flex(data.convert::<f64>())
}

/// Waits until the device has computed all: a process that ends while a software device still computes may crash.
pub(crate) fn settle() {
    cubecl::future::block_on(device().client().sync()).unwrap();
}

/// What `work` returns, and what the device does meanwhile, which is done then.
pub(crate) fn counted<T>(work: impl FnOnce() -> T) -> (T, Counted) {
    let counted = Counted::of(work);
    settle();
    counted
}

pub(crate) fn numbers(tensor: CubeTensor) -> Vec<f32> {
    burn_cubecl::ops::into_data_sync(tensor).iter::<f32>().collect()
}

/// The gradient of a convolution's x, in one part.
pub(crate) fn data_grad(dy: CubeTensor, w: CubeTensor, input: [usize; 2], config: ConvConfig) -> CubeTensor {
    let channels = vec![w.shape()[1] * config.groups];
    CubeBackend::conv_data_grad(dy, w, channels, input, config).0.remove(0)
}

/// The gradient of a convolution's weight, of x in one part.
pub(crate) fn weight_grad(x: CubeTensor, dy: CubeTensor, kernel: [usize; 2], config: ConvConfig) -> CubeTensor {
    CubeBackend::conv_weight_grad(Parts(vec![x]), dy, Maybe::None, kernel, config)
}

impl Case {
    pub(crate) fn w(&self) -> TensorData {
        data(2, [self.co, self.x[1] / self.config.groups, self.k, self.k])
    }

    pub(crate) fn x(&self) -> TensorData {
        data(1, self.x)
    }

    pub(crate) fn bias(&self) -> TensorData {
        data(4, [self.co])
    }

    pub(crate) fn dy(&self) -> TensorData {
        let ConvConfig { stride, padding, dilation, .. } = self.config;
        let [h, w] = [0, 1].map(|i| (self.x[2 + i] + 2 * padding[i] - dilation[i] * (self.k - 1) - 1) / stride[i] + 1);
        data(3, [self.x[0], self.co, h, w])
    }

    pub(crate) fn input(&self) -> [usize; 2] {
        [self.x[2], self.x[3]]
    }

    /// y, silu(y), dx and dw on the device.
    pub(crate) fn on_cube(&self) -> [CubeTensor; 4] {
        let (x, w, b, dy) = (cube(self.x()), cube(self.w()), cube(self.bias()), cube(self.dy()));
        [
            CubeBackend::conv_forward(x.clone(), w.clone(), Some(b.clone()).into(), self.config),
            CubeBackend::conv_silu(x.clone(), w.clone(), Some(b).into(), self.config),
            data_grad(dy.clone(), w, self.input(), self.config),
            weight_grad(x, dy, [self.k; 2], self.config),
        ]
    }

    /// The same from Burn's own operations on the CPU, in f64.
    pub(crate) fn on_flex(&self) -> [FlexTensor; 4] {
        let [x, w, b, dy] = [self.x(), self.w(), self.bias(), self.dy()].map(flex64);
        let options = self.config.to_burn();
        let y = Flex::conv2d(x.clone(), w.clone(), Some(b), options.clone());
        let silu = Flex::float_mul(y.clone(), Flex::sigmoid(y.clone()));
        let dx = Flex::conv2d_x_backward(x.clone(), w.clone(), dy.clone(), options.clone());
        [y, silu, dx, Flex::conv2d_weight_backward(x, w, dy, options)]
    }

    /// The largest error of the four, relative to the largest number of each.
    pub(crate) fn error(&self) -> f32 {
        let mut worst = 0.0f32;
        for (pass, (gpu, cpu)) in ["y", "silu", "dx", "dw"].into_iter().zip(self.on_cube().into_iter().zip(self.on_flex())) {
            assert_eq!(gpu.shape(), cpu.shape(), "{self:?} {pass}");
            let cpu = cpu.into_f32();
            let error = relative(&numbers(gpu), &cpu);
            assert!(error <= 1e-5, "{self:?} {pass}: relative error {error:.1e}");
            worst = worst.max(error);
        }
        worst
    }
}

pub(crate) trait Numbers {
    fn into_f32(self) -> Vec<f32>;
}

impl Numbers for FlexTensor {
    fn into_f32(self) -> Vec<f32> {
        self.into_data().iter::<f32>().collect()
    }
}

pub(crate) fn relative(gpu: &[f32], cpu: &[f32]) -> f32 {
    assert!(gpu.len() == cpu.len() && gpu.iter().chain(cpu).all(|number| number.is_finite()));
    let scale = cpu.iter().fold(f32::MIN_POSITIVE, |scale, number| scale.max(number.abs()));
    gpu.iter().zip(cpu).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / scale
}
