//! Nothing here is differentiable by itself: who uses the sum passes its slope back, see [`foreground`](crate::foreground).

use burn::backend::AutodiffBackend;

use super::LogitOps;
use crate::steps::{Autodiff, CheckpointStrategy, Float};

impl<B: LogitOps, C: CheckpointStrategy> LogitOps for Autodiff<B, C> {
    fn softplus_sum(x: Float<Self>, start: usize, len: usize) -> (Float<Self>, Float<Self>) {
        let (sum, slope) = B::softplus_sum(x.into_primitive(), start, len);
        (Self::from_inner(sum), Self::from_inner(slope))
    }

    fn softplus_sum_grad(slope: Float<Self>, dy: Float<Self>, start: usize, total: usize) -> Float<Self> {
        Self::from_inner(B::softplus_sum_grad(slope.into_primitive(), dy.into_primitive(), start, total))
    }

    fn predictions(x: Float<Self>, centres: Float<Self>, strides: Float<Self>, chosen: Vec<i32>, bins: usize) -> Float<Self> {
        Self::from_inner(B::predictions(x.into_primitive(), centres.into_primitive(), strides.into_primitive(), chosen, bins))
    }

    fn expectation(x: Float<Self>, sides: usize, bins: usize) -> Float<Self> {
        Self::from_inner(B::expectation(x.into_primitive(), sides, bins))
    }
}
