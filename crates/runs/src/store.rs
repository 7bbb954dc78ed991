//! Every file-system operation by which a journal keeps something, behind one trait, so that tests can fail or forget each of them.
//!
//! The operations are as small as the system calls they stand for: a write does not sync, a sync of a directory does not sync its
//! files. Nothing here decides an order; `checkpoints`, `append_log`, `atomic` and `journal` do. Relies on `fsync` meaning what it says.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bellows_exit::{Coded, Exit};

/// A failed file operation: what was tried, on which path, and what the system said.
///
/// The text is complete by itself (`source()` is `None`), so printing an error chain says each thing once.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {error}", path.display())]
pub struct StoreError {
    /// The verb, as in "cannot write".
    pub action: &'static str,
    /// The file or directory the operation was about.
    pub path: PathBuf,
    /// What the operating system answered.
    pub error: io::Error,
}

impl Coded for StoreError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

impl StoreError {
    /// Ties an I/O error to the action and the path it happened on.
    pub fn new(action: &'static str, path: &Path, error: io::Error) -> Self {
        Self { action, path: path.to_path_buf(), error }
    }

    /// True when the disk, the quota, or the file-size limit (`ulimit -f`) is used up: the data could not be stored *now*.
    pub fn is_no_space(&self) -> bool {
        matches!(self.error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
    }

    /// True when the path does not exist.
    pub fn is_not_found(&self) -> bool {
        self.error.kind() == ErrorKind::NotFound
    }
}

/// The file-system operations of a run's journal. [`DiskStore`] is the real one.
pub trait Store {
    /// Creates one directory; fails if it exists or its parent does not.
    fn create_dir(&self, path: &Path) -> Result<(), StoreError>;
    /// Creates a new file holding `bytes`; fails if it exists. Durable only after [`Store::sync_file`] and the directory's sync.
    fn write_file(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError>;
    /// Makes the contents of a file durable (`fsync`).
    fn sync_file(&self, path: &Path) -> Result<(), StoreError>;
    /// Makes the entries of a directory durable: names created, renamed and removed in it, not the contents behind them.
    fn sync_dir(&self, path: &Path) -> Result<(), StoreError>;
    /// Adds `bytes` to the end of a file, which is made if it is not there; after an error a part of them may be there.
    fn append(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError>;
    /// Cuts a file to its first `len` bytes.
    fn truncate(&self, path: &Path, len: u64) -> Result<(), StoreError>;
    /// Bytes in a file.
    fn len(&self, path: &Path) -> Result<u64, StoreError>;
    /// Renames a file or directory, atomically, within one parent. A file takes the place of a file; for a directory, callers make sure that
    /// `to` is free.
    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError>;
    /// Removes a file.
    fn remove_file(&self, path: &Path) -> Result<(), StoreError>;
    /// Removes a directory and all that is in it.
    fn remove_dir_all(&self, path: &Path) -> Result<(), StoreError>;
    /// Reads a regular file (never a link, pipe or device) of at most `limit` bytes; longer is [`ErrorKind::FileTooLarge`].
    fn read(&self, path: &Path, limit: u64) -> Result<Vec<u8>, StoreError>;
    /// Reads at most `len` bytes of a file from `at` on; fewer where it ends.
    fn read_part(&self, path: &Path, at: u64, len: usize) -> Result<Vec<u8>, StoreError>;
    /// Names in a directory, in no order. Names that are not UTF-8 are left out: none of ours is.
    fn list(&self, path: &Path) -> Result<Vec<String>, StoreError>;
    /// Bytes this user may still write on the file system of `path`; quotas are not seen. `u64::MAX` where it cannot be known.
    fn free_space(&self, path: &Path) -> Result<u64, StoreError>;
}

/// The real file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskStore;

impl Store for DiskStore {
    fn create_dir(&self, path: &Path) -> Result<(), StoreError> {
        fs::create_dir(path).map_err(|e| StoreError::new("create directory", path, e))
    }

    fn write_file(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let write = || File::create_new(path)?.write_all(bytes);
        write().map_err(|e| StoreError::new("write", path, e))
    }

    fn sync_file(&self, path: &Path) -> Result<(), StoreError> {
        // Opened for writing because Windows flushes only writable handles.
        let sync = || OpenOptions::new().write(true).open(path)?.sync_all();
        sync().map_err(|e| StoreError::new("flush", path, e))
    }

    #[cfg(unix)]
    fn sync_dir(&self, path: &Path) -> Result<(), StoreError> {
        let sync = || File::open(path)?.sync_all();
        sync().map_err(|e| StoreError::new("flush directory", path, e))
    }

    #[cfg(not(unix))]
    fn sync_dir(&self, _path: &Path) -> Result<(), StoreError> {
        Ok(()) // A directory cannot be opened for flushing; power safety is promised on Unix only.
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let append = || OpenOptions::new().append(true).create(true).open(path)?.write_all(bytes);
        append().map_err(|e| StoreError::new("append to", path, e))
    }

    fn truncate(&self, path: &Path, len: u64) -> Result<(), StoreError> {
        let truncate = || OpenOptions::new().write(true).open(path)?.set_len(len);
        truncate().map_err(|e| StoreError::new("truncate", path, e))
    }

    fn len(&self, path: &Path) -> Result<u64, StoreError> {
        fs::metadata(path).map(|info| info.len()).map_err(|e| StoreError::new("look at", path, e))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        fs::rename(from, to).map_err(|e| StoreError::new("rename", from, e))
    }

    fn remove_file(&self, path: &Path) -> Result<(), StoreError> {
        fs::remove_file(path).map_err(|e| StoreError::new("remove", path, e))
    }

    fn remove_dir_all(&self, path: &Path) -> Result<(), StoreError> {
        fs::remove_dir_all(path).map_err(|e| StoreError::new("remove", path, e))
    }

    fn read(&self, path: &Path, limit: u64) -> Result<Vec<u8>, StoreError> {
        let read = || {
            // Looked at before opening: opening a pipe would block for ever.
            let info = fs::symlink_metadata(path)?;
            if !info.is_file() {
                return Err(io::Error::new(ErrorKind::InvalidData, "not a regular file"));
            }
            if info.len() > limit {
                return Err(io::Error::new(ErrorKind::FileTooLarge, format!("{} bytes, at most {limit} allowed", info.len())));
            }
            let mut bytes = Vec::with_capacity(usize::try_from(info.len()).unwrap_or(0));
            File::open(path)?.take(limit).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_err(|e| StoreError::new("read", path, e))
    }

    fn read_part(&self, path: &Path, at: u64, len: usize) -> Result<Vec<u8>, StoreError> {
        let read = || {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(at))?;
            let mut bytes = Vec::new();
            file.take(len as u64).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_err(|e| StoreError::new("read", path, e))
    }

    fn list(&self, path: &Path) -> Result<Vec<String>, StoreError> {
        let list = || {
            let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
            names.filter_map(Result::transpose).collect::<io::Result<Vec<_>>>()
        };
        list().map_err(|e| StoreError::new("list", path, e))
    }

    #[cfg(unix)]
    fn free_space(&self, path: &Path) -> Result<u64, StoreError> {
        let stat = rustix::fs::statvfs(path).map_err(|e| StoreError::new("ask for free space on", path, e.into()))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    #[cfg(not(unix))]
    fn free_space(&self, _path: &Path) -> Result<u64, StoreError> {
        Ok(u64::MAX)
    }
}

/// A store that several parts of a run share.
impl<S: Store + ?Sized> Store for Rc<S> {
    fn create_dir(&self, path: &Path) -> Result<(), StoreError> {
        (**self).create_dir(path)
    }
    fn write_file(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        (**self).write_file(path, bytes)
    }
    fn sync_file(&self, path: &Path) -> Result<(), StoreError> {
        (**self).sync_file(path)
    }
    fn sync_dir(&self, path: &Path) -> Result<(), StoreError> {
        (**self).sync_dir(path)
    }
    fn append(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        (**self).append(path, bytes)
    }
    fn truncate(&self, path: &Path, len: u64) -> Result<(), StoreError> {
        (**self).truncate(path, len)
    }
    fn len(&self, path: &Path) -> Result<u64, StoreError> {
        (**self).len(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        (**self).rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> Result<(), StoreError> {
        (**self).remove_file(path)
    }
    fn remove_dir_all(&self, path: &Path) -> Result<(), StoreError> {
        (**self).remove_dir_all(path)
    }
    fn read(&self, path: &Path, limit: u64) -> Result<Vec<u8>, StoreError> {
        (**self).read(path, limit)
    }
    fn read_part(&self, path: &Path, at: u64, len: usize) -> Result<Vec<u8>, StoreError> {
        (**self).read_part(path, at, len)
    }
    fn list(&self, path: &Path) -> Result<Vec<String>, StoreError> {
        (**self).list(path)
    }
    fn free_space(&self, path: &Path) -> Result<u64, StoreError> {
        (**self).free_space(path)
    }
}

/// The directory a path is listed in; `.` for a bare name.
pub(crate) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// `mkdir -p` that also makes every directory it creates durable.
///
/// # Errors
/// A directory that cannot be made.
pub fn create_dir_all_synced(path: &Path) -> Result<(), StoreError> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = parent_of(path);
    create_dir_all_synced(parent)?;
    match DiskStore.create_dir(path) {
        Err(e) if e.error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(e) => Err(e),
        Ok(()) => DiskStore.sync_dir(parent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_bounded_and_errors_name_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.bin");
        DiskStore.write_file(&file, b"12345").unwrap();
        assert_eq!(DiskStore.read(&file, 5).unwrap(), b"12345");
        let long = DiskStore.read(&file, 4).unwrap_err();
        assert_eq!(long.error.kind(), ErrorKind::FileTooLarge);
        assert!(long.to_string().contains("a.bin") && long.to_string().contains('4'), "{long}");
        assert!(DiskStore.write_file(&file, b"again").is_err(), "a file is never overwritten");
        assert!(DiskStore.read(dir.path(), 5).is_err(), "a directory is not a file");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_not_a_member() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("link")).unwrap();
        assert!(DiskStore.read(&dir.path().join("link"), 1 << 20).is_err());
    }

    #[test]
    fn free_space_is_a_plausible_number() {
        assert!(DiskStore.free_space(&std::env::temp_dir()).unwrap() > 0);
    }

    #[test]
    fn parents_of_bare_names() {
        assert_eq!(parent_of(Path::new("runs")), Path::new("."));
        assert_eq!(parent_of(Path::new("a/b")), Path::new("a"));
    }
}
