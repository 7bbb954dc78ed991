//! What a detector's head means: the cross entropy of its class scores, of which all but a few have the target zero, and the distances that
//! its distributions expect.
//!
//! Cross entropy against zero is `softplus(x) = log(1 + exp(x))`, whose slope is `sigmoid(x)`. Composed of Burn's operations each of these is
//! several passes on one core, over as many logits as there are anchors times classes or bins; here it is one pass on all of them.

mod autodiff;
mod flex;
mod passes;
mod portable;
#[cfg(test)]
mod tests;

use std::ops::Range;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;
use burn_cubecl::CubeBackend;

use crate::shapes;

/// Operations on `[B, C, A]`, C rows of A logits.
#[backend_extension(Flex, Cube, Autodiff)]
pub trait LogitOps: Backend {
    /// `Σ softplus(x)` over the rows `start .. start + len` of every image, `[1]`, and there `sigmoid(x)`, `[B, len, A]`, without gradient.
    fn softplus_sum(x: FloatTensor<Self>, start: usize, len: usize) -> (FloatTensor<Self>, FloatTensor<Self>) {
        portable::softplus_sum::<Self>(x, start, len)
    }

    /// The gradient of that sum for x, of C = `total` rows, from sigmoid(x) and dy, `[1]`.
    fn softplus_sum_grad(slope: FloatTensor<Self>, dy: FloatTensor<Self>, start: usize, total: usize) -> FloatTensor<Self> {
        portable::softplus_sum_grad::<Self>(slope, dy, start, total)
    }

    /// `Σ k softmax(x)_k` over each of the first `sides` groups of `bins` rows, `[B, sides, A]`, without gradient.
    fn expectation(x: FloatTensor<Self>, sides: usize, bins: usize) -> FloatTensor<Self> {
        portable::expectation::<Self>(x, sides, bins)
    }
}

impl LogitOps for CubeBackend {}

/// `Σ log(1 + exp(x))` over these rows of every image of x `[B, C, A]`, `[1]`; differentiable. The same bits for any number of threads.
pub fn softplus_sum(x: Tensor<3>, rows: Range<usize>) -> Tensor<1> {
    shapes::within("rows", &rows, x.dims()[1]);
    Tensor::from_dispatch(Dispatch::softplus_sum(x.into_dispatch(), rows.start, rows.len()).0)
}

/// The expected bin of each distribution: the first `sides bins` rows of x `[B, C, A]` are logits, `bins` a side; `[B, sides, A]`, without gradient.
pub fn expectation(x: Tensor<3>, sides: usize, bins: usize) -> Tensor<3> {
    shapes::within("rows", &(0..sides * bins), x.dims()[1]);
    assert!(bins > 0, "distributions over nothing");
    Tensor::from_dispatch(Dispatch::expectation(x.into_dispatch(), sides, bins))
}
