//! The operations every backend has, as a Burn backend extension.
//!
//! What each is in Burn's own operations is in `portable.rs`: correct on every backend, used where there is no kernel, and what the kernels are
//! tested against. Tensors are taken by value: a kernel that is handed the last reference may write into it or
//! recycle its memory. Layout is NCHW throughout; a kernel makes a strided input contiguous itself.

use burn::backend::backend_extension;
use burn::backend::tensor::FloatTensor as Float;

use crate::operands::{ConvConfig, Maybe, NormChannels, NormGrads, NormOutput, NormStep};
use crate::planes::{Parts, PlaneOps, added, cut, join};
use crate::portable;

/// Convolution and normalisation, fused where it pays.
///
/// x `[N, Ci, H, W]`, weight `[Co, Ci / groups, Kh, Kw]`, bias `[Co]`, output and dy `[N, Co, Oh, Ow]`.
#[backend_extension(Flex, Cube, Autodiff)]
pub trait KernelOps: PlaneOps {
    /// Bytes of a normalised image up to which it is kept for the backward pass: making a smaller one again costs more than keeping it.
    const KEPT: usize = 0;

    /// `y[n, co] = bias[co] + Σ_ci x[n, ci] ⋆ weight[co, ci]`.
    fn conv_forward(x: Float<Self>, weight: Float<Self>, #[extension_type] bias: Maybe<Self>, config: ConvConfig) -> Float<Self>;

    /// The same without bias of parts `[N, C1, H, W]`, `[N, C2, H, W]`, ..., Ci = C1 + C2 + ..., side by side, to be normalised: with y's
    /// moments where they cost less than to read y once more: of each of y's channels by blocks the mean, the sum of squared differences from it, and how
    /// many values there are, `[3, Co, blocks]`, f32, without gradient.
    ///
    /// Joining moves each value once forward and once more in the backward pass, where its gradient is besides cut into the parts'. A matrix product
    /// packs its input anyway, from one tensor as well as from several, and writes an input's gradient by channels, whosever they are. So the graph keeps
    /// the parts, and each gets a gradient of its own. The results are, to the bit, those of the joined tensor. Winograd's and Burn's own join after all.
    fn conv_joined(#[extension_type] x: Parts<Self>, weight: Float<Self>, config: ConvConfig) -> (Float<Self>, Option<Float<Self>>);

    /// `y sigmoid(y)` of the convolution's y: inference, nothing is kept for a backward pass.
    fn conv_silu(x: Float<Self>, weight: Float<Self>, #[extension_type] bias: Maybe<Self>, config: ConvConfig) -> Float<Self> {
        portable::silu::<Self>(Self::conv_forward(x, weight, bias, config))
    }

    /// Gradient of x, the transposed convolution of dy, in parts of so many `channels`. `input` is x's (H, W), which the stride leaves open.
    fn conv_data_grad(dy: Float<Self>, weight: Float<Self>, channels: Vec<usize>, input: [usize; 2], config: ConvConfig) -> Parts<Self> {
        Parts(cut::<Self>(portable::conv_data_grad::<Self>(dy, weight, input, config), &channels))
    }

    /// The same with `held` added to parts `of`, each to one.
    #[allow(clippy::too_many_arguments)]
    fn conv_data_grad_onto(
        dy: Float<Self>,
        weight: Float<Self>,
        channels: Vec<usize>,
        input: [usize; 2],
        config: ConvConfig,
        #[extension_type] held: Parts<Self>,
        of: Vec<usize>,
    ) -> Parts<Self> {
        added::<Self>(Self::conv_data_grad(dy, weight, channels, input, config), held, of)
    }

    /// Gradient of the weight, f32: x, which is `x` side by side, correlated with dy, which in half precision is [`HALF_GRADIENTS`](crate::HALF_GRADIENTS) times too large.
    /// `kernel` is the weight's (Kh, Kw); if the weight, `of`, lies in an [arena](mod@crate::arena), its gradient may have a place.
    fn conv_weight_grad(
        #[extension_type] x: Parts<Self>,
        dy: Float<Self>,
        #[extension_type] of: Maybe<Self>,
        kernel: [usize; 2],
        config: ConvConfig,
    ) -> Float<Self> {
        drop(of);
        portable::conv_weight_grad::<Self>(join::<Self>(x.0), dy, kernel, config)
    }

    /// Batch normalisation with the batch's own statistics, then SiLU if `silu`.
    ///
    /// `z = gamma (x - mean) / sqrt(variance + epsilon) + beta`, mean and biased variance over (N, H, W); output `z sigmoid(z)` or `z` (Ioffe and Szegedy 2015,
    /// equations of algorithm 1). The running statistics, those of `channels`, become `(1 - momentum) running + momentum new`, the new variance unbiased, as
    /// PyTorch has them; they carry no gradient. `moments` are x's (see [`conv_joined`](Self::conv_joined)). The output is added to `onto`, if there is one.
    fn norm_act(
        x: Float<Self>,
        #[extension_type] moments: Maybe<Self>,
        #[extension_type] channels: NormChannels<Self>,
        step: NormStep,
        #[extension_type] onto: Maybe<Self>,
    ) -> NormOutput<Self>;

    /// The output of [`norm_act`](Self::norm_act) once more, from the statistics it returned.
    fn norm_act_again(
        x: Float<Self>,
        #[extension_type] channels: NormChannels<Self>,
        step: NormStep,
        #[extension_type] onto: Maybe<Self>,
    ) -> Float<Self> {
        portable::norm_act_again::<Self>(x, channels, step, onto)
    }

    /// Gradients of [`norm_act`](Self::norm_act) from its input, its statistics and dy; no other tensor is kept.
    ///
    /// With `x^ = (x - mean) rstd`, `z = gamma x^ + beta`, `s = sigmoid(z)`, `dz = dy s (1 + z (1 - s))` (dz = dy without
    /// SiLU) and M = N H W: `dbeta = Σ dz`, `dgamma = Σ dz x^`, `dx = gamma rstd (dz - dbeta / M - x^ dgamma / M)`. In half precision dy and dx are
    /// [`HALF_GRADIENTS`](crate::HALF_GRADIENTS) times too large.
    fn norm_act_backward(
        x: Float<Self>,
        #[extension_type] channels: NormChannels<Self>,
        dy: Float<Self>,
        step: NormStep,
    ) -> NormGrads<Self> {
        portable::norm_act_backward::<Self>(x, channels, dy, step)
    }
}
