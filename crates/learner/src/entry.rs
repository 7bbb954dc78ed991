//! A tensor of a module, by its name.

use burn::tensor::DType;

/// One float tensor of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Path of field names, joined by dots.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Index of its parameter group; `None` for buffers and frozen parameters.
    pub group: Option<usize>,
    /// Its number format.
    pub dtype: DType,
}

impl Entry {
    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }
}
