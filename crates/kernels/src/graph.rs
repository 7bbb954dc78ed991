//! How a part of a network gets a graph of its own: where its input enters, and how the gradient of its result is led in.
//!
//! In Burn's words the result is multiplied by its gradient and added up, four passes over what is only handed on; and a leaf's gradients are
//! added by Burn alone, where an operation could have added its own to what is there (see `meeting`).

use burn::backend::{AutodiffBackend, Backend, Dispatch, TensorMetadata, backend_extension};
use burn::tensor::{Tensor, TensorData};
use burn_cubecl::CubeBackend;
use burn_flex::Flex;

use crate::planes::PlaneOps;
use crate::steps::{Autodiff, CheckpointStrategy, Float, recorded};

/// Operations that compute nothing.
#[backend_extension(Flex, Cube, Autodiff)]
pub trait GraphOps: Backend {
    /// x.
    fn enter(x: Float<Self>) -> Float<Self> {
        x
    }

    /// A zero, `[1]`, whose gradient by y is dy.
    fn lead(y: Float<Self>, dy: Float<Self>) -> Float<Self> {
        drop(dy);
        Self::float_from_data(TensorData::zeros::<f32, _>([1]).convert_dtype(y.dtype()), &y.device())
    }
}

impl GraphOps for Flex {}
impl GraphOps for CubeBackend {}

impl<B: GraphOps + PlaneOps, C: CheckpointStrategy> GraphOps for Autodiff<B, C> {
    fn enter(x: Float<Self>) -> Float<Self> {
        recorded::<B, C, 1>([x.node()], &[], x.into_primitive(), |dy, mut parents| parents.give::<B>(0, || dy))
    }

    fn lead(y: Float<Self>, dy: Float<Self>) -> Float<Self> {
        let (nodes, dy) = ([y.node()], Self::inner(dy));
        let zero = B::lead(y.into_primitive(), dy.clone());
        recorded::<B, C, 1>(nodes, &[], zero, move |_, mut parents| parents.give::<B>(0, || dy))
    }
}

/// x as the input of what has a graph of its own: its readers' gradients meet here before they come to the leaf.
pub fn enter<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::enter(x.into_dispatch()))
}

/// A scalar whose backward pass begins at `y` with `dy`, which is of its shape.
pub fn lead<const D: usize>(y: Tensor<D>, dy: Tensor<D>) -> Tensor<1> {
    crate::shapes::expect("the gradient", dy.dims(), y.dims());
    Tensor::from_dispatch(Dispatch::lead(y.into_dispatch(), dy.into_dispatch()))
}
