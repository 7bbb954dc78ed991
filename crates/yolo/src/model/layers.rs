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

    /// The same of one without bias and of maps side by side along the channels, to be normalised.
    fn for_norm(&self, parts: Vec<Tensor<4>>) -> Convolved {
        conv2d_for_norm(parts, self.weight.val(), self.config())
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

    /// Normalises with the batch's own statistics, applies SiLU if `act`, adds `onto`, and moves the running statistics.
    fn train_forward(&self, x: Convolved, act: bool, onto: Option<Tensor<4>>) -> Tensor<4> {
        let (device, states) = (x.device(), [&self.running_mean, &self.running_var]);
        let running = states.map(|state| state.value_sync().to_device(&device));
        let step = NormStep { epsilon: BN_EPSILON, silu: act, momentum: BN_MOMENTUM };
        let y = batch_norm_silu(x, self.weight.val(), self.bias.val(), running, step, onto);
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
        self.forward_joined(vec![x])
    }

    /// [`forward`](Self::forward) added to `onto`, of the result's shape.
    fn forward_onto(&self, x: Tensor<4>, onto: Tensor<4>) -> Tensor<4> {
        match &self.bn {
            Some(bn) if bn.is_training(&x) => bn.train_forward(self.conv.for_norm(vec![x]), self.act, Some(onto)),
            _ => add(onto, self.forward(x)),
        }
    }

    /// [`forward`](Self::forward) of maps side by side along the channels, at least one. Where it trains, they need not be joined.
    pub(super) fn forward_joined(&self, parts: Vec<Tensor<4>>) -> Tensor<4> {
        let Some(bn) = &self.bn else {
            return self.infer(concat(parts), self.conv.weight.val(), self.conv.bias.as_ref().map(Param::val));
        };
        if bn.is_training(&parts[0]) {
            return bn.train_forward(self.conv.for_norm(parts), self.act, None);
        }
        let x = concat(parts);
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
        let y = self.cv1.forward(x.clone());
        if self.shortcut { self.cv2.forward_onto(y, x) } else { self.cv2.forward(y) }
    }

    /// Whether its input is added to its output.
    pub(crate) fn shortcut(&self) -> bool {
        self.shortcut
    }

    fn fuse(&self, device: &Device) -> Self {
        Self { cv1: self.cv1.fuse(device), cv2: self.cv2.fuse(device), shortcut: self.shortcut }
    }
}

/// A 1x1 convolution whose second half feeds a chain of bottlenecks; every intermediate, side by side with the others, is mixed.
#[derive(Module, Debug)]
pub struct C2f {
    /// 1x1 convolution to twice the hidden width.
    pub cv1: Conv,
    /// 1x1 convolution over everything side by side.
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

    /// Maps side by side along the channels, at least one, which have `in` together, to `[B, out, H, W]`.
    pub fn forward(&self, parts: Vec<Tensor<4>>) -> Tensor<4> {
        let both = self.cv1.forward_joined(parts);
        let c = both.dims()[1] / 2;
        // The two halves are mixed side by side as they are, so only the second is ever cut out.
        let mut last = slice_channels(both.clone(), c, c);
        let mut parts = vec![both];
        for bottleneck in &self.m {
            last = bottleneck.forward(last);
            parts.push(last.clone());
        }
        self.cv2.forward_joined(parts)
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
        self.cv2.forward_joined(vec![x, a, b, c])
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

    /// A block's output and all gradients with its maps side by side are, to the bit, those with the maps joined.
    #[test]
    fn a_block_joins_nothing_and_loses_no_bit() {
        let device = Device::flex().autodiff();
        let noise = |shape: [usize; 4], seed: usize| {
            let values: Vec<f32> = (0..shape.iter().product()).map(|i| ((i * (2 * seed + 7919)) % 1009) as f32 / 504.0 - 1.0).collect();
            Tensor::<4>::from_data(TensorData::new(values, shape), &device)
        };
        let mut block = C2f::new(8 + 5, 18, 2, true, &device);
        let convs = |block: &mut C2f| {
            let C2f { cv1, cv2, m } = block;
            for (i, conv) in [cv1, cv2].into_iter().chain(m.iter_mut().flat_map(|m| [&mut m.cv1, &mut m.cv2])).enumerate() {
                let weight = &mut conv.conv.weight;
                *weight = Param::from_tensor(noise(weight.dims(), 10 + i).require_grad());
            }
        };
        convs(&mut block);
        let results = |join: bool| {
            let parts = [noise([2, 8, 9, 7], 1).require_grad(), noise([2, 5, 9, 7], 2).require_grad()];
            let y = if join {
                let both = block.cv1.forward(concat(parts.to_vec()));
                let first = slice_channels(both.clone(), 9, 9);
                let second = block.m[0].forward(first);
                let third = block.m[1].forward(second.clone());
                block.cv2.forward(concat(vec![both, second, third]))
            } else {
                block.forward(parts.to_vec())
            };
            let grads = (y.clone() * noise(y.dims(), 3)).sum().backward();
            let weights = [&block.cv1, &block.cv2, &block.m[0].cv1, &block.m[1].cv2].map(|conv| conv.conv.weight.val());
            let given = parts.into_iter().chain(weights).map(|x| x.grad(&grads).unwrap());
            let bits = |x: Tensor<4>| to_host(x).into_iter().map(f32::to_bits).collect::<Vec<_>>();
            std::iter::once(y).chain(given).map(bits).collect::<Vec<_>>()
        };
        let (apart, joined) = (results(false), results(true));
        assert!(apart.iter().all(|values| values.iter().any(|&v| v != values[0])), "nothing but one number");
        assert!(apart == joined, "{:?}", apart.iter().zip(&joined).map(|(a, b)| a == b).collect::<Vec<_>>());
    }

    #[test]
    fn running_statistics_follow_pytorchs_conventions() {
        let device = Device::flex().autodiff();
        let bn = BatchNorm2d::new(1, &device);
        // Mean 3, biased variance 5, unbiased 20/3.
        bn.train_forward(Tensor::from_floats([[[[0.0, 2.0], [4.0, 6.0]]]], &device).into(), true, None);
        let (mean, var) = (to_host(bn.running_mean.value()), to_host(bn.running_var.value()));
        assert!((mean[0] - 0.03 * 3.0).abs() < 1e-6, "{mean:?}");
        assert!((var[0] - (0.97 + 0.03 * 20.0 / 3.0)).abs() < 1e-6, "{var:?}");
    }
}
