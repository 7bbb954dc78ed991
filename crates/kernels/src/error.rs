//! What can go wrong before a kernel runs. Inside one, shapes have been checked by the operation that calls it.

/// An error of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// [`Lowering`](crate::Lowering)'s `FromStr` was given another word.
    #[error("no lowering is called {given}: {known}")]
    UnknownLowering {
        /// What was written.
        given: String,
        /// The names there are.
        known: String,
    },
    /// [`Precision`](crate::Precision)'s `FromStr` was given another word.
    #[error("no precision is called {given}: {known}")]
    UnknownPrecision {
        /// What was written.
        given: String,
        /// The names there are.
        known: String,
    },
}
