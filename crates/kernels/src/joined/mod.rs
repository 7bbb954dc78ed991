//! The convolution of a concatenation: of tensors side by side along the channels, which need not be joined for it.
//!
//! Joining moves each value once forward and once more in the backward pass, where its gradient is besides cut into the parts'. A matrix product packs
//! its input anyway, from one tensor as well as from several, and writes an input's gradient by channels, whosever they are. So the graph keeps the
//! parts, and each gets a gradient of its own. The results are, to the bit, those of the joined tensor. GPUs, Winograd's method and Burn's own
//! convolutions join after all.

#[cfg(test)]
mod tests;

use burn::backend::backend_extension;
use burn::backend::tensor::FloatTensor as Float;
use burn_cubecl::CubeBackend;

use crate::operands::{ConvConfig, Convolved};
use crate::ops::KernelOps;
use crate::planes::{Parts, PlaneOps, join};

/// A convolution without bias of parts `[N, C1, H, W]`, `[N, C2, H, W]`, ...; weight `[Co, (C1 + C2 + ...) / groups, Kh, Kw]`.
#[backend_extension(Flex, Cube, Autodiff)]
pub trait JoinedOps: KernelOps + PlaneOps {
    /// [`KernelOps::conv_forward_moments`] of the parts joined.
    fn conv_joined(#[extension_type] x: Parts<Self>, weight: Float<Self>, config: ConvConfig) -> Convolved<Self> {
        Self::conv_forward_moments(join::<Self>(x.0), weight, config)
    }

    /// [`KernelOps::conv_data_grad`] cut into parts of so many `channels`.
    fn conv_joined_data_grad(
        dy: Float<Self>,
        weight: Float<Self>,
        channels: Vec<usize>,
        input: [usize; 2],
        config: ConvConfig,
    ) -> Parts<Self> {
        Parts(cut::<Self>(Self::conv_data_grad(dy, weight, input, config), &channels))
    }

    /// [`KernelOps::conv_weight_grad`] of the parts joined.
    fn conv_joined_weight_grad(#[extension_type] x: Parts<Self>, dy: Float<Self>, kernel: [usize; 2], config: ConvConfig) -> Float<Self> {
        Self::conv_weight_grad(join::<Self>(x.0), dy, kernel, config)
    }
}

impl JoinedOps for CubeBackend {}

/// The parts of so many channels that make `whole` together.
pub(crate) fn cut<B: PlaneOps>(whole: Float<B>, channels: &[usize]) -> Vec<Float<B>> {
    if channels.len() == 1 {
        return vec![whole];
    }
    let mut start = 0;
    let part = |&channels: &usize| {
        start += channels;
        B::slice_channels(whole.clone(), start - channels, channels)
    };
    channels.iter().map(part).collect()
}
