//! Why a description is not that of a model.

/// Why a model cannot be built from a description.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// Not a JSON object of the expected kind.
    #[error("{0}")]
    Malformed(String),
    /// An architecture that is not built here.
    #[error("model_type {0:?} is not supported: use qwen2, qwen3, llama or mistral")]
    Architecture(String),
    /// A feature that would change the numbers and is not built here.
    #[error("{0}")]
    Unsupported(String),
    /// Sizes that cannot belong together.
    #[error("{0}")]
    Sizes(String),
}
