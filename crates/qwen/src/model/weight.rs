//! The matrix of a linear map: a parameter, or frozen in few bits.

use bellows_kernels::{Blocks, Weight as Stored};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

/// `[out, in]`.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "one a linear map: a kilobyte of handles beside a megabyte of weights")]
pub enum Weight {
    /// In some float type; what is trained is f32.
    Dense(Param<Tensor<2>>),
    /// In blocks: no parameter, so nothing that goes through parameters (checkpoints, gradients) meets it.
    Blocks(Blocks),
}

impl Weight {
    /// One that no gradient is asked for.
    pub fn frozen(weight: Tensor<2>) -> Self {
        Self::Dense(Param::from_tensor(weight).set_require_grad(false))
    }

    /// `[out, in]`.
    pub fn dims(&self) -> [usize; 2] {
        match self {
            Self::Dense(weight) => weight.lazy_shape().dims(),
            Self::Blocks(blocks) => blocks.dims(),
        }
    }

    /// Where it is.
    pub fn device(&self) -> Device {
        match self {
            Self::Dense(weight) => weight.lazy_device(),
            Self::Blocks(blocks) => blocks.device(),
        }
    }

    /// Whether it has values: a parameter that nothing was read into is zeros that are nowhere yet.
    pub fn has_values(&self) -> bool {
        match self {
            Self::Dense(weight) => weight.is_initialized(),
            Self::Blocks(_) => true,
        }
    }

    /// As products take it.
    pub fn stored(&self) -> Stored {
        match self {
            Self::Dense(weight) => Stored::Dense(weight.val()),
            Self::Blocks(blocks) => Stored::Blocks(blocks.clone()),
        }
    }

    /// Its values: as they are, or those of blocks in f32, which is to be dropped soon.
    pub fn val(&self) -> Tensor<2> {
        self.stored().dense()
    }

    /// With other values, and frozen if it was in blocks.
    #[must_use]
    pub fn map(self, to: impl FnOnce(Tensor<2>) -> Tensor<2>) -> Self {
        match self {
            Self::Dense(weight) => Self::Dense(weight.map(to)),
            Self::Blocks(_) => Self::frozen(to(self.val())),
        }
    }
}
