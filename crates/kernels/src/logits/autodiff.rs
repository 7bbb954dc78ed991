//! Nothing here is differentiable by itself: who uses the sum passes its slope back, see [`foreground`](crate::foreground).

use burn::backend::AutodiffBackend;
use burn::backend::tensor::FloatTensor;
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;

use super::LogitOps;

impl<B: LogitOps, C: CheckpointStrategy> LogitOps for Autodiff<B, C> {
    fn softplus_sum(x: FloatTensor<Self>, start: usize, len: usize) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (sum, slope) = B::softplus_sum(x.into_primitive(), start, len);
        (Self::from_inner(sum), Self::from_inner(slope))
    }

    fn softplus_sum_grad(slope: FloatTensor<Self>, dy: FloatTensor<Self>, start: usize, total: usize) -> FloatTensor<Self> {
        Self::from_inner(B::softplus_sum_grad(slope.into_primitive(), dy.into_primitive(), start, total))
    }

    fn predictions(
        x: FloatTensor<Self>,
        centres: FloatTensor<Self>,
        strides: FloatTensor<Self>,
        chosen: Vec<i32>,
        bins: usize,
    ) -> FloatTensor<Self> {
        Self::from_inner(B::predictions(x.into_primitive(), centres.into_primitive(), strides.into_primitive(), chosen, bins))
    }

    fn expectation(x: FloatTensor<Self>, sides: usize, bins: usize) -> FloatTensor<Self> {
        Self::from_inner(B::expectation(x.into_primitive(), sides, bins))
    }
}
