//! What can go wrong before a kernel runs. Inside one, shapes have been checked by the operation that calls it.

/// An error of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// `FromStr` of a [`Lowering`](crate::Lowering) or a [`Precision`](crate::Precision) was given another word.
    #[error("no {what} is called {given}: {known}")]
    Unknown {
        /// Lowering or precision.
        what: &'static str,
        /// What was written.
        given: String,
        /// The names there are.
        known: String,
    },
}
