//! Batch normalisation and SiLU on the device against Burn's own operations on the CPU in f64: values, gradients, launches.

use crate::launches::{assert_ours, trace};
use crate::support::{Numbers, ORDERS, Order, cases, cube, device, flex64, image, numbers, on_each_device, pattern};
use bellows_kernels::NormStep;
use bellows_kernels::operands::NormChannels;
use bellows_kernels::ops::KernelOps;
use burn::tensor::TensorData;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use burn_flex::Flex;
use proptest::prelude::*;
use std::cell::Cell;

const EPSILON: f64 = 1e-3;

#[derive(Clone, Copy, Debug)]
struct Case {
    shape: [usize; 4],
    x: Order,
    dy: Order,
    offset: f32,
    silu: bool,
    stream: u64,
}

impl Case {
    fn x_values(&self, len: usize) -> Vec<f32> {
        pattern(self.stream, len).into_iter().map(|v| self.offset + 2.0 * v).collect()
    }

    fn channels(&self, stream: u64) -> TensorData {
        TensorData::new(pattern(self.stream + stream, self.shape[1]), [self.shape[1]])
    }

    fn on<B: KernelOps>(&self, upload: impl Fn(TensorData) -> B::FloatTensorPrimitive) -> [B::FloatTensorPrimitive; 9] {
        let x = image::<B>(self.x, self.shape, |len| self.x_values(len), &upload);
        let dy = image::<B>(self.dy, self.shape, |len| pattern(self.stream + 1, len), &upload);
        let (gamma, beta) = (upload(self.channels(2)), upload(self.channels(3)));
        let running = [4, 5].map(|stream| upload(self.channels(stream)));
        let [old_mean, old_variance] = running;
        let step = NormStep { epsilon: EPSILON, silu: self.silu, momentum: 0.3 };
        let running = NormChannels::<B> { mean: old_mean, variance: old_variance, gamma: gamma.clone(), beta: beta.clone() };
        let y = B::norm_act(x.clone(), running, step);
        let channels = NormChannels::<B> { mean: y.mean.clone(), variance: y.variance.clone(), gamma, beta };
        let again = B::norm_act_again(x.clone(), channels.clone(), step);
        let grads = B::norm_act_backward(x, channels, dy, step);
        [y.output, y.mean, y.variance, grads.x, grads.gamma, grads.beta, again, y.running_mean, y.running_variance]
    }

    fn on_cube(&self) -> [CubeTensor; 9] {
        self.on::<CubeBackend>(cube)
    }

    /// The largest error of the nine, in units of what rounding explains.
    fn error(&self) -> f32 {
        let [n, _, h, w] = self.shape;
        let cpu = self.on::<Flex>(flex64).map(Numbers::into_f32);
        let rstd = cpu[2].iter().fold(0.0f32, |most, v| most.max(1.0 / (v + EPSILON as f32).sqrt()));
        let sums = ((n * h * w) as f32).sqrt();
        // What each is made of: with few samples dx, say, is a difference of nearly equal numbers.
        let scales = [1.0, 1.0, 1.0, rstd, sums, sums, 1.0, 1.0, 1.0];
        // x - mean has lost the digits that the mean takes.
        let lost = 1.0 + self.offset.abs();
        let names = ["y", "mean", "variance", "dx", "dgamma", "dbeta", "y again", "running mean", "running variance"];
        let mut worst = 0.0f32;
        for (((name, gpu), cpu), scale) in names.into_iter().zip(self.on_cube()).zip(&cpu).zip(scales) {
            let gpu = numbers(gpu);
            let scale = cpu.iter().fold(scale, |scale, number| scale.max(number.abs())) * lost;
            assert_eq!(gpu.len(), cpu.len(), "{self:?} {name}");
            let error = gpu.iter().zip(cpu).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / scale;
            assert!(error <= 4e-6 && gpu.iter().chain(cpu).all(|number| number.is_finite()), "{self:?} {name}: relative error {error:.1e}");
            worst = worst.max(error);
        }
        worst
    }
}

fn case(shape: [usize; 4], x: Order, dy: Order) -> Case {
    Case { shape, x, dy, offset: 0.0, silu: true, stream: 1 }
}

/// Random shapes and orders in memory, and a few fixed ones: one sample, rows and columns of one pixel, a large plane.
#[test]
fn agrees_with_the_cpu() {
    if !on_each_device("norm::agrees_with_the_cpu") {
        return;
    }
    let shapes = (1usize..=4, 1usize..=130, 1usize..=70, 1usize..=70).prop_map(|(n, c, h, w)| [n, c, h, w]);
    let shapes = shapes.prop_filter("bounded work", |shape| shape.iter().product::<usize>() <= 300_000);
    let orders = || prop::sample::select(ORDERS.to_vec());
    let offsets = prop_oneof![Just(0.0f32), -20.0f32..20.0];
    let any = (shapes, orders(), orders(), offsets, any::<bool>(), 0u64..1000).prop_map(|(shape, x, dy, offset, silu, stream)| Case {
        shape,
        x,
        dy,
        offset,
        silu,
        stream,
    });
    let worst = Cell::new(0.0f32);
    let check = |case: Case| worst.set(worst.get().max(case.error()));
    cases(40, any, check);
    for order in ORDERS {
        for shape in [[1, 1, 1, 1], [1, 7, 1, 1], [3, 5, 1, 9], [2, 3, 8, 1], [4, 130, 3, 5], [1, 2, 257, 301]] {
            check(case(shape, order, order));
        }
    }
    eprintln!("> {}: 70 cases, largest relative error {:.1e}", device().client().name(), worst.get());
}

/// What comes out lies in memory as x does, and a second run has the bits of the first.
#[test]
fn keeps_the_order_and_repeats() {
    if !on_each_device("norm::keeps_the_order_and_repeats") {
        return;
    }
    for order in [Order::Contiguous, Order::ChannelsLast] {
        let case = case([2, 20, 30, 17], order, Order::Contiguous);
        let strides = if order == Order::ChannelsLast { [10_200, 1, 340, 20] } else { [10_200, 510, 17, 1] };
        let [y, _, _, dx, _, _, again, ..] = case.on_cube();
        for tensor in [&y, &dx, &again] {
            assert_eq!(tensor.meta.strides()[..], strides);
        }
        assert_eq!(numbers(y), numbers(again));
        assert_eq!(case.on_cube().map(numbers), case.on_cube().map(numbers));
    }
}

/// Three launches forward, one to make the output again and three backward, all ours.
#[test]
fn launches_seven_kernels() {
    if !on_each_device("norm::launches_seven_kernels") {
        return;
    }
    let case = case([2, 12, 20, 20], Order::Contiguous, Order::ChannelsLast);
    // The views and uploads of the case launch nothing.
    let launched = trace(|| case.on_cube());
    let names = ["norm_moments", "norm_statistics", "norm_gradient_kernel", "norm_gradient_sums", "norm_input_gradient"];
    assert_ours(&launched, &[&names.map(|name| (name, 1))[..], &[("norm_output", 2)]].concat());
}
