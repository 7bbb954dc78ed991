//! The one error of this crate: which file, and what in it was refused.

use std::fmt;
use std::path::{Path, PathBuf};

use bellows_exit::{Coded, Exit};

/// A weight file that could not be read or written.
#[derive(Debug)]
pub struct WeightsError {
    /// The file, when there is one (bytes in memory have none).
    pub path: Option<PathBuf>,
    /// What was wrong with it.
    pub fault: Fault,
}

/// Of a file that is read: whoever writes one has its own code.
impl Coded for WeightsError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}

impl fmt::Display for WeightsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{}: {}", path.display(), self.fault),
            None => self.fault.fmt(f),
        }
    }
}

impl std::error::Error for WeightsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.fault.source()
    }
}

impl WeightsError {
    pub(crate) fn at(path: &Path) -> impl FnOnce(Fault) -> Self {
        move |fault| WeightsError { path: Some(path.to_owned()), fault }
    }
}

impl From<Fault> for WeightsError {
    fn from(fault: Fault) -> Self {
        WeightsError { path: None, fault }
    }
}

/// What was wrong.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The disk or the file system refused.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A directory, a pipe or a device where a file should be.
    #[error("not a regular file")]
    NotAFile,
    /// Not a format this crate reads.
    #[error(
        "neither safetensors, nor a .pt (zip) file, nor ONNX; it starts with {start:02x?}. Checkpoints of PyTorch before 1.6 must be saved again"
    )]
    Unrecognised {
        /// The first bytes, at most 9.
        start: Vec<u8>,
    },
    /// The zip container of a `.pt` is damaged or uses a feature `torch.save` does not.
    #[error("zip: {what}")]
    Zip {
        /// The entry and the complaint.
        what: String,
    },
    /// The pickle is damaged or asks for something that is not allowed.
    #[error("data.pkl byte {at}: {what}")]
    Pickle {
        /// Position of the opcode in `data.pkl`.
        at: usize,
        /// The complaint.
        what: String,
    },
    /// The pickle names a Python class or function that is not on the allow-list. Loading the file in Python would run it.
    #[error("data.pkl byte {at}: `{global}` is not allowed in a weight file (opening it with PyTorch could run code)")]
    Global {
        /// Position of the opcode in `data.pkl`.
        at: usize,
        /// The dotted name.
        global: String,
    },
    /// The objects of the pickle are not arranged as weights.
    #[error("no weights found: {what}")]
    Layout {
        /// What is there instead.
        what: String,
    },
    /// A safetensors header is damaged.
    #[error("safetensors header: {what}")]
    Header {
        /// The complaint.
        what: String,
    },
    /// A GGUF file is damaged.
    #[error("GGUF byte {at}: {what}")]
    Gguf {
        /// Position in the file.
        at: u64,
        /// The complaint.
        what: String,
    },
    /// An ONNX file is damaged, or keeps its weights where they are not read.
    #[error("ONNX byte {at}: {what}")]
    Onnx {
        /// Position in the file.
        at: usize,
        /// The complaint.
        what: String,
    },
    /// A metadata entry is not as it should be.
    #[error("metadata `{key}`: {what}")]
    Metadata {
        /// The key.
        key: String,
        /// The complaint.
        what: String,
    },
    /// A checkpoint's index, or the files it names, are not as they should be.
    #[error("{what}")]
    Checkpoint {
        /// The complaint.
        what: String,
    },
    /// One tensor is wrong.
    #[error("tensor `{name}`: {what}")]
    Tensor {
        /// Its name.
        name: String,
        /// The complaint, with sizes.
        what: String,
    },
    /// Values that a block type cannot hold.
    #[error("{what}")]
    Blocks {
        /// The complaint.
        what: String,
    },
    /// Two tensors have the same name.
    #[error("two tensors are named `{name}`")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A bound was exceeded.
    #[error("{what}: {size} is over the limit of {limit}")]
    TooLarge {
        /// What was counted.
        what: String,
        /// How much there was, or would have been.
        size: u64,
        /// How much is allowed.
        limit: u64,
    },
    /// A NaN or an infinity.
    #[error("tensor `{name}`: element {index} is {value}")]
    NonFinite {
        /// The tensor.
        name: String,
        /// Position of the first such element, row-major.
        index: usize,
        /// Its value.
        value: f64,
    },
}

impl Fault {
    pub(crate) fn tensor(name: impl Into<String>, what: impl Into<String>) -> Self {
        Fault::Tensor { name: name.into(), what: what.into() }
    }
}
