//! The pieces of training the probe runs on the GPU and on the CPU, and how their numbers are compared.
//!
//! Each check is one function of a device and a lowering that returns numbers, so that both sides run the same lines. The shapes are
//! YOLOv8n's kinds (stem 3x3 stride 2, bottleneck 3x3 stride 1, 1x1), small because a software adapter needs seconds to tune each new
//! one. 1x1 with 104 -> 208 channels and odd matrix sizes are here because drivers have got exactly those wrong (burn issues 5626 and
//! 4355). The CPU always computes Burn's own convolution, so that a mistake in our kernels' common lines cannot agree with itself.

use crate::Stage;
use crate::plan::Path;
use bellows_kernels::{ConvConfig, Lowering, conv2d};
use burn::tensor::{Device, Tensor, TensorData, activation::relu};

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
    run: Run,
}

impl Check {
    const fn new(stage: Stage, name: &'static str, run: Run) -> Self {
        Self { stage, name, tolerance: TOLERANCE, hardware_only: false, run }
    }

    /// Both sides' numbers: `device`'s by `path`, and the CPU's.
    pub(crate) fn run(&self, device: &Device, path: Path) -> (Vec<f32>, Vec<f32>) {
        ((self.run)(device, path.lowering()), (self.run)(&Device::flex(), Lowering::Direct))
    }
}

/// Every comparison of `path` in the order it runs.
pub(crate) fn checks(path: Path) -> Vec<Check> {
    let (conv, train) = match path {
        Path::Gemm => (Stage::ConvGemm, Stage::TrainGemm),
        Path::Direct => (Stage::ConvDirect, Stage::TrainDirect),
    };
    // A copy has no rounding to forgive.
    let mut all = vec![Check { tolerance: 0.0, ..Check::new(Stage::Upload, "1 MiB there and back", |device, _| round_trip(device)) }];
    all.extend(CONVOLUTIONS.iter().map(|(name, run)| Check::new(conv, name, *run)));
    all.push(Check::new(train, "3 steps of SGD", three_steps));
    if path == Path::Direct {
        all.push(Check::new(Stage::Matmul, "64x64 . 64x64", |device, _| matmul(64, 64, 64, device)));
        let large = Check::new(Stage::Matmul, "257x384 . 384x1152", |device, _| matmul(257, 384, 1152, device));
        all.push(Check { hardware_only: true, ..large });
    }
    all
}

type Run = fn(&Device, Lowering) -> Vec<f32>;

const CONVOLUTIONS: [(&str, Run); 9] = [
    ("3x3 s2 3>16 forward", |device, by| STEM.forward(device, by)),
    ("3x3 s2 3>16 gradient of x", |device, by| STEM.gradient(Wrt::Input, device, by)),
    ("3x3 s2 3>16 gradient of w", |device, by| STEM.gradient(Wrt::Weight, device, by)),
    ("3x3 s1 16>16 forward", |device, by| BOTTLENECK.forward(device, by)),
    ("3x3 s1 16>16 gradient of x", |device, by| BOTTLENECK.gradient(Wrt::Input, device, by)),
    ("3x3 s1 16>16 gradient of w", |device, by| BOTTLENECK.gradient(Wrt::Weight, device, by)),
    ("1x1 104>208 forward", |device, by| POINTWISE.forward(device, by)),
    ("1x1 104>208 gradient of x", |device, by| POINTWISE.gradient(Wrt::Input, device, by)),
    ("1x1 104>208 gradient of w", |device, by| POINTWISE.gradient(Wrt::Weight, device, by)),
];

const STEM: Conv = Conv { c_in: 3, c_out: 16, kernel: 3, stride: 2, size: 32 };
const BOTTLENECK: Conv = Conv { c_in: 16, c_out: 16, kernel: 3, stride: 1, size: 20 };
const POINTWISE: Conv = Conv { c_in: 104, c_out: 208, kernel: 1, stride: 1, size: 20 };
const HEAD: Conv = Conv { c_in: 16, c_out: 4, kernel: 1, stride: 1, size: 1 };

/// The largest difference of `gpu` from `cpu`, relative to the largest magnitude in `cpu`.
///
/// # Errors
/// A sentence if the lengths differ, if anything is not finite, or if the error is above `tolerance`.
pub(crate) fn compare(gpu: &[f32], cpu: &[f32], tolerance: f64) -> Result<f64, String> {
    if gpu.len() != cpu.len() || cpu.is_empty() {
        return Err(format!("{} numbers came back, {} were expected", gpu.len(), cpu.len()));
    }
    if let Some(at) = gpu.iter().zip(cpu).position(|(gpu, cpu)| !gpu.is_finite() || !cpu.is_finite()) {
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

    fn apply(&self, x: Tensor<4>, w: Tensor<4>, by: Lowering) -> Tensor<4> {
        conv2d(x, w, None, ConvConfig::new(self.stride, self.kernel / 2, by))
    }

    fn forward(&self, device: &Device, by: Lowering) -> Vec<f32> {
        numbers(self.apply(self.input(device), self.weight(device), by))
    }

    /// One gradient at a time, of the sum of the outputs weighted by a fixed pattern: each is a kernel of its own.
    fn gradient(&self, wrt: Wrt, device: &Device, by: Lowering) -> Vec<f32> {
        let device = &device.clone().autodiff();
        let (mut x, mut w) = (self.input(device), self.weight(device));
        match wrt {
            Wrt::Input => x = x.require_grad(),
            Wrt::Weight => w = w.require_grad(),
        }
        let y = self.apply(x.clone(), w.clone(), by);
        let seed = tensor(6, y.dims(), device);
        let gradients = (y * seed).sum().backward();
        let leaf = if wrt == Wrt::Input { x } else { w };
        leaf.grad(&gradients).map(numbers).unwrap_or_default()
    }
}

/// Three steps of plain SGD on four images: stem convolution, ReLU, mean over the image, linear layer, mean square error.
/// Returns the four losses and the last weights of the linear layer, which is a 1x1 convolution as in YOLOv8's head.
fn three_steps(device: &Device, by: Lowering) -> Vec<f32> {
    const LR: f32 = 0.1;
    const N: usize = 4;
    let device = &device.clone().autodiff();
    let x = tensor(9, [N, STEM.c_in, STEM.size, STEM.size], device);
    let target = tensor::<4>(7, [N, HEAD.c_out, 1, 1], device);
    let (mut stem, mut head) = (STEM.weight(device), HEAD.weight(device));
    let mut out = Vec::new();
    for step in 0..=3 {
        (stem, head) = (stem.autodiff().require_grad(), head.autodiff().require_grad());
        let features = relu(STEM.apply(x.clone(), stem.clone(), by)).mean_dim(3).mean_dim(2);
        let loss = (HEAD.apply(features, head.clone(), by) - target.clone()).square().mean();
        out.extend(numbers(loss.clone()));
        if step == 3 {
            break;
        }
        let gradients = loss.backward();
        if let (Some(d_stem), Some(d_head)) = (stem.grad(&gradients), head.grad(&gradients)) {
            stem = stem.without_autodiff() - d_stem * LR;
            head = head.without_autodiff() - d_head * LR;
        }
    }
    out.extend(numbers(head));
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
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        for odd in odd {
            assert!(compare(&[1.0, 2.0], &[1.0, odd], TOLERANCE).unwrap_err().contains("position 1, the CPU computes"), "{odd}");
        }
        assert!(compare(&[1.0], &[1.0, 2.0], TOLERANCE).unwrap_err().contains("1 numbers came back"));
        assert!(compare(&[], &[], TOLERANCE).is_err());
        assert_eq!(compare(&[0.0], &[0.0], TOLERANCE), Ok(0.0));
    }

    #[test]
    fn checks_compute_what_they_say_and_agree_on_the_cpu() {
        let (stem, bottleneck, point) =
            ([16 * 16 * 16, 3 * 32 * 32, 16 * 27], [16 * 400, 16 * 400, 16 * 144], [208 * 400, 104 * 400, 208 * 104]);
        let gemm = [&[1 << 18], &stem[..], &bottleneck, &point, &[4 + 64]].concat();
        let direct = [&gemm[..], &[64 * 64, 257 * 1152]].concat();
        for (path, expected) in [(Path::Gemm, gemm), (Path::Direct, direct)] {
            let checks = checks(path);
            assert!(checks.is_sorted_by_key(|check| check.stage));
            let mut lengths = Vec::new();
            for check in &checks {
                let (ours, reference) = check.run(&Device::flex(), path);
                compare(&ours, &reference, check.tolerance).unwrap();
                lengths.push(ours.len());
            }
            assert_eq!(lengths, expected);
        }
    }

    /// The gradient of a weighted sum is linear in the input, so a finite difference of any step is exact up to rounding.
    #[test]
    fn gradients_are_those_of_the_forward_pass() {
        let device = Device::flex();
        let weighted = |x: Tensor<4>| {
            let y = BOTTLENECK.apply(x, BOTTLENECK.weight(&device), Lowering::Gemm);
            let seed = tensor(6, y.dims(), &device);
            numbers((y * seed).sum())[0]
        };
        let mut moved = pattern(4, 16 * 400);
        moved[777] += 1.0;
        let moved = Tensor::from_data(TensorData::new(moved, [1, 16, 20, 20]), &device);
        let difference = weighted(moved) - weighted(BOTTLENECK.input(&device));
        let gradient = BOTTLENECK.gradient(Wrt::Input, &device, Lowering::Gemm)[777];
        assert!((difference - gradient).abs() < 1e-3, "{difference} {gradient}");
    }

    #[test]
    fn three_steps_lower_the_loss() {
        let out = three_steps(&Device::flex(), Lowering::Gemm);
        assert!(out[3] < out[2] && out[2] < out[1] && out[1] < out[0], "{:?}", &out[..4]);
    }
}
