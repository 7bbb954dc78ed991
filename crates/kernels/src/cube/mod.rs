//! The operations on CubeCL devices (Vulkan, CUDA, ROCm, Metal): convolutions as matrix products of our own, and batch
//! normalisation with SiLU (`norm`, which needs no choice: it runs whatever the lowering is). `stripes` and `softmax` are what the operations
//! of [`decoder`](crate::decoder) and [`rows`](crate::rows) share.
//!
//! Why not the backend's convolutions: drivers for RDNA1 cards (RX 5600/5700) are reported to hang or miscompute in direct convolution kernels, and
//! the backend chooses its convolution and its matmul by timing candidates on the card, which runs every one of them, the one that hangs
//! included. With [`Lowering::Gemm`] a convolution, and a language model's matrix product, is the kernels of this crate and nothing else: a product,
//! the sum of its parts, and once for a device the check of its shared memory. Nothing is tuned and nothing is chosen by time, so two runs agree bit for bit and the first step is not spent on candidates. Every other lowering is
//! Burn's own convolution for now.
//!
//! Extra memory is what such lowerings are known for (MIOpen's GEMM workaround costs users a quarter more). Here the product reads the image
//! where a column would be, and the parts of a weight gradient's sums are all there is besides, up to [`set_workspace_mb`].

pub(crate) mod args;
pub(crate) mod block;
mod conv;
mod copies;
pub(crate) mod direct;
mod fours;
pub(crate) mod geometry;
pub(crate) mod group;
pub(crate) mod join;
pub(crate) mod launch;
pub(crate) mod matmul;
pub(crate) mod matrices;
mod moments;
mod norm;
mod norm_kernels;
pub(crate) mod packing;
pub(crate) mod pixels;
pub(crate) mod places;
pub(crate) mod product;
mod roofline;
mod shared;
mod shortage;
mod sizes;
pub(crate) mod softmax;
pub(crate) mod stripes;
pub(crate) mod sums;
pub(crate) mod trace;
mod units;
mod workspace;

use crate::operands::{ConvConfig, Maybe, NormChannels, NormGrads, NormOutput, NormStep};
use crate::ops::KernelOps;
use crate::planes::{HALF_GRADIENTS, Parts, added, cut, join};
use crate::policy::Lowering;
use crate::portable;
use burn::backend::ops::{FloatTensorOps, ModuleOps};
use burn::backend::{DType, Scalar};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
pub use conv::{Maps, Pass, classes_of, side_by_side};
use launch::{covers_images, is_image_type};
pub use roofline::Rates;
pub use shared::{distrust_shared_memory, shared_memory_works};
pub use shortage::{largest_allocation, out_of_memory};
pub use sizes::{Class, Maker, Size, set_maker, set_tuned};
use std::sync::Once;
pub use trace::{Alike, Counted, Done, Launches, Work, launches, most_at_launches};
pub use units::matrix_units;
use workspace::workspace_bytes;
pub use workspace::{set_workspace_bytes, set_workspace_mb};

/// Values of blocks that are made dense together at most, of several maps of one input: 64 MiB in f32, which a card of 300 GB/s writes and reads in half a
/// millisecond. Beside that a launch, some microseconds, is nothing, and a second matrix of that size more memory.
pub const MOST_DENSE: usize = 1 << 24;

/// Whether this module computes the convolution of these images with that weight; says once which kernels that means.
fn ours(image: &CubeTensor, weight: Option<&CubeTensor>, config: &ConvConfig) -> bool {
    static SAID: Once = Once::new();
    if config.lowering != Lowering::Gemm || !is_image_type(image.dtype) || weight.is_some_and(|w| w.dtype != DType::F32) {
        return false;
    }
    SAID.call_once(|| {
        tracing::info!("convolutions by matrix product on {}: columns are read from the image, never written", image.client.name());
    });
    true
}

/// An image, and what is added to it.
fn images<'a>(x: &'a CubeTensor, onto: &'a Maybe<CubeBackend>) -> Vec<&'a CubeTensor> {
    match onto {
        Maybe::Some(onto) => vec![x, onto],
        Maybe::None => vec![x],
    }
}

/// The same numbers in another type.
fn of_type(tensor: CubeTensor, dtype: DType) -> CubeTensor {
    if tensor.dtype == dtype { tensor } else { CubeBackend::float_cast(tensor, dtype.into()) }
}

impl KernelOps for CubeBackend {
    /// What a mid-range card reads and writes in the 5 us that a launch costs.
    const KEPT: usize = 768 << 10;

    fn conv_forward(x: CubeTensor, weight: CubeTensor, bias: Maybe<Self>, config: ConvConfig) -> CubeTensor {
        if ours(&x, Some(&weight), &config) {
            return conv::forward(x, weight, bias.into_option(), false, &config.to_burn());
        }
        // Burn's take all of one type; parameters are f32 whatever images are.
        let (weight, bias) = (of_type(weight, x.dtype), bias.into_option().map(|bias| of_type(bias, x.dtype)));
        Self::conv2d(x, weight, bias, config.to_burn())
    }

    fn conv_joined(x: Parts<Self>, weight: CubeTensor, config: ConvConfig) -> (CubeTensor, Option<CubeTensor>) {
        if x.0.iter().all(|part| part.dtype == x.0[0].dtype && ours(part, Some(&weight), &config)) {
            return conv::forward_moments(x.0, weight, &config.to_burn());
        }
        (Self::conv_forward(join::<Self>(x.0), weight, Maybe::None, config), None)
    }

    fn conv_silu(x: CubeTensor, weight: CubeTensor, bias: Maybe<Self>, config: ConvConfig) -> CubeTensor {
        if ours(&x, Some(&weight), &config) {
            return conv::forward(x, weight, bias.into_option(), true, &config.to_burn());
        }
        portable::silu::<Self>(Self::conv_forward(x, weight, bias, config))
    }

    fn conv_data_grad(dy: CubeTensor, weight: CubeTensor, channels: Vec<usize>, input: [usize; 2], config: ConvConfig) -> Parts<Self> {
        if ours(&dy, Some(&weight), &config) {
            return Parts(conv::data_grad(dy, weight, &channels, input, &config.to_burn(), vec![None; channels.len()]));
        }
        let weight = of_type(weight, dy.dtype);
        Parts(cut::<Self>(portable::conv_data_grad::<Self>(dy, weight, input, config), &channels))
    }

    fn conv_data_grad_onto(
        dy: CubeTensor,
        weight: CubeTensor,
        channels: Vec<usize>,
        input: [usize; 2],
        config: ConvConfig,
        held: Parts<Self>,
        of: Vec<usize>,
    ) -> Parts<Self> {
        if ours(&dy, Some(&weight), &config) {
            let mut all = vec![None; channels.len()];
            of.into_iter().zip(held.0).for_each(|(part, held)| all[part] = Some(held));
            return Parts(conv::data_grad(dy, weight, &channels, input, &config.to_burn(), all));
        }
        added::<Self>(Self::conv_data_grad(dy, weight, channels, input, config), held, of)
    }

    fn conv_weight_grad(x: Parts<Self>, dy: CubeTensor, of: Maybe<Self>, kernel: [usize; 2], config: ConvConfig) -> CubeTensor {
        if x.0.iter().all(|part| part.dtype == dy.dtype) && ours(&dy, None, &config) {
            return conv::weight_grad(x.0, dy, of.into_option(), kernel, &config.to_burn(), workspace_bytes());
        }
        let dw = portable::conv_weight_grad::<Self>(join::<Self>(x.0), dy, kernel, config);
        if dw.dtype == DType::F32 { dw } else { Self::float_div_scalar(of_type(dw, DType::F32), Scalar::Float(HALF_GRADIENTS.into())) }
    }

    fn norm_act(x: CubeTensor, moments: Maybe<Self>, channels: NormChannels<Self>, step: NormStep, onto: Maybe<Self>) -> NormOutput<Self> {
        if covers_images(&images(&x, &onto), channels.all()) {
            return norm::norm_act(x, moments, channels, step, onto);
        }
        portable::norm_act::<Self>(x, channels, step, onto)
    }

    fn norm_act_again(x: CubeTensor, channels: NormChannels<Self>, step: NormStep, onto: Maybe<Self>) -> CubeTensor {
        if covers_images(&images(&x, &onto), channels.all()) {
            return norm::norm_act_again(x, channels, step, onto);
        }
        portable::norm_act_again::<Self>(x, channels, step, onto)
    }

    fn norm_act_backward(x: CubeTensor, channels: NormChannels<Self>, dy: CubeTensor, step: NormStep) -> NormGrads<Self> {
        if covers_images(&[&x, &dy], channels.all()) {
            return norm::norm_act_backward(x, channels, dy, step);
        }
        portable::norm_act_backward::<Self>(x, channels, dy, step)
    }
}
