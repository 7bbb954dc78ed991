//! The pieces of training the probe runs on the GPU and on the CPU, and how their numbers are compared.
//!
//! Each check is one function of a device that returns numbers, so that both sides run the same lines. The shapes are YOLOv8n's kinds
//! (stem 3x3 stride 2, bottleneck 3x3 stride 1, 1x1), small because a software adapter needs seconds to tune each new one. 1x1 with
//! 104 -> 208 channels and odd matrix sizes are here because drivers have got exactly those wrong (burn issues 5626 and 4355).

use crate::Stage;
use burn::tensor::{Device, Tensor, TensorData, activation::relu, module::conv2d, ops::ConvOptions};

/// Largest error allowed, relative to the largest magnitude of the CPU's result: f32 kernels differ by the order of summation (1e-6),
/// a wrong kernel by far more.
pub(crate) const TOLERANCE: f64 = 1e-3;

/// One comparison of the probe.
pub(crate) struct Check {
    pub(crate) stage: Stage,
    pub(crate) name: &'static str,
    /// Largest relative error allowed.
    pub(crate) tolerance: f64,
    /// Left out on software adapters, which would spend a minute on it.
    pub(crate) hardware_only: bool,
    /// The numbers, computed on the device given.
    pub(crate) run: fn(&Device) -> Vec<f32>,
}

const fn check(stage: Stage, name: &'static str, run: fn(&Device) -> Vec<f32>) -> Check {
    Check { stage, name, tolerance: TOLERANCE, hardware_only: false, run }
}

/// Every comparison in the order it runs.
pub(crate) const CHECKS: &[Check] = &[
    // A copy has no rounding to forgive.
    Check { stage: Stage::Upload, name: "1 MiB there and back", tolerance: 0.0, hardware_only: false, run: round_trip },
    check(Stage::Matmul, "64x64 . 64x64", |device| matmul(64, 64, 64, device)),
    Check { hardware_only: true, ..check(Stage::Matmul, "257x384 . 384x1152", |device| matmul(257, 384, 1152, device)) },
    check(Stage::Conv, "3x3 s2 3>16 forward", |device| STEM.forward(device)),
    check(Stage::Conv, "3x3 s2 3>16 gradient of x", |device| STEM.gradient(Wrt::Input, device)),
    check(Stage::Conv, "3x3 s2 3>16 gradient of w", |device| STEM.gradient(Wrt::Weight, device)),
    check(Stage::Conv, "3x3 s1 16>16 forward", |device| BOTTLENECK.forward(device)),
    check(Stage::Conv, "3x3 s1 16>16 gradient of x", |device| BOTTLENECK.gradient(Wrt::Input, device)),
    check(Stage::Conv, "3x3 s1 16>16 gradient of w", |device| BOTTLENECK.gradient(Wrt::Weight, device)),
    check(Stage::Conv, "1x1 104>208 forward", |device| POINTWISE.forward(device)),
    check(Stage::Conv, "1x1 104>208 gradient of x", |device| POINTWISE.gradient(Wrt::Input, device)),
    check(Stage::Conv, "1x1 104>208 gradient of w", |device| POINTWISE.gradient(Wrt::Weight, device)),
    check(Stage::Train, "3 steps of SGD", train),
];

const STEM: Conv = Conv { c_in: 3, c_out: 16, kernel: 3, stride: 2, size: 32 };
const BOTTLENECK: Conv = Conv { c_in: 16, c_out: 16, kernel: 3, stride: 1, size: 20 };
const POINTWISE: Conv = Conv { c_in: 104, c_out: 208, kernel: 1, stride: 1, size: 20 };

/// The largest difference of `gpu` from `cpu`, relative to the largest magnitude in `cpu`.
///
/// # Errors
/// A sentence if the lengths differ, if anything is not finite, or if the error is above `tolerance`.
pub(crate) fn compare(gpu: &[f32], cpu: &[f32], tolerance: f64) -> Result<f64, String> {
    if gpu.len() != cpu.len() || cpu.is_empty() {
        return Err(format!("{} numbers came back, {} were expected", gpu.len(), cpu.len()));
    }
    if let Some(at) = gpu.iter().position(|value| !value.is_finite()) {
        return Err(format!("{} at position {at}, the CPU computes {}", gpu[at], cpu[at]));
    }
    let scale = cpu.iter().fold(f64::MIN_POSITIVE, |scale, value| scale.max(f64::from(value.abs())));
    let difference = gpu.iter().zip(cpu).fold(0.0f64, |most, (gpu, cpu)| most.max((f64::from(*gpu) - f64::from(*cpu)).abs()));
    let error = difference / scale;
    if error <= tolerance {
        Ok(error)
    } else {
        Err(format!("wrong numbers: relative error {error:.1e} > {tolerance:.0e} of the CPU's result"))
    }
}

/// Numbers in [-1, 1) from a hash of (stream, index).
fn pattern(stream: u64, len: usize) -> Vec<f32> {
    let value = |index: u64| {
        let mut x = (stream << 32 ^ index).wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len as u64).map(value).collect()
}

fn tensor<const D: usize>(stream: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(pattern(stream, shape.iter().product()), shape), device)
}

/// The child catches the panic of a device that cannot be read; there is no other answer to it.
fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn round_trip(device: &Device) -> Vec<f32> {
    numbers(tensor(1, [1 << 18], device))
}

fn matmul(m: usize, k: usize, n: usize, device: &Device) -> Vec<f32> {
    numbers(tensor(2, [m, k], device).matmul(tensor(3, [k, n], device)))
}

#[derive(Clone, Copy, PartialEq)]
enum Wrt {
    Input,
    Weight,
}

/// A convolution of one image `[1, c_in, size, size]` with "same" padding, no bias.
struct Conv {
    c_in: usize,
    c_out: usize,
    kernel: usize,
    stride: usize,
    size: usize,
}

impl Conv {
    fn input(&self, device: &Device) -> Tensor<4> {
        tensor(4, [1, self.c_in, self.size, self.size], device)
    }

    fn weight(&self, device: &Device) -> Tensor<4> {
        tensor(5, [self.c_out, self.c_in, self.kernel, self.kernel], device)
    }

    fn apply(&self, x: Tensor<4>, w: Tensor<4>) -> Tensor<4> {
        let pad = self.kernel / 2;
        conv2d(x, w, None, ConvOptions::new([self.stride; 2], [pad; 2], [1; 2], 1))
    }

    fn forward(&self, device: &Device) -> Vec<f32> {
        numbers(self.apply(self.input(device), self.weight(device)))
    }

    /// One gradient at a time, of the sum of the outputs weighted by a fixed pattern: each is a kernel of its own.
    fn gradient(&self, wrt: Wrt, device: &Device) -> Vec<f32> {
        let device = &device.clone().autodiff();
        let (mut x, mut w) = (self.input(device), self.weight(device));
        match wrt {
            Wrt::Input => x = x.require_grad(),
            Wrt::Weight => w = w.require_grad(),
        }
        let y = self.apply(x.clone(), w.clone());
        let seed = tensor(6, y.dims(), device);
        let gradients = (y * seed).sum().backward();
        let leaf = if wrt == Wrt::Input { x } else { w };
        leaf.grad(&gradients).map(numbers).unwrap_or_default()
    }
}

/// Three steps of plain SGD on four images: stem convolution, ReLU, mean over the image, linear layer, mean square error.
/// Returns the four losses and the last weights of the linear layer.
fn train(device: &Device) -> Vec<f32> {
    const LR: f32 = 0.1;
    const N: usize = 4;
    let device = &device.clone().autodiff();
    let x = tensor::<4>(9, [N, STEM.c_in, STEM.size, STEM.size], device);
    let target = tensor::<2>(7, [N, 4], device);
    let mut conv = STEM.weight(device);
    let mut linear = tensor::<2>(8, [STEM.c_out, 4], device);
    let mut out = Vec::new();
    for step in 0..=3 {
        (conv, linear) = (conv.autodiff().require_grad(), linear.autodiff().require_grad());
        let features: Tensor<2> = relu(STEM.apply(x.clone(), conv.clone())).mean_dim(3).mean_dim(2).reshape([N, STEM.c_out]);
        let loss = (features.matmul(linear.clone()) - target.clone()).square().mean();
        out.extend(numbers(loss.clone()));
        if step == 3 {
            break;
        }
        let gradients = loss.backward();
        if let (Some(d_conv), Some(d_linear)) = (conv.grad(&gradients), linear.grad(&gradients)) {
            conv = conv.without_autodiff() - d_conv * LR;
            linear = linear.without_autodiff() - d_linear * LR;
        }
    }
    out.extend(numbers(linear));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_is_relative_and_refuses_what_is_not_a_number() {
        assert_eq!(compare(&[1.0, -100.0], &[1.0, -100.0], 0.0), Ok(0.0));
        assert!(compare(&[1.0, -100.05], &[1.0, -100.0], TOLERANCE).unwrap() > 4e-4);
        assert!(compare(&[1.2, -100.0], &[1.0, -100.0], TOLERANCE).unwrap_err().contains("relative error 2.0e-3"));
        assert!(compare(&[f32::NAN], &[1.0], TOLERANCE).unwrap_err().contains("NaN at position 0"));
        assert!(compare(&[1.0], &[1.0, 2.0], TOLERANCE).unwrap_err().contains("1 numbers came back"));
        assert!(compare(&[], &[], TOLERANCE).is_err());
        assert_eq!(compare(&[0.0], &[0.0], TOLERANCE), Ok(0.0));
    }

    #[test]
    fn checks_compute_what_they_say_on_the_cpu() {
        let cpu = Device::flex();
        let lengths = CHECKS.iter().map(|check| (check.run)(&cpu).len()).collect::<Vec<_>>();
        let (stem, bottleneck, point) =
            ((16 * 16 * 16, 3 * 32 * 32, 16 * 27), (16 * 400, 16 * 400, 16 * 144), (208 * 400, 104 * 400, 208 * 104));
        let expected =
            [1 << 18, 64 * 64, 257 * 1152, stem.0, stem.1, stem.2, bottleneck.0, bottleneck.1, bottleneck.2, point.0, point.1, point.2];
        assert_eq!(lengths[..12], expected);
        assert_eq!(lengths[12], 4 + 64);
        assert!(CHECKS.is_sorted_by_key(|check| check.stage));
    }

    /// The gradient of a weighted sum is linear in the input, so a finite difference of any step is exact up to rounding.
    #[test]
    fn gradients_are_those_of_the_forward_pass() {
        let device = Device::flex();
        let weighted = |x: Tensor<4>| {
            let y = BOTTLENECK.apply(x, BOTTLENECK.weight(&device));
            let seed = tensor(6, y.dims(), &device);
            numbers((y * seed).sum())[0]
        };
        let mut moved = pattern(4, 16 * 400);
        moved[777] += 1.0;
        let moved = Tensor::from_data(TensorData::new(moved, [1, 16, 20, 20]), &device);
        let difference = weighted(moved) - weighted(BOTTLENECK.input(&device));
        let gradient = BOTTLENECK.gradient(Wrt::Input, &device)[777];
        assert!((difference - gradient).abs() < 1e-3, "{difference} {gradient}");
    }

    #[test]
    fn three_steps_lower_the_loss() {
        let out = train(&Device::flex());
        assert!(out[3] < out[2] && out[2] < out[1] && out[1] < out[0], "{:?}", &out[..4]);
    }
}
