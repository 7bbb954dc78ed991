//! The operations Bellows owns: convolution by a chosen algorithm, normalisation fused with its activation, and what else a detector and a
//! language model compute, a module each.
//!
//! Burn's tensors go in and come out; which kernel runs follows from the tensor's device. In each module a trait defines operations for every backend; the
//! processor's kernels and the gradients stand beside it, `cube` has the kernels of CubeCL devices, and `portable` what each operation is in Burn's own
//! words. (Of convolution and normalisation the trait is in [`ops`], and the others are in `flex` and `autodiff`.) What a network should
//! not do itself (choose an algorithm, keep tensors for a backward pass, recycle memory) is done here, so that a layer stays one line. Shapes that do not
//! fit each other are a mistake of the program: the function that is given them panics and says what they were.

pub mod arena;
pub mod attention;
mod autodiff;
mod buffers;
#[allow(unreachable_pub, reason = "written as a crate of its own")]
mod cpu;
mod cpu_norm;
pub mod cube;
pub mod decoder;
pub mod draws;
pub mod dropout;
mod flex;
pub mod foreground;
pub mod graph;
pub mod inference;
#[cfg(test)]
mod joined_tests;
mod listen;
pub mod logits;
pub mod maps;
pub mod matrices;
mod meeting;
mod norm_parts;
pub mod operands;
pub mod ops;
mod parts;
mod peak;
pub mod planes;
mod policy;
mod portable;
pub mod products;
mod reads;
pub mod rows;
mod several;
mod shapes;
mod steps;
mod tasks;
pub mod update;

use burn::backend::Dispatch;
use burn::tensor::{Device, Tensor};

pub use arena::{Places, arena, arena_parts, in_place};
pub use attention::attention;
pub use buffers::{forget, next_batch};
pub use decoder::{rms_norm, rotate, swiglu};
pub use dropout::{add_noise, dropout};
pub use foreground::{Foreground, Object, Objects, Positive, assigned_terms, assigns, ciou, detection_terms};
pub use graph::{enter, lead};
pub use listen::{Leaves, Listener, leaf, listen, tell};
pub use logits::{expectation, predictions, scores};
pub use maps::{Map, maps};
pub use operands::{ConvConfig, NormStep};
use operands::{Maybe, NormChannels};
use ops::KernelOps;
pub use parts::{Gather, of_all_parts, with_parts};
pub use peak::{processor_choices, processor_has_bf16, processor_level, processor_peak, product_rate};
use planes::Parts;
pub use planes::{HALF_GRADIENTS, add, concat, images, max_pool_same, slice_channels, total, upsample2, widen};
pub use policy::{KernelError, Lowering, Precision, default_lowering, set_default_lowering};
pub use products::{Blocks, Coding, LowRank, Weight, linear, linear_data_grad, linear_weight_grad, reads_bf16};
pub use reads::note_read;
pub use rows::{cross_entropy, cross_entropy_loss};
pub use steps::set_keeps;
pub use update::{Adam, Segments, Sgd, adam_step, blend, clip_to_norm, sgd_step, sum_of_squares};

/// The processor, for work that no GPU is worth proving for.
pub fn processor() -> Device {
    Device::flex()
}

/// 2-D convolution: `y[n, co] = bias[co] + Σ_ci x[n, ci] ⋆ weight[co, ci]`, differentiable.
///
/// x `[N, Ci, H, W]`, weight `[Co, Ci / groups, Kh, Kw]`, bias `[Co]` to `[N, Co, Oh, Ow]`.
pub fn conv2d(x: Tensor<4>, weight: Tensor<4>, bias: Option<Tensor<1>>, config: ConvConfig) -> Tensor<4> {
    let bias = checked(&x, &weight, bias, &config);
    Tensor::from_dispatch(Dispatch::conv_forward(x.into_dispatch(), weight.into_dispatch(), bias, config))
}

/// A batch to be normalised, and what is known of it.
#[derive(Clone, Debug)]
pub struct Convolved {
    y: Tensor<4>,
    moments: Maybe<Dispatch>,
}

impl Convolved {
    /// Where it is.
    pub fn device(&self) -> Device {
        self.y.device()
    }
}

impl From<Tensor<4>> for Convolved {
    fn from(y: Tensor<4>) -> Self {
        Self { y, moments: Maybe::None }
    }
}

/// [`conv2d`] without bias for [`batch_norm_silu`], which then need not read y to know its moments where the convolution could add them up.
/// x is `parts` side by side along the channels, which are joined only where no kernel reads them where they are.
pub fn conv2d_for_norm(parts: Vec<Tensor<4>>, weight: Tensor<4>, config: ConvConfig) -> Convolved {
    shapes::convolved(shapes::joined(&parts), weight.dims(), &config);
    let parts = Parts(parts.into_iter().map(Tensor::into_dispatch).collect());
    let (y, moments) = Dispatch::conv_joined(parts, weight.into_dispatch(), config);
    Convolved { y: Tensor::from_dispatch(y), moments: moments.into() }
}

/// [`conv2d`] and SiLU in one pass over the output: `y sigmoid(y)`. For inference; on an autodiff device it is the two
/// operations.
pub fn conv2d_silu(x: Tensor<4>, weight: Tensor<4>, bias: Option<Tensor<1>>, config: ConvConfig) -> Tensor<4> {
    let bias = checked(&x, &weight, bias, &config);
    Tensor::from_dispatch(Dispatch::conv_silu(x.into_dispatch(), weight.into_dispatch(), bias, config))
}

/// The bias as the operations take it, once all shapes are known to fit.
fn checked(x: &Tensor<4>, weight: &Tensor<4>, bias: Option<Tensor<1>>, config: &ConvConfig) -> Maybe<Dispatch> {
    let [_, co, ..] = shapes::convolved(x.dims(), weight.dims(), config);
    bias.map_or(Maybe::None, |bias| {
        shapes::expect("bias", bias.dims(), [co]);
        Maybe::Some(bias.into_dispatch())
    })
}

/// Gradients of the maps of so many channels that are the x of [`conv2d_for_norm`], of `input` = (H, W), from dy `[N, Co, Oh, Ow]`; not differentiable themselves.
pub fn conv2d_data_grad(dy: Tensor<4>, weight: Tensor<4>, channels: &[usize], input: [usize; 2], config: ConvConfig) -> Vec<Tensor<4>> {
    let ([n, ..], w) = (dy.dims(), weight.dims());
    let all = channels.iter().sum();
    shapes::expect("dy", dy.dims(), shapes::convolved([n, all, input[0], input[1]], w, &config));
    let dx = Dispatch::conv_data_grad(dy.into_dispatch(), weight.into_dispatch(), channels.to_vec(), input, config);
    dx.0.into_iter().map(Tensor::from_dispatch).collect()
}

/// Gradient of the weight of [`conv2d_for_norm`], of `kernel` = (Kh, Kw); not differentiable itself.
pub fn conv2d_weight_grad(parts: Vec<Tensor<4>>, dy: Tensor<4>, kernel: [usize; 2], config: ConvConfig) -> Tensor<4> {
    let x = shapes::joined(&parts);
    let weight = [dy.dims()[1], x[1] / config.groups.max(1), kernel[0], kernel[1]];
    shapes::expect("dy", dy.dims(), shapes::convolved(x, weight, &config));
    let parts = Parts(parts.into_iter().map(Tensor::into_dispatch).collect());
    Tensor::from_dispatch(Dispatch::conv_weight_grad(parts, dy.into_dispatch(), Maybe::None, kernel, config))
}

/// What [`batch_norm_silu`] returns.
#[derive(Clone, Debug)]
pub struct BatchNormed {
    /// `[N, C, H, W]`.
    pub output: Tensor<4>,
    /// Running mean and variance, moved towards the batch's, each `[C]` and without gradient.
    pub running: [Tensor<1>; 2],
}

/// Batch normalisation with the batch's own statistics, then SiLU if asked; differentiable. Of images it keeps x, and `onto` where the output is made again.
///
/// `z = gamma (x - mean) / sqrt(variance + epsilon) + beta`, output `z sigmoid(z)`, or `z`. x `[N, C, H, W]`, gamma, beta and the
/// running mean and (unbiased) variance `[C]`, which move by `momentum` towards the batch's. The output is added to `onto`, of x's shape, if there is one.
pub fn batch_norm_silu(
    x: impl Into<Convolved>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    running: [Tensor<1>; 2],
    step: NormStep,
    onto: Option<Tensor<4>>,
) -> BatchNormed {
    let Convolved { y: x, moments } = x.into();
    let [_, c, ..] = x.dims();
    shapes::expect("gamma", gamma.dims(), [c]);
    shapes::expect("beta", beta.dims(), [c]);
    running.iter().for_each(|running| shapes::expect("a running statistic", running.dims(), [c]));
    let onto = onto.map_or(Maybe::None, |onto| {
        shapes::expect("what the output is added to", onto.dims(), x.dims());
        Maybe::Some(onto.into_dispatch())
    });
    let [mean, variance] = running.map(Tensor::into_dispatch);
    let channels = NormChannels { mean, variance, gamma: gamma.into_dispatch(), beta: beta.into_dispatch() };
    let y = Dispatch::norm_act(x.into_dispatch(), moments, channels, step, onto);
    BatchNormed { output: Tensor::from_dispatch(y.output), running: [y.running_mean, y.running_variance].map(Tensor::from_dispatch) }
}

/// Property tests draw the same cases in every run: a failure is one of the code, not of the day.
#[cfg(test)]
fn test_cases(cases: u32) -> proptest::test_runner::Config {
    proptest::test_runner::Config {
        cases: if cfg!(miri) { cases.min(3) } else { cases },
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(1),
        ..Default::default()
    }
}
