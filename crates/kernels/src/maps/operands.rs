//! Maps as the operations take them.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind, ExtensionType};

use crate::products::{StoredBranch, StoredWeight};

/// Maps of one input.
#[derive(Clone, Debug)]
pub struct Maps<B: Backend>(pub Vec<StoredMap<B>>);

/// A [`Map`](super::Map) of a backend.
#[derive(Clone, Debug)]
pub struct StoredMap<B: Backend> {
    /// `[out, in]`.
    pub weight: StoredWeight<B>,
    /// `[out]`.
    pub bias: Option<FloatTensor<B>>,
    /// The adapter.
    pub branch: Option<StoredBranch<B>>,
}

impl<B: Backend> StoredMap<B> {
    /// The same on another backend.
    pub(super) fn map<T: Backend>(
        self,
        weight: impl FnOnce(StoredWeight<B>) -> StoredWeight<T>,
        tensor: impl Fn(FloatTensor<B>) -> FloatTensor<T>,
    ) -> StoredMap<T> {
        let branch = self.branch.map(|StoredBranch { a, b, scaling }| StoredBranch { a: tensor(a), b: tensor(b), scaling });
        StoredMap { weight: weight(self.weight), bias: self.bias.map(&tensor), branch }
    }
}

impl<B: Backend> ExtensionType<B> for Maps<B> {
    type Target = Maps<Dispatch>;

    fn map_to_dispatch<F>(self, map_kind: F, autodiff: DispatchAutodiffContext) -> Self::Target
    where
        F: Fn(BackendTensor<B>) -> DispatchTensorKind,
    {
        let tensor = |t: FloatTensor<B>| DispatchTensor { kind: map_kind(BackendTensor::Float(t)), autodiff };
        let all = self.0.into_iter().map(|map| map.map(|weight| weight.map_to_dispatch(&map_kind, autodiff), tensor));
        Maps(all.collect())
    }

    fn map_from_dispatch<F>(target: Self::Target, unwrap_kind: F) -> Self
    where
        F: Fn(DispatchTensor) -> BackendTensor<B>,
    {
        let tensor = |t: DispatchTensor| unwrap_kind(t).float();
        Self(target.0.into_iter().map(|map| map.map(|weight| StoredWeight::map_from_dispatch(weight, &unwrap_kind), tensor)).collect())
    }

    fn routing_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first().and_then(|map| StoredWeight::<B>::routing_tensor(&map.weight))
    }

    fn routing_float_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first().and_then(|map| StoredWeight::<B>::routing_float_tensor(&map.weight))
    }

    fn autodiff_context(target: &Self::Target) -> DispatchAutodiffContext {
        let of = |map: &StoredMap<Dispatch>| {
            let branch = map.branch.iter().flat_map(|branch| [branch.a.autodiff, branch.b.autodiff]);
            let others = branch.chain(map.bias.iter().map(|bias| bias.autodiff));
            others.fold(StoredWeight::<B>::autodiff_context(&map.weight), DispatchAutodiffContext::merge)
        };
        target.0.iter().map(of).fold(DispatchAutodiffContext::Disabled, DispatchAutodiffContext::merge)
    }
}
