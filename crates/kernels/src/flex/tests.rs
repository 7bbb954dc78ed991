//! Our operations against Burn's own on Flex, through the public functions: values and gradients.

use burn::tensor::activation::sigmoid;
use burn::tensor::module::{batch_norm_train, conv2d as burn_conv2d};
use burn::tensor::{Device, Tensor, TensorData};
use proptest::prelude::*;

use crate::cpu::reference::{self, greatest};
use crate::{BatchNormed, ConvConfig, Lowering, NormStep, batch_norm_silu, conv2d, conv2d_silu};

fn noise<const D: usize>(seed: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(reference::noise(seed, shape.iter().product()), shape), device)
}

fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.try_to_vec_as().unwrap()
}

/// Largest difference over the root mean square of the second; infinite if either has what is no number.
fn distance(ours: &[f32], theirs: &[f32]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let rms = (theirs.iter().map(|&t| f64::from(t).powi(2)).sum::<f64>() / theirs.len() as f64).sqrt();
    greatest(ours.iter().zip(theirs).map(|(o, t)| f64::from((o - t).abs()) / (rms + 1e-6)))
}

/// Values and the gradients of `Σ y weights` with respect to every input.
fn grads<const N: usize>(inputs: [Tensor<4>; N], f: impl Fn([Tensor<4>; N]) -> Tensor<4>) -> Vec<Vec<f32>> {
    let inputs = inputs.map(Tensor::require_grad);
    let y = f(inputs.clone());
    let grads = (y.clone() * noise(9, y.dims(), &y.device())).sum().backward();
    std::iter::once(host(y)).chain(inputs.map(|t| host(t.grad(&grads).unwrap()))).collect()
}

/// How the numbers of `[N, C, H, W]` lie in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Contiguous,
    ChannelsLast,
    /// Columns before rows.
    Swapped,
    /// The middle of a larger tensor, in channels and rows.
    Sliced,
    /// One image for all, of step 0.
    Expanded,
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![
        2 => Just(Order::Contiguous),
        1 => Just(Order::ChannelsLast),
        1 => Just(Order::Swapped),
        1 => Just(Order::Sliced),
        1 => Just(Order::Expanded),
    ]
}

fn image(order: Order, seed: u64, [n, c, h, w]: [usize; 4], device: &Device) -> Tensor<4> {
    match order {
        Order::Contiguous => noise(seed, [n, c, h, w], device),
        Order::ChannelsLast => noise(seed, [n, h, w, c], device).permute([0, 3, 1, 2]),
        Order::Swapped => noise(seed, [n, c, w, h], device).swap_dims(2, 3),
        Order::Sliced => noise(seed, [n, c + 3, h + 2, w], device).slice([0..n, 1..c + 1, 2..h + 2]),
        Order::Expanded => noise(seed, [1, c, h, w], device).expand([n, c, h, w]),
    }
}

/// Halves sizes, from the `first` one on and the next only when that is 1, until `work` of them is at most `most`: long ones are kept.
fn bounded<const N: usize>(mut sizes: [usize; N], first: usize, most: usize, work: impl Fn(&[usize; N]) -> usize) -> [usize; N] {
    for i in 0..N {
        let at = (first + i) % N;
        while work(&sizes) > most && sizes[at] > 1 {
            sizes[at] /= 2;
        }
    }
    sizes
}

#[derive(Clone, Debug)]
struct Case {
    batch: usize,
    ci: usize,
    co: usize,
    size: [usize; 2],
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
    groups: usize,
    lowering: Lowering,
    x: Order,
    /// Whether the weight and the output's gradient are transposed views.
    swapped: bool,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> {
    // What our kernels leave to Burn is drawn now and then.
    let rarely_two = || prop_oneof![15 => Just(1usize), 1 => Just(2)];
    let ours = prop::sample::select(vec![Lowering::Auto, Lowering::Winograd, Lowering::Implicit, Lowering::Bf16]);
    let lowering = prop_oneof![15 => ours, 1 => prop::sample::select(vec![Lowering::Direct, Lowering::Gemm])];
    let channels = (1usize..=130, 1usize..=130, rarely_two());
    let shape = (1usize..=4, 1usize..=70, 1usize..=70, prop_oneof![Just(1usize), Just(3), Just(5)]);
    let step = (1usize..3, 0usize..3, rarely_two());
    let kind = (lowering, order(), any::<bool>(), 0u64..1000, 0usize..5);
    (channels, shape, step, kind).prop_map(|((ci, co, groups), (batch, h, w, kernel), (stride, padding, dilation), kind)| {
        let (lowering, x, swapped, seed, first) = kind;
        let work = |[n, ci, co, h, w]: &[usize; 5]| n * ci * co * h * w * kernel * kernel;
        let [batch, ci, co, h, w] = bounded([batch, ci, co, h, w], first, 30_000_000, work);
        let even = |channels: usize| channels.next_multiple_of(groups);
        // Large enough for one output.
        let least = dilation * (kernel - 1) + 1;
        let size = [h.max(least), w.max(least)];
        Case { batch, ci: even(ci), co: even(co), size, kernel, stride, padding, dilation, groups, lowering, x, swapped, seed }
    })
}

impl Case {
    fn config(&self) -> ConvConfig {
        ConvConfig { dilation: [self.dilation; 2], groups: self.groups, ..ConvConfig::new(self.stride, self.padding, self.lowering) }
    }

    /// x, weight, bias.
    fn inputs(&self, device: &Device) -> [Tensor<4>; 3] {
        let x = image(self.x, self.seed, [self.batch, self.ci, self.size[0], self.size[1]], device);
        let (ci, kernel) = (self.ci / self.groups, self.kernel);
        let weight = if self.swapped {
            noise(self.seed + 1, [ci, self.co, kernel, kernel], device).swap_dims(0, 1)
        } else {
            noise(self.seed + 1, [self.co, ci, kernel, kernel], device)
        };
        [x, weight, noise(self.seed + 2, [1, self.co, 1, 1], device)]
    }

    /// The output in an order that makes its gradient what the case asks for.
    fn turned(&self, y: Tensor<4>) -> Tensor<4> {
        if self.swapped { y.swap_dims(2, 3) } else { y }
    }
}

fn flat(bias: Tensor<4>) -> Tensor<1> {
    bias.flatten(0, 3)
}

proptest! {
    #![proptest_config(crate::test_cases(64))]
    #[test]
    fn convolution_and_its_gradients_are_burns(case in case()) {
        let (device, config) = (Device::flex().autodiff(), case.config());
        let tolerance = if case.lowering == Lowering::Bf16 { 4e-2 } else { 2e-5 };
        let ours = grads(case.inputs(&device), |[x, w, b]| case.turned(conv2d(x, w, Some(flat(b)), config)));
        let theirs = grads(case.inputs(&device), |[x, w, b]| case.turned(burn_conv2d(x, w, Some(flat(b)), config.to_burn())));
        for (what, (o, t)) in ["y", "dx", "dw", "db"].into_iter().zip(ours.iter().zip(&theirs)) {
            prop_assert!(distance(o, t) < tolerance, "{what}: {}", distance(o, t));
        }
        let [x, w, b] = case.inputs(&Device::flex());
        let y = burn_conv2d(x.clone(), w.clone(), Some(flat(b.clone())), config.to_burn());
        let silu = y.clone() * sigmoid(y.clone());
        prop_assert!(distance(&host(conv2d_silu(x.clone(), w.clone(), Some(flat(b)), config)), &host(silu)) < tolerance);
        let plain = burn_conv2d(x.clone(), w.clone(), None, config.to_burn());
        prop_assert!(distance(&host(conv2d(x, w, None, config)), &host(plain)) < tolerance);
    }

    #[test]
    fn norm_and_its_gradients_are_burns(
        n in 1usize..=4, c in 1usize..=130, h in 1usize..=70, w in 1usize..=70, first in 0usize..4,
        act: bool, order in order(), swapped: bool, seed in 0u64..1000,
    ) {
        let shape = bounded([n, c, h, w], first, 200_000, |sizes| sizes.iter().product());
        let (device, c) = (Device::flex().autodiff(), shape[1]);
        let inputs = || [image(order, seed, shape, &device), noise(seed + 1, [1, c, 1, 1], &device), noise(seed + 2, [1, c, 1, 1], &device)];
        let turned = |y: Tensor<4>| if swapped { y.swap_dims(2, 3) } else { y };
        let ours = grads(inputs(), |[x, g, b]| turned(normed(x, flat(g), flat(b), act).output));
        let theirs = grads(inputs(), |[x, g, b]| {
            let y = batch_norm_train(x, flat(g), flat(b), 1e-3).output;
            turned(if act { y.clone() * sigmoid(y) } else { y })
        });
        // With few samples dx is a difference of nearly equal numbers, whose rms says nothing: compare with dy's.
        let scale = |t: &[f32]| t.iter().fold(1.0f32, |m, v| m.max(v.abs()));
        for (what, (o, t)) in ["y", "dx", "dgamma", "dbeta"].into_iter().zip(ours.iter().zip(&theirs)) {
            let most = 3e-5 * scale(t);
            for (a, b) in o.iter().zip(t) {
                prop_assert!((a - b).abs() < most, "{what}: {a} {b}");
            }
        }
        let [x, g, b] = inputs();
        let y = normed(x.clone(), flat(g.clone()), flat(b.clone()), act);
        let burn = batch_norm_train(x, flat(g), flat(b), 1e-3);
        let ([mean, variance], unbias) = (y.running.map(host), NormStep::unbias(shape));
        prop_assert!(mean.iter().zip(host(burn.mean)).all(|(a, b)| (a - b).abs() < 2e-6));
        prop_assert!(variance.iter().zip(host(burn.variance.mul_scalar(unbias))).all(|(a, b)| (a - b).abs() < 2e-5));
    }
}

/// Normalised and activated; the running statistics, of which nothing is kept, become the batch's.
fn normed(x: Tensor<4>, gamma: Tensor<1>, beta: Tensor<1>, silu: bool) -> BatchNormed {
    let running = [gamma.clone(), beta.clone()].map(|like| like.detach());
    batch_norm_silu(x, gamma, beta, running, NormStep { epsilon: 1e-3, silu, momentum: 1.0 }, None)
}

/// The derivative of `Σ y weights` along a random direction, by central differences.
#[test]
fn gradients_are_finite_differences() {
    let device = Device::flex().autodiff();
    let (x, w) = (noise::<4>(1, [2, 9, 7, 6], &device), noise::<4>(2, [10, 9, 3, 3], &device));
    let (gamma, beta) = (noise::<4>(3, [1, 10, 1, 1], &device), noise::<4>(4, [1, 10, 1, 1], &device));
    let f = |[x, w, g, b]: [Tensor<4>; 4]| {
        let y = conv2d(x, w, None, ConvConfig::new(1, 1, Lowering::Auto));
        normed(y, flat(g), flat(b), true).output
    };
    let inputs = [x, w, gamma, beta];
    let analytic = grads(inputs.clone(), f);
    let value = |inputs: [Tensor<4>; 4]| -> f64 {
        let y = f(inputs);
        let weights = host(noise::<4>(9, y.dims(), &y.device()));
        host(y).into_iter().zip(weights).map(|(y, w)| f64::from(y) * f64::from(w)).sum()
    };
    for (i, input) in inputs.iter().enumerate() {
        let direction = noise::<4>(20 + i as u64, input.dims(), &device);
        let step = 1e-2;
        let moved = |by: f64| {
            let mut inputs = inputs.clone();
            inputs[i] = input.clone() + direction.clone().mul_scalar(by);
            value(inputs)
        };
        let numeric = (moved(step) - moved(-step)) / (2.0 * step);
        let slope: f64 = analytic[i + 1].iter().zip(host(direction)).map(|(g, d)| f64::from(*g) * f64::from(d)).sum();
        assert!((numeric - slope).abs() < 2e-2 * slope.abs().max(1.0), "input {i}: {slope}, by differences {numeric}");
    }
}

#[test]
fn an_input_without_gradient_gets_none_and_two_runs_agree() {
    let device = Device::flex().autodiff();
    let run = || {
        let x = noise::<4>(1, [2, 3, 32, 30], &device);
        let w = noise::<4>(2, [16, 3, 3, 3], &device).require_grad();
        let y = conv2d(x.clone(), w.clone(), None, ConvConfig::new(2, 1, Lowering::Auto));
        let grads = y.clone().sum().backward();
        assert!(x.grad(&grads).is_none());
        (host(y), host(w.grad(&grads).unwrap()))
    };
    assert_eq!(run(), run());
}

#[test]
fn checkpointing_changes_nothing() {
    let run = |device: Device| {
        let x = noise::<4>(1, [2, 8, 12, 12], &device);
        let w = noise::<4>(2, [8, 8, 3, 3], &device);
        let g = noise::<4>(3, [1, 8, 1, 1], &device);
        grads([x, w, g], |[x, w, g]| {
            let y = conv2d(x.clone() * 2.0, w, None, ConvConfig::new(1, 1, Lowering::Auto));
            x + normed(y, flat(g.clone()), flat(g), true).output
        })
    };
    let device = Device::flex().autodiff();
    assert_eq!(run(device.clone()), run(device.gradient_checkpointing()));
}
