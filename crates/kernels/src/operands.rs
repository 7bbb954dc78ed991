//! What the operations take beside tensors, and what they give back where that is more than one.

use burn::backend::ops::ConvOptions;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType};

use crate::policy::Lowering;

/// Everything about a 2-D convolution that is not a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvConfig {
    /// Step of the window, (vertical, horizontal).
    pub stride: [usize; 2],
    /// Zeros on each side, (vertical, horizontal).
    pub padding: [usize; 2],
    /// Distance of the kernel's taps, (vertical, horizontal).
    pub dilation: [usize; 2],
    /// Blocks of channels that do not see each other.
    pub groups: usize,
    /// The algorithm.
    pub lowering: Lowering,
}

impl ConvConfig {
    /// Stride `stride`, padding `padding`, no dilation, one group.
    pub fn new(stride: usize, padding: usize, lowering: Lowering) -> Self {
        Self { stride: [stride; 2], padding: [padding; 2], dilation: [1; 2], groups: 1, lowering }
    }

    /// The same in Burn's words.
    pub fn to_burn(self) -> ConvOptions<2> {
        ConvOptions::new(self.stride, self.padding, self.dilation, self.groups)
    }
}

/// A tensor if there is one: an operation of a backend extension takes no `Option` of a tensor.
#[derive(ExtensionType, Clone, Debug)]
pub enum Maybe<B: Backend> {
    /// There is none.
    None,
    /// This one.
    Some(FloatTensor<B>),
}

impl<B: Backend> Maybe<B> {
    /// As an option.
    pub fn into_option(self) -> Option<FloatTensor<B>> {
        if let Self::Some(tensor) = self { Some(tensor) } else { None }
    }
}

impl<B: Backend> From<Option<FloatTensor<B>>> for Maybe<B> {
    fn from(tensor: Option<FloatTensor<B>>) -> Self {
        tensor.map_or(Self::None, Self::Some)
    }
}

/// A normalisation in training: everything about it that is not a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormStep {
    /// Added to the variance before its square root.
    pub epsilon: f64,
    /// Whether SiLU follows.
    pub silu: bool,
    /// Weight of the batch's statistics in the running ones.
    pub momentum: f64,
}

impl NormStep {
    /// `n / (n - 1)` for x `[N, C, H, W]`: what makes a biased variance over the n = N H W values of a channel an unbiased one.
    pub(crate) fn unbias([n, _, h, w]: [usize; 4]) -> f64 {
        let n = (n * h * w) as f64;
        n / (n - 1.0).max(1.0)
    }
}

/// What [`KernelOps::norm_act`](crate::ops::KernelOps::norm_act) returns.
#[derive(ExtensionType)]
pub struct NormOutput<B: Backend> {
    /// `[N, C, H, W]`.
    pub output: FloatTensor<B>,
    /// Mean of the batch, `[C]`.
    pub mean: FloatTensor<B>,
    /// Biased variance of the batch, `[C]`.
    pub variance: FloatTensor<B>,
    /// The running mean, moved towards the batch's, `[C]`.
    pub running_mean: FloatTensor<B>,
    /// The running variance, moved towards the batch's unbiased one, `[C]`.
    pub running_variance: FloatTensor<B>,
}

/// What a batch is normalised with: statistics and parameters, `[C]` each.
#[derive(ExtensionType, Clone, Debug)]
pub struct NormChannels<B: Backend> {
    /// Mean.
    pub mean: FloatTensor<B>,
    /// Biased variance.
    pub variance: FloatTensor<B>,
    /// Scale.
    pub gamma: FloatTensor<B>,
    /// Shift.
    pub beta: FloatTensor<B>,
}

impl<B: Backend> NormChannels<B> {
    pub(crate) fn all(&self) -> [&FloatTensor<B>; 4] {
        [&self.mean, &self.variance, &self.gamma, &self.beta]
    }
}

/// What [`KernelOps::norm_act_backward`](crate::ops::KernelOps::norm_act_backward) returns.
#[derive(ExtensionType)]
pub struct NormGrads<B: Backend> {
    /// Gradient of the input, `[N, C, H, W]`.
    pub x: FloatTensor<B>,
    /// Gradient of the scale, `[C]`.
    pub gamma: FloatTensor<B>,
    /// Gradient of the shift, `[C]`.
    pub beta: FloatTensor<B>,
}
