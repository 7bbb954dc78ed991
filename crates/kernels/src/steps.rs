//! What every backward step of ours is written with.

pub(crate) use burn::backend::tensor::FloatTensor as Float;
pub(crate) use burn_autodiff::checkpoint::base::Checkpointer;
pub(crate) use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
pub(crate) use burn_autodiff::grads::Gradients;
pub(crate) use burn_autodiff::ops::{Backward, NodeGuard, Ops, OpsKind, unary};
pub(crate) use burn_autodiff::{Autodiff, NodeId};

pub(crate) use crate::meeting::register;

/// The result `y` in the graph if any of its parents is: with a state, which may be made of tensors that `prep` keeps before `y` takes them.
macro_rules! recorded {
    ($prep:expr, |$tracked:ident| $state:expr, $y:expr) => {
        match $prep {
            $crate::steps::OpsKind::Tracked(mut $tracked) => {
                let state = $state;
                $tracked.finish(state, $y)
            }
            $crate::steps::OpsKind::UnTracked(prep) => prep.finish($y),
        }
    };
    ($prep:expr, $state:expr, $y:expr) => {
        match $prep {
            $crate::steps::OpsKind::Tracked(prep) => prep.finish($state, $y),
            $crate::steps::OpsKind::UnTracked(prep) => prep.finish($y),
        }
    };
}
pub(crate) use recorded;
