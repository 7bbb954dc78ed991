//! A low-rank branch beside a weight, as the operations take it.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType};

/// `s B A`.
#[derive(ExtensionType, Clone, Debug)]
pub struct StoredBranch<B: Backend> {
    /// A, `[r, in]`.
    pub a: FloatTensor<B>,
    /// B, `[out, r]`.
    pub b: FloatTensor<B>,
    /// s.
    pub scaling: f64,
}

/// A branch or none: an operation of a backend extension takes no `Option`.
#[derive(ExtensionType)]
pub enum Branch<B: Backend> {
    /// None.
    Zero,
    /// This one.
    LowRank(#[extension_type] StoredBranch<B>),
}

impl<B: Backend> Branch<B> {
    /// As an option.
    pub fn into_option(self) -> Option<StoredBranch<B>> {
        match self {
            Self::Zero => None,
            Self::LowRank(branch) => Some(branch),
        }
    }
}

impl<B: Backend> From<Option<StoredBranch<B>>> for Branch<B> {
    fn from(branch: Option<StoredBranch<B>>) -> Self {
        branch.map_or(Self::Zero, Self::LowRank)
    }
}
