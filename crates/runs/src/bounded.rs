//! Reading files a user names: regular ones, no larger than their budget. Refused: pipes, devices, directories, and anything longer.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Why a file was not opened.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// It is a directory, a pipe or a device.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path in question.
        path: PathBuf,
    },
    /// It is longer than its budget.
    #[error("{} has {found} bytes, at most {limit} are allowed", path.display())]
    TooLarge {
        /// The path in question.
        path: PathBuf,
        /// Its size in bytes (at least).
        found: u64,
        /// The budget in bytes.
        limit: u64,
    },
    /// The system refused.
    #[error("cannot open {}: {error}", path.display())]
    Io {
        /// The path in question.
        path: PathBuf,
        /// What the operating system answered.
        error: io::Error,
    },
}

/// Opens a file for reading, if it is a regular one or a link to one: a pipe is waited for until somebody writes, and a device may have no end.
///
/// # Errors
/// What the system says, or "not a regular file".
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Looked at before opening: opening a pipe would block for ever.
    if fs::metadata(path)?.is_file() { File::open(path) } else { Err(io::Error::other("not a regular file")) }
}

/// The contents of a file the user named, of at most `max_bytes`, even if it grows meanwhile.
pub fn read_bounded(path: &Path, max_bytes: u64) -> Result<Vec<u8>, PathError> {
    let io = |error| PathError::Io { path: path.into(), error };
    // Looked at before opening: opening a pipe would block for ever.
    let info = fs::metadata(path).map_err(io)?;
    if !info.is_file() {
        return Err(PathError::NotAFile { path: path.into() });
    }
    let too_large = |found| PathError::TooLarge { path: path.into(), found, limit: max_bytes };
    if info.len() > max_bytes {
        return Err(too_large(info.len()));
    }
    let mut bytes = Vec::new();
    // One byte more than allowed, to notice files whose size is not known beforehand.
    File::open(path).map_err(io)?.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > max_bytes { Err(too_large(bytes.len() as u64)) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_kept_and_both_sizes_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.bin");
        fs::write(&file, b"12345").unwrap();
        assert_eq!(read_bounded(&file, 5).unwrap(), b"12345");
        let text = read_bounded(&file, 4).unwrap_err().to_string();
        assert!(text.contains("a.bin") && text.contains("5 bytes") && text.contains("at most 4"), "{text}");
        assert!(matches!(read_bounded(dir.path(), 5), Err(PathError::NotAFile { .. })));
        let missing = read_bounded(&dir.path().join("none.bin"), 5).unwrap_err();
        assert!(missing.to_string().contains("none.bin"), "{missing}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn devices_pipes_and_files_of_unknown_size() {
        assert!(matches!(read_bounded(Path::new("/dev/zero"), 5), Err(PathError::NotAFile { .. })));
        assert_eq!(open_regular(Path::new("/dev/zero")).unwrap_err().to_string(), "not a regular file");
        assert!(open_regular(Path::new("/proc/self/status")).is_ok());
        assert_eq!(open_regular(Path::new("/proc/none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        // Says it has 0 bytes, and has more.
        assert!(matches!(read_bounded(Path::new("/proc/self/status"), 5), Err(PathError::TooLarge { found: 6, .. })));
    }
}
