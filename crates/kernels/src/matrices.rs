//! Products of matrices without a weight among them, as the ways in Burn's own words compute them.
//!
//! On a CubeCL device Burn's product is chosen by timing candidates on the card, which runs every one of them. With [`Lowering::Gemm`](crate::Lowering)
//! it is the kernel that convolutions are computed with there: nothing is tuned, and results repeat bit for bit. With [`Lowering::Untuned`](crate::Lowering)
//! it is Burn's first kernel that takes the shapes.

use burn::backend::{Backend, Dispatch, Flex};

use crate::steps::{Autodiff, CheckpointStrategy, Float};

/// Products of matrices.
pub trait MatrixOps: Backend {
    /// `a b`: `[.., m, k]` and `[.., k, n]`, of equal leading axes and one type, to `[.., m, n]`.
    fn product(a: Float<Self>, b: Float<Self>) -> Float<Self> {
        Self::float_matmul(a, b)
    }

    /// Whether `b` of [`product`](Self::product) may be in 16 bits beside an `a` in f32: its values are then read where they lie.
    fn reads_halves() -> bool {
        false
    }
}

impl MatrixOps for Flex {}
impl MatrixOps for Dispatch {}
impl<B: Backend, C: CheckpointStrategy> MatrixOps for Autodiff<B, C> {}
