//! Batch normalisation and SiLU on CubeCL devices, from the host's side: three launches forward, the last of them alone to make the
//! output again, and three backward.
//!
//! Forward: moments of each channel's parts (which the convolution that made x may have found already: two launches then), statistics from the parts (and the running ones moved), output. Backward: parts of both sums, their totals, input gradient.
//! x is all that is kept between the two, as on the processor. Inputs of any strides are read in place where the rows of an image step
//! evenly; what comes out lies in memory as x does, so a chain of layers keeps the order that its convolutions chose.

use super::geometry::dims4;
use super::launch::{UNITS, launch, true_gradients};
use super::norm_kernels::{
    ExtentLaunch, MomentaLaunch, StepsLaunch, norm_gradient_kernel, norm_gradient_sums_kernel, norm_input_gradient_kernel,
    norm_moments_kernel, norm_output_kernel, norm_statistics_kernel,
};
use super::pixels::{Pixels, empty};
use super::places::place_of_result;
use super::shared::shared_memory_works;
use crate::operands::{Maybe, NormChannels, NormGrads, NormOutput, NormStep};
use crate::shapes::expect;
use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::ops::FloatTensorOps;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

/// Sizes of x, how its channels' sums are cut into parts, and in which order threads go over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    images: usize,
    channels: usize,
    pixels: usize,
    /// Parts along the pixels of an image, and along the images.
    inner: usize,
    outer: usize,
    /// Whether the channels of a pixel are neighbours in memory, rather than the pixels of a channel.
    channels_last: bool,
}

impl Plan {
    /// As many parts as terms to a part, so that both launches of a sum take about as long.
    fn new(x: &Pixels) -> Self {
        let [images, channels, height, width] = dims4(&x.tensor);
        let pixels = height * width;
        let parts = (images * pixels).isqrt();
        let inner = parts.min(pixels);
        let outer = (parts / inner).min(images);
        Self { images, channels, pixels, inner, outer, channels_last: x.channel < x.pixel }
    }

    fn parts(&self) -> usize {
        self.inner * self.outer
    }

    /// How many numbers x's sizes reach of a tensor.
    fn reach(&self, of: &Pixels) -> usize {
        1 + (self.images - 1) * of.image + (self.channels - 1) * of.channel + (self.pixels - 1) * of.pixel
    }

    fn extent(&self) -> ExtentLaunch {
        let Self { images, channels, pixels, inner, outer, .. } = *self;
        ExtentLaunch::new(images as u32, channels as u32, pixels as u32, inner as u32, outer as u32)
    }

    /// A tensor of x's sizes that lies in memory as x does.
    fn like(&self, x: &Pixels) -> Pixels {
        let [n, c, h, w] = dims4(&x.tensor);
        let tensor = if self.channels_last {
            CubeBackend::float_permute(empty(&x.tensor, [n, h, w, c], x.tensor.dtype), &[0, 3, 1, 2])
        } else {
            empty(&x.tensor, [n, c, h, w], x.tensor.dtype)
        };
        Pixels::new(tensor)
    }

    /// x's moments by parts, `[3, channels, parts]`.
    fn moments(&self, x: &Pixels) -> CubeTensor {
        let parts = empty(&x.tensor, [3, self.channels, self.parts()], DType::F32);
        launch!(
            norm_moments_kernel,
            self.parts() * self.channels,
            [(x.tensor, self.reach(x), x.tensor.dtype), (parts, 3 * self.channels * self.parts())],
            self.extent(),
            steps(x),
            self.channels_last,
            dtype_to_storage_type(x.tensor.dtype)
        );
        parts
    }

    /// Mean and variance of x, and the running ones moved towards them, of x's moments by blocks.
    fn statistics(&self, parts: &CubeTensor, running: [CubeTensor; 2], step: NormStep) -> [CubeTensor; 4] {
        let [mean, variance] = [(); 2].map(|()| empty(parts, [self.channels], DType::F32));
        let [old_mean, old_variance] = running;
        let [running_mean, running_variance] = [&old_mean, &old_variance].map(|old| place_of_result(old, [self.channels]));
        let [moments, channels, blocks] = parts.meta.shape().dims();
        expect("moments of channels", [moments, channels], [3, self.channels]);
        let threads = if shared_memory_works(&parts.device) { UNITS } else { 1 };
        launch!(
            norm_statistics_kernel,
            self.channels * threads as usize,
            [
                (parts, 3 * self.channels * blocks),
                (mean, self.channels),
                (variance, self.channels),
                (old_mean, self.channels),
                (old_variance, self.channels),
                (running_mean, self.channels),
                (running_variance, self.channels),
            ],
            self.extent(),
            blocks as u32,
            self.momenta(step),
            threads,
        );
        [mean, variance, running_mean, running_variance]
    }

    fn momenta(&self, step: NormStep) -> MomentaLaunch {
        let unbias = NormStep::unbias([self.images, self.channels, self.pixels, 1]);
        MomentaLaunch::new((1.0 - step.momentum) as f32, step.momentum as f32, unbias as f32)
    }

    /// The normalised x from its mean, variance, gamma and beta, added to `onto`.
    fn output(&self, x: &Pixels, [mean, variance, gamma, beta]: [&CubeTensor; 4], step: NormStep, onto: Maybe<CubeBackend>) -> CubeTensor {
        let (y, channels, onto) = (self.like(x), self.channels, onto.into_option().map(Pixels::new));
        if let Some(onto) = &onto {
            expect("what a normalised image is added to", dims4(&onto.tensor), dims4(&x.tensor));
        }
        // A channel's shift stands in for what nothing is added to.
        let (added, numbers, added_type, added_steps) = match &onto {
            Some(onto) => (&onto.tensor, self.reach(onto), x.tensor.dtype, steps(onto)),
            None => (beta, channels, DType::F32, steps(x)),
        };
        launch!(
            norm_output_kernel,
            channels * self.pixels,
            [
                (x.tensor, self.reach(x), x.tensor.dtype),
                (mean, channels),
                (variance, channels),
                (gamma, channels),
                (beta, channels),
                (added, numbers, added_type),
                (y.tensor, self.reach(&y), x.tensor.dtype)
            ],
            self.extent(),
            steps(x),
            added_steps,
            steps(&y),
            step.epsilon as f32,
            onto.is_some(),
            step.silu,
            self.channels_last,
            dtype_to_storage_type(x.tensor.dtype),
        );
        y.tensor
    }
}

fn steps(of: &Pixels) -> StepsLaunch {
    StepsLaunch::new(of.image, of.channel, of.pixel)
}

/// Mean, variance, gamma and beta, the numbers of each side by side.
fn in_order(NormChannels { mean, variance, gamma, beta }: NormChannels<CubeBackend>) -> [CubeTensor; 4] {
    [mean, variance, gamma, beta].map(into_contiguous)
}

/// [`KernelOps::norm_act`](crate::ops::KernelOps::norm_act) of what [`covers_images`](super::launch::covers_images) allows.
pub(super) fn norm_act(
    x: CubeTensor,
    moments: Maybe<CubeBackend>,
    channels: NormChannels<CubeBackend>,
    step: NormStep,
    onto: Maybe<CubeBackend>,
) -> NormOutput<CubeBackend> {
    let [old_mean, old_variance, gamma, beta] = in_order(channels);
    let x = Pixels::new(x);
    let plan = Plan::new(&x);
    let parts = match moments {
        Maybe::None => plan.moments(&x),
        Maybe::Some(parts) => parts,
    };
    let [mean, variance, running_mean, running_variance] = plan.statistics(&parts, [old_mean, old_variance], step);
    let output = plan.output(&x, [&mean, &variance, &gamma, &beta], step, onto);
    NormOutput { output, mean, variance, running_mean, running_variance }
}

/// [`KernelOps::norm_act_again`](crate::ops::KernelOps::norm_act_again) of what [`covers_images`](super::launch::covers_images) allows.
pub(super) fn norm_act_again(x: CubeTensor, channels: NormChannels<CubeBackend>, step: NormStep, onto: Maybe<CubeBackend>) -> CubeTensor {
    let x = Pixels::new(x);
    Plan::new(&x).output(&x, in_order(channels).each_ref(), step, onto)
}

/// [`KernelOps::norm_act_backward`](crate::ops::KernelOps::norm_act_backward) of what [`covers_images`](super::launch::covers_images) allows.
pub(super) fn norm_act_backward(
    x: CubeTensor,
    channels: NormChannels<CubeBackend>,
    dy: CubeTensor,
    step: NormStep,
) -> NormGrads<CubeBackend> {
    let [mean, variance, gamma, beta] = in_order(channels);
    let (x, dy) = (Pixels::new(x), Pixels::new(dy));
    let plan = Plan::new(&x);
    let (channels, count) = (plan.channels, plan.parts() * plan.channels);
    let parts = empty(&x.tensor, [2, plan.parts(), channels], DType::F32);
    launch!(
        norm_gradient_kernel,
        count,
        [
            (x.tensor, plan.reach(&x), x.tensor.dtype),
            (dy.tensor, plan.reach(&dy), x.tensor.dtype),
            (mean, channels),
            (variance, channels),
            (gamma, channels),
            (beta, channels),
            (parts, 2 * count)
        ],
        plan.extent(),
        steps(&x),
        steps(&dy),
        step.epsilon as f32,
        step.silu,
        plan.channels_last,
        dtype_to_storage_type(x.tensor.dtype),
    );
    let [dgamma, dbeta] = [&gamma, &beta].map(|of| place_of_result(of, [channels]));
    let factors = empty(&x.tensor, [3, channels], DType::F32);
    launch!(
        norm_gradient_sums_kernel,
        channels,
        [(parts, 2 * count), (variance, channels), (gamma, channels), (dgamma, channels), (dbeta, channels), (factors, 3 * channels)],
        plan.extent(),
        step.epsilon as f32,
        true_gradients(dy.tensor.dtype)
    );
    let dx = plan.like(&x);
    launch!(
        norm_input_gradient_kernel,
        channels * plan.pixels,
        [
            (x.tensor, plan.reach(&x), x.tensor.dtype),
            (dy.tensor, plan.reach(&dy), x.tensor.dtype),
            (mean, channels),
            (beta, channels),
            (factors, 3 * channels),
            (dx.tensor, plan.reach(&dx), x.tensor.dtype)
        ],
        plan.extent(),
        steps(&x),
        steps(&dy),
        steps(&dx),
        step.silu,
        plan.channels_last,
        dtype_to_storage_type(x.tensor.dtype),
    );
    NormGrads { x: dx.tensor, gamma: dgamma, beta: dbeta }
}
