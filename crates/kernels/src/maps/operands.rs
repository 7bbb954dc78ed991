//! A number of maps as one operand.

use burn::backend::{Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind, ExtensionType};

use crate::products::StoredMap;

/// Maps of one input.
#[derive(Clone, Debug)]
pub struct Maps<B: Backend> {
    /// One after the other.
    pub all: Vec<StoredMap<B>>,
    /// Whether their results, and on the way back the gradient of the input, may be f16: where our kernels for GPUs compute them.
    pub half: bool,
}

impl<B: Backend> ExtensionType<B> for Maps<B> {
    type Target = Maps<Dispatch>;

    fn map_to_dispatch<F>(self, map_kind: F, autodiff: DispatchAutodiffContext) -> Self::Target
    where
        F: Fn(BackendTensor<B>) -> DispatchTensorKind,
    {
        Maps { all: self.all.into_iter().map(|map| map.map_to_dispatch(&map_kind, autodiff)).collect(), half: self.half }
    }

    fn map_from_dispatch<F>(target: Self::Target, unwrap_kind: F) -> Self
    where
        F: Fn(DispatchTensor) -> BackendTensor<B>,
    {
        Self { all: target.all.into_iter().map(|map| StoredMap::map_from_dispatch(map, &unwrap_kind)).collect(), half: target.half }
    }

    fn routing_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.all.first().and_then(StoredMap::<B>::routing_tensor)
    }

    fn routing_float_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.all.first().and_then(StoredMap::<B>::routing_float_tensor)
    }

    fn autodiff_context(target: &Self::Target) -> DispatchAutodiffContext {
        target.all.iter().map(StoredMap::<B>::autodiff_context).fold(DispatchAutodiffContext::Disabled, DispatchAutodiffContext::merge)
    }
}
