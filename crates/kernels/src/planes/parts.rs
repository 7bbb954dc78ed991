//! A number of tensors as one operand.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind, ExtensionType};

/// Tensors to be joined: the operations of a backend extension take no `Vec` of tensors, but a type that maps itself.
#[derive(Clone, Debug)]
pub struct Parts<B: Backend>(pub Vec<FloatTensor<B>>);

impl<B: Backend> ExtensionType<B> for Parts<B> {
    type Target = Parts<Dispatch>;

    fn map_to_dispatch<F>(self, map_kind: F, autodiff: DispatchAutodiffContext) -> Self::Target
    where
        F: Fn(BackendTensor<B>) -> DispatchTensorKind,
    {
        Parts(self.0.into_iter().map(|t| DispatchTensor { kind: map_kind(BackendTensor::Float(t)), autodiff }).collect())
    }

    fn map_from_dispatch<F>(target: Self::Target, unwrap_kind: F) -> Self
    where
        F: Fn(DispatchTensor) -> BackendTensor<B>,
    {
        Self(target.0.into_iter().map(|t| unwrap_kind(t).float()).collect())
    }

    fn routing_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }

    fn routing_float_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }

    fn autodiff_context(target: &Self::Target) -> DispatchAutodiffContext {
        target.0.iter().fold(DispatchAutodiffContext::Disabled, |context, t| context.merge(t.autodiff))
    }
}
