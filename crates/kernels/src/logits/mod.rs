//! What a detector's head means: the cross entropy of its class scores, of which all but a few have the target zero, and the distances that
//! its distributions expect.
//!
//! Cross entropy against zero is `softplus(x) = log(1 + exp(x))`, whose slope is `sigmoid(x)`. Composed of Burn's operations each of these is
//! several passes on one core, over as many logits as there are anchors times classes or bins; here it is one pass on all of them.

mod cube;
mod flex;
mod portable;
#[cfg(test)]
mod tests;

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{AutodiffBackend, Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

use crate::shapes;
use crate::steps::{Autodiff, CheckpointStrategy};

/// Operations on `[B, C, A]`, C rows of A logits.
#[backend_extension(Flex, Cube, Autodiff)]
pub trait LogitOps: Backend {
    /// `Σ softplus(x)` over the rows `start .. start + len` of every image, `[1]`, and there `sigmoid(x)`, `[B, len, A]`, without gradient. The
    /// same bits for any number of threads.
    fn softplus_sum(x: Float<Self>, start: usize, len: usize) -> (Float<Self>, Float<Self>);

    /// The gradient of that sum for x, of C = `total` rows, from sigmoid(x) and dy, `[1]`.
    fn softplus_sum_grad(slope: Float<Self>, dy: Float<Self>, start: usize, total: usize) -> Float<Self> {
        portable::softplus_sum_grad::<Self>(slope, dy, start, total)
    }

    /// What an assigner asks of raw outputs, without gradient: the four corners of every image in pixels, `centre -/+ expected bins` times the
    /// anchor's stride, then `sigmoid(x)` of some of the `B C` rows; `[4 B + chosen, A]`. Centres `[1, 2, A]` (x row, y row), strides `[1, 1, A]`.
    fn predictions(x: Float<Self>, centres: Float<Self>, strides: Float<Self>, chosen: Vec<i32>, bins: usize) -> Float<Self> {
        let sides = Self::expectation(x.clone(), 4, bins);
        portable::predictions::<Self>(x, sides, centres, strides, chosen)
    }

    /// `Σ k softmax(x)_k` over each of the first `sides` groups of `bins` rows, `[B, sides, A]`, without gradient.
    fn expectation(x: Float<Self>, sides: usize, bins: usize) -> Float<Self>;
}

/// What an assigner asks of raw outputs x `[B, C, A]`: see [`LogitOps::predictions`]. `chosen` are rows among the `B C` of x.
pub fn predictions(x: Tensor<3>, centres: Tensor<3>, strides: Tensor<3>, chosen: Vec<i32>, bins: usize) -> Tensor<2> {
    let [b, c, a] = x.dims();
    shapes::within("rows", &(0..4 * bins), c);
    shapes::expect("centres", centres.dims(), [1, 2, a]);
    shapes::expect("strides", strides.dims(), [1, 1, a]);
    assert!(bins > 0 && chosen.iter().all(|&row| (row as usize) < b * c), "rows {chosen:?} of {}", b * c);
    Tensor::from_dispatch(Dispatch::predictions(x.into_dispatch(), centres.into_dispatch(), strides.into_dispatch(), chosen, bins))
}

/// `sigmoid(x)` of the rows of x `[B, C, A]` from `start` on, `[B, C - start, A]`, without gradient: what the loss has as the slope of softplus.
pub fn scores(x: Tensor<3>, start: usize) -> Tensor<3> {
    let [_, c, _] = x.dims();
    shapes::within("rows", &(start..c), c);
    Tensor::from_dispatch(Dispatch::softplus_sum(x.into_dispatch(), start, c - start).1)
}

/// The expected bin of each distribution: the first `sides bins` rows of x `[B, C, A]` are logits, `bins` a side; `[B, sides, A]`, without gradient.
pub fn expectation(x: Tensor<3>, sides: usize, bins: usize) -> Tensor<3> {
    shapes::within("rows", &(0..sides * bins), x.dims()[1]);
    assert!(bins > 0, "distributions over nothing");
    Tensor::from_dispatch(Dispatch::expectation(x.into_dispatch(), sides, bins))
}

/// Nothing here is differentiable by itself: who uses the sum passes its slope back, see [`foreground`](crate::foreground).
impl<B: LogitOps, C: CheckpointStrategy> LogitOps for Autodiff<B, C> {
    fn softplus_sum(x: Float<Self>, start: usize, len: usize) -> (Float<Self>, Float<Self>) {
        let (sum, slope) = B::softplus_sum(x.into_primitive(), start, len);
        (Self::from_inner(sum), Self::from_inner(slope))
    }

    fn predictions(x: Float<Self>, centres: Float<Self>, strides: Float<Self>, chosen: Vec<i32>, bins: usize) -> Float<Self> {
        Self::from_inner(B::predictions(x.into_primitive(), centres.into_primitive(), strides.into_primitive(), chosen, bins))
    }

    fn expectation(x: Float<Self>, sides: usize, bins: usize) -> Float<Self> {
        Self::from_inner(B::expectation(x.into_primitive(), sides, bins))
    }
}
