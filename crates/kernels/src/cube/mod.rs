//! The operations on CubeCL devices (Vulkan, CUDA, ROCm, Metal): convolutions as matrix products of our own, and batch
//! normalisation with SiLU (`norm`, which needs no choice: it runs whatever the lowering is). `stripes` and `softmax` are what the operations
//! of [`decoder`](crate::decoder) and [`rows`](crate::rows) share.
//!
//! Why not the backend's convolutions: drivers for RDNA1 cards (RX 5600/5700) are reported to hang or miscompute in direct convolution kernels, and
//! the backend chooses its convolution and its matmul by timing candidates on the card, which runs every one of them, the one that hangs
//! included. With [`Lowering::Gemm`] a convolution is the kernels of this module and nothing else: `matmul_kernel`,
//! the sum of a weight gradient's parts, and once for a device the check of its shared memory. Nothing is tuned and nothing is chosen by time, so two runs agree bit for bit and the first step is not spent on candidates. Every other lowering is
//! Burn's own convolution for now.
//!
//! Extra memory is what such lowerings are known for (MIOpen's GEMM workaround costs users a quarter more). Here the product reads the image
//! where a column would be, and the parts of a weight gradient's sums are all there is besides, up to [`set_workspace_mb`].

mod conv;
pub(crate) mod geometry;
pub(crate) mod join;
pub(crate) mod launch;
mod matmul;
mod norm;
mod norm_kernels;
pub(crate) mod pixels;
mod product;
mod shared;
pub(crate) mod softmax;
pub(crate) mod stripes;
mod trace;

use crate::operands::{Bias, ConvConfig, NormGrads, NormOutput};
use crate::ops::KernelOps;
use crate::policy::Lowering;
use crate::portable;
use burn::backend::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use launch::covers;
pub use shared::shared_memory_works;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
pub use trace::{Launches, launches, more};

/// Megabytes of parts unless [`set_workspace_mb`] says otherwise. A weight of YOLOv8n that is larger makes blocks enough for a GPU by itself.
pub const DEFAULT_WORKSPACE_MB: usize = 1;

static WORKSPACE: AtomicUsize = AtomicUsize::new(DEFAULT_WORKSPACE_MB << 20);

/// Limits the parts of a weight gradient that a convolution by matrix product holds at a time, in every thread.
pub fn set_workspace_mb(megabytes: usize) {
    set_workspace_bytes(megabytes.saturating_mul(1 << 20));
}

/// [`set_workspace_mb`] in bytes.
pub fn set_workspace_bytes(bytes: usize) {
    WORKSPACE.store(bytes, Ordering::Relaxed);
}

/// The limit in bytes.
pub fn workspace_bytes() -> usize {
    WORKSPACE.load(Ordering::Relaxed)
}

/// Whether this module computes the convolution; says once which kernels that means.
fn ours(tensor: &CubeTensor, config: &ConvConfig) -> bool {
    static SAID: Once = Once::new();
    if config.lowering != Lowering::Gemm || !matches!(tensor.dtype, DType::F32 | DType::F16 | DType::BF16) {
        return false;
    }
    SAID.call_once(|| {
        tracing::info!("convolutions by matrix product on {}: columns are read from the image, never written", tensor.client.name());
    });
    true
}

impl KernelOps for CubeBackend {
    fn conv_forward(x: CubeTensor, weight: CubeTensor, bias: Bias<Self>, config: ConvConfig) -> CubeTensor {
        if ours(&x, &config) {
            return conv::forward(x, weight, bias.into_option(), false, &config.to_burn());
        }
        portable::conv_forward::<Self>(x, weight, bias.into_option(), config)
    }

    fn conv_silu(x: CubeTensor, weight: CubeTensor, bias: Bias<Self>, config: ConvConfig) -> CubeTensor {
        if ours(&x, &config) {
            return conv::forward(x, weight, bias.into_option(), true, &config.to_burn());
        }
        portable::silu::<Self>(Self::conv_forward(x, weight, bias, config))
    }

    fn conv_data_grad(dy: CubeTensor, weight: CubeTensor, input: [usize; 2], config: ConvConfig) -> CubeTensor {
        if ours(&dy, &config) {
            return conv::data_grad(dy, weight, input, &config.to_burn());
        }
        portable::conv_data_grad::<Self>(dy, weight, input, config)
    }

    fn conv_weight_grad(x: CubeTensor, dy: CubeTensor, kernel: [usize; 2], config: ConvConfig) -> CubeTensor {
        if ours(&dy, &config) {
            return conv::weight_grad(x, dy, kernel, &config.to_burn(), workspace_bytes());
        }
        portable::conv_weight_grad::<Self>(x, dy, kernel, config)
    }

    fn norm_act(x: CubeTensor, gamma: CubeTensor, beta: CubeTensor, epsilon: f64, silu: bool) -> NormOutput<Self> {
        if covers([&x, &gamma, &beta]) {
            return norm::norm_act(x, gamma, beta, epsilon, silu);
        }
        portable::norm_act::<Self>(x, gamma, beta, epsilon, silu)
    }

    fn norm_act_again(
        x: CubeTensor,
        mean: CubeTensor,
        variance: CubeTensor,
        gamma: CubeTensor,
        beta: CubeTensor,
        epsilon: f64,
        silu: bool,
    ) -> CubeTensor {
        if covers([&x, &mean, &variance, &gamma, &beta]) {
            return norm::norm_act_again(x, [mean, variance, gamma, beta], epsilon, silu);
        }
        portable::norm_act_again::<Self>(x, mean, variance, gamma, beta, epsilon, silu)
    }

    fn norm_act_backward(
        x: CubeTensor,
        mean: CubeTensor,
        variance: CubeTensor,
        gamma: CubeTensor,
        beta: CubeTensor,
        dy: CubeTensor,
        epsilon: f64,
        silu: bool,
    ) -> NormGrads<Self> {
        if covers([&x, &mean, &variance, &gamma, &beta, &dy]) {
            return norm::norm_act_backward(x, mean, variance, gamma, beta, dy, epsilon, silu);
        }
        portable::norm_act_backward::<Self>(x, mean, variance, gamma, beta, dy, epsilon, silu)
    }
}
