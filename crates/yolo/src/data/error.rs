//! What can go wrong between a data.yaml and a batch. Every message carries the path, and the line where there is one.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bellows_exit::{Coded, Exit};
use bellows_runs::StoreError;

/// Why data could not be read, checked or generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The data.yaml is wrong.
    #[error("{}{}: {reason}", path.display(), line.map(|l| format!(":{l}")).unwrap_or_default())]
    Yaml {
        /// The YAML file.
        path: PathBuf,
        /// 1-based, where the parser knows it.
        line: Option<u64>,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// A COCO file is wrong.
    #[error("{}: {reason}", path.display())]
    Coco {
        /// The JSON file.
        path: PathBuf,
        /// What is wrong with it, and where: line, column, element, id.
        reason: String,
    },
    /// A path from a user's file leads out of the dataset root.
    #[error(
        "{}: outside the dataset root {}; if that is meant, allow it with --allow-outside {}",
        path.display(),
        root.display(),
        if path.is_dir() { path.display() } else { path.parent().unwrap_or(path).display() }
    )]
    Outside {
        /// Where the path leads.
        path: PathBuf,
        /// The folder it has to stay in.
        root: PathBuf,
    },
    /// The images named by the data.yaml are not there.
    #[error("{}: no such images ({yaml_key} in {}){hint}", path.display(), yaml.display())]
    Missing {
        /// Where they were looked for.
        path: PathBuf,
        /// `train`, `val` or `test`.
        yaml_key: String,
        /// The YAML file.
        yaml: PathBuf,
        /// Whose path it may be, and how to obtain the data, from the YAML's `download` text (which is shown and never executed).
        hint: String,
    },
    /// One image cannot be used.
    #[error("{name}: {reason}")]
    Image {
        /// File name or path.
        name: String,
        /// Why.
        reason: String,
    },
    /// More than 1 % of the images are unusable.
    #[error("{bad} of {total} images cannot be used (more than 1 %; mend them, or leave them out with allow_bad):{list}")]
    TooManyBad {
        /// How many are bad.
        bad: usize,
        /// Out of how many.
        total: usize,
        /// The first 20, one a line.
        list: String,
    },
    /// Nothing left to train on.
    #[error("{}: no usable image ({reason})", path.display())]
    NoImages {
        /// The dataset root.
        path: PathBuf,
        /// What was found instead.
        reason: String,
    },
    /// A file that is absent, too large or none at all.
    #[error(transparent)]
    File(#[from] bellows_runs::PathError),
    /// A shard or its index is damaged, or cannot be read or written.
    #[error(transparent)]
    Shard(#[from] bellows_shards::ShardError),
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] StoreError),
    /// The images do not fit into memory.
    #[error("cache=ram needs about {need_mib} MiB, {free_mib} MiB are free: use less data, a smaller imgsz, or no cache")]
    Memory {
        /// Estimate including the safety margin, MiB.
        need_mib: u64,
        /// Available memory, MiB.
        free_mib: u64,
    },
    /// The decoded images do not fit on the disk.
    #[error("cache=disk needs about {need_mib} MiB in {}, {free_mib} MiB are free: use less data, a smaller imgsz, or no cache", dir.display())]
    Disk {
        /// The cache folder.
        dir: PathBuf,
        /// Estimate including the safety margin, MiB.
        need_mib: u64,
        /// Free space, MiB.
        free_mib: u64,
    },
    /// A dataset could not give an item.
    #[error("item {index}: {source}")]
    Item {
        /// Index into the dataset.
        index: usize,
        /// What the dataset said.
        source: burn::data::dataset::DatasetError,
    },
    /// Samples of different shape in one batch, or a value out of its documented range.
    #[error("{0}")]
    Invalid(String),
}

impl Coded for DataError {
    fn exit(&self) -> Exit {
        match self {
            Self::Shard(error) => error.exit(),
            Self::Write(error) => error.exit(),
            Self::Io { source, .. } if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => Exit::Failed,
            _ => Exit::Usage,
        }
    }
}

impl DataError {
    /// What more than 1 % of unusable images is, which is not what the owner of the data thinks they are.
    pub(crate) fn too_many_bad<T: std::fmt::Display>(bad: &[T], total: usize) -> Option<Self> {
        if bad.len() * 100 <= total {
            return None;
        }
        let list = bad.iter().take(20).map(|b| format!("\n  {b}")).collect::<String>();
        let more = if bad.len() > 20 { format!("\n  and {} more", bad.len() - 20) } else { String::new() };
        Some(Self::TooManyBad { bad: bad.len(), total, list: list + &more })
    }

    /// For `map_err`: an I/O error with its path.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }

    /// For `map_err`: a file that cannot be written, which is no fault of what was given.
    pub(crate) fn writing(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::Write(StoreError::new("write", path, error))
    }
}

#[cfg(test)]
mod tests {
    use bellows_shards::{ShardError, ShardFault};

    use super::*;

    #[test]
    fn a_full_disk_is_no_fault_of_the_input() {
        let (path, full) = (Path::new("a.jpg"), || std::io::Error::from(ErrorKind::StorageFull));
        let fault = Box::new(ShardFault::Write(StoreError::new("write", path, full())));
        let shard = DataError::from(ShardError { path: path.into(), at: None, fault });
        assert_eq!([DataError::writing(path)(full()), DataError::io(path)(full()), shard].map(|error| error.exit()), [Exit::Failed; 3]);
        assert_eq!(DataError::io(path)(ErrorKind::NotFound.into()).exit(), Exit::Usage);
    }
}
