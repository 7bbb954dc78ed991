//! The one error of this crate: which file, which byte, what is wrong there.

use std::path::{Path, PathBuf};

use bellows_exit::{Coded, Exit};
use bellows_runs::{PathError, StoreError};

/// A shard or an index that cannot be used.
#[derive(Debug)]
pub struct ShardError {
    /// The shard or the index.
    pub path: PathBuf,
    /// The byte of it, where the fault belongs to one.
    pub at: Option<u64>,
    /// What is wrong.
    pub fault: Box<ShardFault>,
}

impl std::fmt::Display for ShardError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // These name it themselves.
        if !matches!(*self.fault, ShardFault::Open(_) | ShardFault::Write(_)) {
            write!(f, "{}: ", self.path.display())?;
        }
        if let Some(at) = self.at {
            write!(f, "byte {at}: ")?;
        }
        self.fault.fmt(f)
    }
}

impl std::error::Error for ShardError {}

impl Coded for ShardError {
    fn exit(&self) -> Exit {
        match &*self.fault {
            ShardFault::Write(error) => error.exit(),
            _ => Exit::Usage,
        }
    }
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardFault {
    /// The system refused.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The index could not be read within its budget.
    #[error("{0}")]
    Open(#[from] PathError),
    /// A shard or the index could not be written.
    #[error("{0}")]
    Write(#[from] StoreError),
    /// The index names a shard that is not there.
    #[error("the shard is missing")]
    Missing,
    /// The file ends in the middle of an archive.
    #[error("the file ends here, in the middle of the archive")]
    Cut,
    /// A header's own sum is not that of its bytes.
    #[error("the checksum of the header is wrong: these bytes are damaged, or no tar archive")]
    Header,
    /// Another file lies here than the index says.
    #[error("`{found}` of {size} bytes lies here, and the index has {expected}: write the index anew")]
    Differs {
        /// Its name.
        found: String,
        /// Its size.
        size: u64,
        /// The name and size that the index has.
        expected: String,
    },
    /// The contents are not those that were written.
    #[error("the CRC-32C of `{name}` is {found:08x}, and was {expected:08x}: the file is damaged")]
    Content {
        /// The file in the archive.
        name: String,
        /// As it is.
        found: u32,
        /// As it was written.
        expected: u32,
    },
    /// A kind of archive, or a file in it, that is not read.
    #[error("{0}")]
    Unknown(String),
    /// The index is damaged, or does not agree with the shards.
    #[error("the index {0}")]
    Index(String),
}

impl ShardFault {
    /// This fault, in `path`.
    pub(crate) fn of(self, path: &Path) -> ShardError {
        ShardError { path: path.into(), at: None, fault: Box::new(self) }
    }

    /// This fault, at a byte of `path`.
    pub(crate) fn at(self, path: &Path, at: u64) -> ShardError {
        ShardError { path: path.into(), at: Some(at), fault: Box::new(self) }
    }
}
