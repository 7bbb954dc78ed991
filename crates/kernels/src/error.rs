//! What can go wrong before a kernel runs. Inside one, shapes have been checked by the operation that calls it.

use crate::policy::Lowering;

/// An error of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// [`Lowering`]'s `FromStr` was given another word.
    #[error("no lowering is called {0}: {known}", known = Lowering::ALL.map(|l| l.to_string()).join(", "))]
    UnknownLowering(String),
}
