//! Convolutions of maps side by side: to the bit as of the image that they make together, in as many launches.

use crate::launches::{assert_ours, trace};
use crate::support::{Order, cube, data, image, numbers, on_each_device, on_swiftshader, pattern};
use bellows_kernels::cube::{set_workspace_bytes, shared_memory_works};
use bellows_kernels::operands::Maybe;
use bellows_kernels::ops::KernelOps;
use bellows_kernels::planes::{Parts, PlaneOps};
use bellows_kernels::{ConvConfig, Lowering};
use burn::backend::TensorMetadata;
use burn::tensor::{DType, TensorData};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

struct Case {
    images: usize,
    channels: Vec<usize>,
    side: usize,
    co: usize,
    k: usize,
    config: ConvConfig,
}

fn case(images: usize, channels: &[usize], side: usize, co: usize, k: usize, stride: usize) -> Case {
    Case { images, channels: channels.to_vec(), side, co, k, config: ConvConfig::new(stride, k / 2, Lowering::Gemm) }
}

impl Case {
    /// One of each order in turn.
    fn maps(&self, upload: fn(TensorData) -> CubeTensor) -> Vec<CubeTensor> {
        let orders = [Order::Contiguous, Order::ChannelsLast, Order::Sliced, Order::Swapped];
        let map = |(i, (&channels, order))| {
            image::<CubeBackend>(order, [self.images, channels, self.side, self.side], |len| pattern(10 + i as u64, len), upload)
        };
        self.channels.iter().zip(orders.into_iter().cycle()).enumerate().map(map).collect()
    }

    fn weight(&self) -> CubeTensor {
        cube(data(2, [self.co, self.channels.iter().sum::<usize>() / self.config.groups, self.k, self.k]))
    }

    /// y, its moments, what the image gets of dy, and dw, where the image is these maps.
    fn results(&self, maps: &[CubeTensor]) -> (CubeTensor, Option<CubeTensor>, Vec<CubeTensor>, CubeTensor) {
        let channels = maps.iter().map(|map| map.shape()[1]).collect();
        let (y, moments) = CubeBackend::conv_joined(Parts(maps.to_vec()), self.weight(), self.config);
        let dy = CubeBackend::slice_channels(y.clone(), 0, self.co);
        let dx = CubeBackend::conv_data_grad(dy.clone(), self.weight(), channels, [self.side; 2], self.config).0;
        let dw = CubeBackend::conv_weight_grad(Parts(maps.to_vec()), dy, Maybe::None, [self.k; 2], self.config);
        (y, moments, dx, dw)
    }

    fn check(&self, upload: fn(TensorData) -> CubeTensor) {
        let maps = self.maps(upload);
        let whole = CubeBackend::concat_channels(Parts(maps.clone()));
        let (apart, joined) = (self.results(&maps), self.results(&[whole]));
        let moments = |moments: Option<CubeTensor>| moments.map(numbers);
        assert!(numbers(apart.0) == numbers(joined.0), "y of {:?}", self.channels);
        assert!(moments(apart.1) == moments(joined.1), "moments of {:?}", self.channels);
        let dx = CubeBackend::concat_channels(Parts(apart.2));
        let [dx, of_joined] = [dx, joined.2.into_iter().next().unwrap()].map(numbers);
        assert!(dx == of_joined && dx.iter().any(|&v| v != dx[0]), "dx of {:?}", self.channels);
        assert!(numbers(apart.3) == numbers(joined.3), "dw of {:?}", self.channels);
    }
}

/// Maps of any channels, in any order in memory, with any window; blocks of as many threads and not; groups that reach over maps.
#[test]
fn as_of_one_image() {
    if !on_swiftshader("side_by_side::as_of_one_image") {
        return;
    }
    let grouped = case(2, &[2, 6], 9, 4, 3, 1);
    let cases = [
        case(2, &[32, 16], 20, 32, 1, 1),
        case(1, &[7, 1, 30], 11, 5, 1, 1),
        case(3, &[5, 18], 8, 20, 3, 1),
        case(2, &[3, 4], 9, 6, 3, 2),
        case(1, &[16, 16, 16, 16, 16], 7, 40, 1, 1),
        // A block of 64 threads beside one of 128.
        case(1, &[16, 64], 20, 16, 1, 1),
        Case { config: ConvConfig { groups: 2, ..grouped.config }, ..grouped },
    ];
    for case in &cases {
        case.check(cube);
    }
    set_workspace_bytes(20_000);
    case(4, &[8, 12], 24, 16, 1, 1).check(cube);
}

/// The same in f16, where there is one.
#[test]
fn as_of_one_image_in_half() {
    if !on_each_device("side_by_side::as_of_one_image_in_half") || !crate::half::has_half() {
        return;
    }
    case(1, &[16, 8], 6, 16, 1, 1).check(crate::half::half);
}

/// A launch to each pass, and one for the sum of parts of a weight's gradient: nothing is joined, cut or put in order.
#[test]
fn a_pass_is_a_launch() {
    if !on_swiftshader("side_by_side::a_pass_is_a_launch") {
        return;
    }
    assert!(shared_memory_works(&crate::support::device()));
    let case = case(2, &[32, 16, 16], 20, 32, 1, 1);
    let channels = case.channels.clone();
    let (maps, w) = (case.channels.iter().zip(10..).map(|(&c, i)| cube(data(i, [2, c, 20, 20]))).collect::<Vec<_>>(), case.weight());
    let dy = cube(data(3, [2, 32, 20, 20]));
    assert_eq!(dy.dtype, DType::F32);
    let forward = trace(|| CubeBackend::conv_joined(Parts(maps.clone()), w.clone(), case.config));
    assert_ours(&forward, &[("matmul_moments_kernel", 1)]);
    let of_input = trace(|| CubeBackend::conv_data_grad(dy.clone(), w, channels, [20; 2], case.config));
    assert_ours(&of_input, &[("matmul_group_kernel", 1)]);
    let of_weight = trace(|| CubeBackend::conv_weight_grad(Parts(maps), dy, Maybe::None, [1; 2], case.config));
    assert_ours(&of_weight, &[("matmul_group_kernel", 1), ("add_parts_kernel", 1)]);
}
