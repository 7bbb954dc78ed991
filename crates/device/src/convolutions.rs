//! Convolutions of YOLOv8n's kinds (stem 3x3 stride 2, bottleneck 3x3 stride 1, 1x1), small because a software adapter needs seconds to tune each new
//! one. 1x1 with 104 -> 208 channels is here because drivers have got exactly that wrong (burn issue 5626).

use crate::made::{numbers, tensor};
use bellows_kernels::{ConvConfig, Lowering, conv2d, widen};
use burn::tensor::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

pub(crate) const STEM: Conv = Conv { c_in: 3, c_out: 16, kernel: 3, stride: 2, input: [32; 2] };
pub(crate) const BOTTLENECK: Conv = Conv { c_in: 16, c_out: 16, kernel: 3, stride: 1, input: [20; 2] };
pub(crate) const POINTWISE: Conv = Conv { c_in: 104, c_out: 208, kernel: 1, stride: 1, input: [20; 2] };
/// So many pixels that our product takes its largest blocks.
pub(crate) const WIDE: Conv = Conv { c_in: 64, c_out: 64, kernel: 3, stride: 1, input: [136; 2] };

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Wrt {
    Input,
    Weight,
}

/// A convolution of one image `[1, c_in, height, width]` with "same" padding, no bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Conv {
    /// Channels of the image.
    pub c_in: usize,
    /// Channels of the result.
    pub c_out: usize,
    /// Side of the kernel.
    pub kernel: usize,
    /// Step.
    pub stride: usize,
    /// Height and width of the image.
    pub input: [usize; 2],
}

impl Conv {
    pub(crate) fn input(&self, device: &Device) -> Tensor<4> {
        tensor(4, [1, self.c_in, self.input[0], self.input[1]], device)
    }

    pub(crate) fn weight(&self, device: &Device) -> Tensor<4> {
        tensor(5, [self.c_out, self.c_in, self.kernel, self.kernel], device)
    }

    pub(crate) fn apply(&self, x: Tensor<4>, w: Tensor<4>, by: Lowering) -> Tensor<4> {
        conv2d(x, w, None, ConvConfig::new(self.stride, self.kernel / 2, by))
    }

    /// Of an image in f16 if asked.
    pub(crate) fn forward(&self, device: &Device, by: Lowering, half: bool) -> Vec<f32> {
        let x = self.input(device);
        numbers(self.apply(if half { x.cast(DType::F16) } else { x }, self.weight(device), by))
    }

    /// The gradient of a weighted sum of the output, of an image in f16 if asked.
    pub(crate) fn gradient(&self, wrt: Wrt, device: &Device, by: Lowering, half: bool) -> Vec<f32> {
        let device = &device.clone().autodiff();
        let (mut x, mut w) = (self.input(device), self.weight(device));
        if half {
            x = x.cast(DType::F16);
        }
        match wrt {
            Wrt::Input => x = x.require_grad(),
            Wrt::Weight => w = w.require_grad(),
        }
        let y = self.apply(x.clone(), w.clone(), by);
        // A weight's gradient takes that of an image in f16 for what `widen` has made of it (decision 15).
        let y = if half && wrt == Wrt::Weight { widen(y) } else { y };
        let seed = tensor::<4>(6, y.dims(), device).cast(y.dtype());
        let gradients = (y * seed).sum().backward();
        let leaf = if wrt == Wrt::Input { x } else { w };
        leaf.grad(&gradients).map(numbers).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::pattern;
    use burn::tensor::TensorData;

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
        let gradient = BOTTLENECK.gradient(Wrt::Input, &device, Lowering::Gemm, false)[777];
        assert!((difference - gradient).abs() < 1e-3, "{difference} {gradient}");
    }
}
