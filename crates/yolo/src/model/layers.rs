//! The building blocks of YOLOv8: convolution + batch normalisation + SiLU, the C2f block and the pooling pyramid.
//!
//! Field names are those of the published state dict, so that a parameter's path is its name in a `.pt` file.
//! Batch normalisation keeps PyTorch's conventions (momentum weighs the new value; the running variance is the
//! unbiased one) and uses batch statistics only on an autodiff device and while its `training` flag is set:
//! a frozen layer, and every validation pass, uses the running statistics.

use bellows_kernels::inference::Convolution;
use bellows_kernels::{
    ConvConfig, Convolved, Lowering, NormStep, add, batch_norm_silu, concat, conv2d, conv2d_for_norm, conv2d_silu, default_lowering,
    max_pool_same, slice_channels, upsample2,
};
use burn::module::{Flag, Module, ModuleMapper, Param, RunningState};
use burn::tensor::{Device, Tensor};

/// Added to the variance before its square root.
pub const BN_EPSILON: f64 = 1e-3;
/// Weight of the batch's statistics in the running ones.
pub const BN_MOMENTUM: f64 = 0.03;

/// Square 2-D convolution with "same" padding `k / 2`.
#[derive(Module, Debug)]
pub struct Conv2d {
    /// `[out, in, k, k]`.
    pub weight: Param<Tensor<4>>,
    /// `[out]`; only the last convolution of each head branch has one.
    pub bias: Option<Param<Tensor<1>>>,
    stride: usize,
}

impl Conv2d {
    pub(super) fn new(cin: usize, cout: usize, k: usize, stride: usize, bias: bool, device: &Device) -> Self {
        Self {
            weight: Param::from_tensor(Tensor::zeros([cout, cin, k, k], device)),
            bias: bias.then(|| Param::from_tensor(Tensor::zeros([cout], device))),
            stride,
        }
    }

    /// `[B, in, H, W]` to `[B, out, H / stride, W / stride]`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        conv2d(x, self.weight.val(), self.bias.as_ref().map(Param::val), self.config())
    }

    /// The same of one without bias, to be normalised.
    fn for_norm(&self, x: Tensor<4>) -> Convolved {
        conv2d_for_norm(x, self.weight.val(), self.config())
    }

    fn config(&self) -> ConvConfig {
        ConvConfig::new(self.stride, self.weight.dims()[2] / 2, default_lowering())
    }

    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// Its weights prepared for the processor; none elsewhere.
    pub(super) fn prepare(&self, lowering: Lowering, silu: bool) -> Option<Convolution> {
        let config = ConvConfig { lowering, ..self.config() };
        Convolution::new(self.weight.val(), self.bias.as_ref().map(Param::val), &config, silu)
    }
}

/// Batch normalisation over `[B, C, H, W]`.
#[derive(Module, Debug)]
pub struct BatchNorm2d {
    /// Scale, `[C]`.
    pub weight: Param<Tensor<1>>,
    /// Shift, `[C]`.
    pub bias: Param<Tensor<1>>,
    /// Moving average of the batch means, `[C]`.
    pub running_mean: RunningState<Tensor<1>>,
    /// Moving average of the unbiased batch variances, `[C]`.
    pub running_var: RunningState<Tensor<1>>,
    /// Cleared by freezing: a frozen layer keeps and uses its running statistics.
    pub training: Param<Flag>,
}

impl BatchNorm2d {
    fn new(channels: usize, device: &Device) -> Self {
        Self {
            weight: Param::from_tensor(Tensor::ones([channels], device)),
            bias: Param::from_tensor(Tensor::zeros([channels], device)),
            running_mean: RunningState::new(Tensor::zeros([channels], device)),
            running_var: RunningState::new(Tensor::ones([channels], device)),
            training: Param::from_bool(true),
        }
    }

    fn is_training(&self, x: &Tensor<4>) -> bool {
        x.device().is_autodiff() && self.training.is_enabled()
    }

    /// Normalises with the batch's own statistics, applies SiLU if `act`, and moves the running statistics.
    fn train_forward(&self, x: Convolved, act: bool) -> Tensor<4> {
        let (device, states) = (x.device(), [&self.running_mean, &self.running_var]);
        let running = states.map(|state| state.value_sync().to_device(&device));
        let step = NormStep { epsilon: BN_EPSILON, silu: act, momentum: BN_MOMENTUM };
        let y = batch_norm_silu(x, self.weight.val(), self.bias.val(), running, step);
        for (state, moved) in states.into_iter().zip(y.running) {
            // Not by its `update`, which divides by the number of threads that made one, in a launch of its own.
            state.clone().map(&mut Replace(Some(moved)));
        }
        y.output
    }

    /// The affine map `a x + b` that normalisation with the running statistics is: `(a, b)`, both `[C]`.
    fn affine(&self, device: &Device) -> (Tensor<1>, Tensor<1>) {
        let mean = self.running_mean.value_sync().to_device(device);
        let var = self.running_var.value_sync().to_device(device);
        let a = self.weight.val() / var.add_scalar(BN_EPSILON).sqrt();
        let b = self.bias.val() - mean * a.clone();
        (a, b)
    }
}

/// Puts a value in the place of a tensor's.
struct Replace(Option<Tensor<1>>);

impl ModuleMapper for Replace {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.0.take() {
            Some(value) => param.map(|old| value.reshape(old.shape())),
            None => param,
        }
    }
}

/// Convolution, batch normalisation and SiLU.
#[derive(Module, Debug)]
pub struct Conv {
    /// The convolution, without bias.
    pub conv: Conv2d,
    /// The normalisation of its output; none once it is folded into the convolution.
    pub bn: Option<BatchNorm2d>,
    act: bool,
}

impl Conv {
    pub(super) fn new(cin: usize, cout: usize, k: usize, stride: usize, device: &Device) -> Self {
        Self { conv: Conv2d::new(cin, cout, k, stride, false, device), bn: Some(BatchNorm2d::new(cout, device)), act: true }
    }

    /// Whether SiLU follows.
    pub(crate) fn act(&self) -> bool {
        self.act
    }

    pub(super) fn out_channels(&self) -> usize {
        self.conv.weight.dims()[0]
    }

    /// The same without the activation.
    pub(super) fn without_activation(mut self) -> Self {
        self.act = false;
        self
    }

    /// `[B, in, H, W]` to `[B, out, H / stride, W / stride]`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let Some(bn) = &self.bn else {
            return self.infer(x, self.conv.weight.val(), self.conv.bias.as_ref().map(Param::val));
        };
        if bn.is_training(&x) {
            return bn.train_forward(self.conv.for_norm(x), self.act);
        }
        let (weight, bias) = self.folded(bn, &x.device());
        self.infer(x, weight, Some(bias))
    }

    fn infer(&self, x: Tensor<4>, weight: Tensor<4>, bias: Option<Tensor<1>>) -> Tensor<4> {
        let apply = if self.act { conv2d_silu } else { conv2d };
        apply(x, weight, bias, self.conv.config())
    }

    /// Weight and bias of the one convolution that this and its normalisation are. Scaling the small weight instead of the large output saves
    /// two passes over the output.
    fn folded(&self, bn: &BatchNorm2d, device: &Device) -> (Tensor<4>, Tensor<1>) {
        let (a, b) = bn.affine(device);
        let channels = a.dims()[0];
        (self.conv.weight.val() * a.reshape([channels, 1, 1, 1]), b)
    }

    /// The same with the normalisation by the running statistics folded in, for inference.
    pub(super) fn fuse(&self, device: &Device) -> Self {
        let Some(bn) = &self.bn else { return self.clone() };
        let (weight, bias) = self.folded(bn, device);
        let conv = Conv2d { weight: Param::from_tensor(weight), bias: Some(Param::from_tensor(bias)), stride: self.conv.stride };
        Self { conv, bn: None, act: self.act }
    }
}

/// Two 3x3 convolutions with an optional shortcut around both.
#[derive(Module, Debug)]
pub struct Bottleneck {
    /// First 3x3 convolution.
    pub cv1: Conv,
    /// Second 3x3 convolution.
    pub cv2: Conv,
    shortcut: bool,
}

impl Bottleneck {
    fn new(channels: usize, shortcut: bool, device: &Device) -> Self {
        let conv = || Conv::new(channels, channels, 3, 1, device);
        Self { cv1: conv(), cv2: conv(), shortcut }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let y = self.cv2.forward(self.cv1.forward(x.clone()));
        if self.shortcut { add(x, y) } else { y }
    }

    /// Whether its input is added to its output.
    pub(crate) fn shortcut(&self) -> bool {
        self.shortcut
    }

    fn fuse(&self, device: &Device) -> Self {
        Self { cv1: self.cv1.fuse(device), cv2: self.cv2.fuse(device), shortcut: self.shortcut }
    }
}

/// A 1x1 convolution whose second half feeds a chain of bottlenecks; every intermediate is concatenated and mixed.
#[derive(Module, Debug)]
pub struct C2f {
    /// 1x1 convolution to twice the hidden width.
    pub cv1: Conv,
    /// 1x1 convolution over everything concatenated.
    pub cv2: Conv,
    /// The chain.
    pub m: Vec<Bottleneck>,
}

impl C2f {
    pub(super) fn new(cin: usize, cout: usize, n: usize, shortcut: bool, device: &Device) -> Self {
        let c = cout / 2;
        Self {
            cv1: Conv::new(cin, 2 * c, 1, 1, device),
            cv2: Conv::new((2 + n) * c, cout, 1, 1, device),
            m: (0..n).map(|_| Bottleneck::new(c, shortcut, device)).collect(),
        }
    }

    /// Channels of the chain.
    pub(crate) fn hidden(&self) -> usize {
        self.cv1.conv.weight.dims()[0] / 2
    }

    /// `[B, in, H, W]` to `[B, out, H, W]`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let both = self.cv1.forward(x);
        let c = both.dims()[1] / 2;
        // The two halves enter the concatenation side by side, so only the second is ever cut out.
        let mut last = slice_channels(both.clone(), c, c);
        let mut parts = vec![both];
        for bottleneck in &self.m {
            last = bottleneck.forward(last);
            parts.push(last.clone());
        }
        self.cv2.forward(concat(parts))
    }

    pub(super) fn fuse(&self, device: &Device) -> Self {
        Self { cv1: self.cv1.fuse(device), cv2: self.cv2.fuse(device), m: self.m.iter().map(|m| m.fuse(device)).collect() }
    }
}

/// Spatial pyramid pooling: three 5x5 max-poolings in a row, concatenated with their input.
#[derive(Module, Debug)]
pub struct Sppf {
    /// 1x1 convolution to half the width; without activation in checkpoints of release 8.4 and later.
    pub cv1: Conv,
    /// 1x1 convolution over the four concatenated maps.
    pub cv2: Conv,
}

impl Sppf {
    pub(super) fn new(channels: usize, act: bool, device: &Device) -> Self {
        let cv1 = Conv::new(channels, channels / 2, 1, 1, device);
        let cv1 = if act { cv1 } else { cv1.without_activation() };
        Self { cv1, cv2: Conv::new(channels * 2, channels, 1, 1, device) }
    }

    /// Keeps the shape `[B, C, H, W]`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let x = self.cv1.forward(x);
        let a = max_pool_same(x.clone(), 5);
        let b = max_pool_same(a.clone(), 5);
        let c = max_pool_same(b.clone(), 5);
        self.cv2.forward(concat(vec![x, a, b, c]))
    }

    pub(super) fn fuse(&self, device: &Device) -> Self {
        Self { cv1: self.cv1.fuse(device), cv2: self.cv2.fuse(device) }
    }
}

/// Doubles height and width by repeating pixels.
#[derive(Module, Debug)]
pub struct Upsample;

impl Upsample {
    /// `[B, C, H, W]` to `[B, C, 2H, 2W]`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        upsample2(x)
    }
}

/// Concatenates the previous layer's output with an earlier one's along the channels.
#[derive(Module, Debug)]
pub struct Concat {
    with: usize,
}

impl Concat {
    pub(super) fn new(with: usize) -> Self {
        Self { with }
    }

    /// Index of the earlier layer.
    pub fn with(&self) -> usize {
        self.with
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::names::to_host;
    use burn::tensor::TensorData;

    #[test]
    fn upsampling_repeats_pixels_and_sums_their_gradients() {
        let device = Device::flex().autodiff();
        let x = Tensor::<4>::from_floats([[[[1.0, 2.0], [3.0, 4.0]]]], &device).require_grad();
        let y = Upsample.forward(x.clone());
        let weights = Tensor::<4>::from_data(TensorData::new((0..16).map(|i| i as f32).collect::<Vec<f32>>(), [1, 1, 4, 4]), &device);
        let grads = (y.clone() * weights).sum().backward();
        assert_eq!(to_host(y), [1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 3.0, 3.0, 4.0, 4.0]);
        assert_eq!(to_host(x.grad(&grads).unwrap()), [10.0, 18.0, 42.0, 50.0]);
    }

    #[test]
    fn running_statistics_follow_pytorchs_conventions() {
        let device = Device::flex().autodiff();
        let bn = BatchNorm2d::new(1, &device);
        // Mean 3, biased variance 5, unbiased 20/3.
        bn.train_forward(Tensor::from_floats([[[[0.0, 2.0], [4.0, 6.0]]]], &device).into(), true);
        let (mean, var) = (to_host(bn.running_mean.value()), to_host(bn.running_var.value()));
        assert!((mean[0] - 0.03 * 3.0).abs() < 1e-6, "{mean:?}");
        assert!((var[0] - (0.97 + 0.03 * 20.0 / 3.0)).abs() < 1e-6, "{var:?}");
    }
}
