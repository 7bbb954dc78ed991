//! Replacing one file so that a reader, a kill or a power cut sees the old contents or the new, never a mixture.
//!
//! For files that stand alone (`weights/best.safetensors`, `config.yaml`, caches). Sets of files that belong together are
//! checkpoints. If the path is a link, the link is replaced, not what it points to.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::{DiskStore, Store, StoreError, parent_of};

/// Writes `bytes` to `path`, replacing what was there: a temporary sibling is written and flushed, renamed over `path`, and the
/// rename is flushed. On error the old contents stand and the sibling is gone, except when that last flush fails: then the new
/// contents are in place and may not survive a power cut. The directory must exist.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let (mut file, temp) = create_sibling(path)?;
    let write = || {
        file.write_all(bytes)?;
        file.sync_all()?;
        drop(file); // Windows does not rename open files.
        fs::rename(&temp, path)
    };
    if let Err(e) = write() {
        let _ = fs::remove_file(&temp);
        return Err(StoreError::new("write", path, e));
    }
    DiskStore.sync_dir(parent_of(path))
}

/// Creates `.NAME.tmp-PID-N` next to `path`, for the first N that is free.
fn create_sibling(path: &Path) -> Result<(File, PathBuf), StoreError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let not_a_file = || StoreError::new("write", path, std::io::Error::new(ErrorKind::InvalidInput, "not a file name"));
    let name = path.file_name().ok_or_else(not_a_file)?.to_string_lossy();
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let temp = path.with_file_name(format!(".{name}.tmp-{}-{number}", std::process::id()));
        match File::create_new(&temp) {
            Ok(file) => return Ok((file, temp)),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {} // Left by a dead process of our number.
            Err(e) => return Err(StoreError::new("write", path, e)),
        }
    }
}

/// Removes siblings that killed processes left in `dir`; only for whoever holds the run lock. Failing costs disk space only.
pub(crate) fn sweep_siblings(dir: &Path) {
    for name in DiskStore.list(dir).unwrap_or_default() {
        if name.starts_with('.') && name.contains(".tmp-") && dir.join(&name).is_file() {
            let _ = fs::remove_file(dir.join(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_and_leaves_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("best.bin");
        write_atomic(&path, b"one").unwrap();
        write_atomic(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failure_names_the_path_and_cleans_up() {
        let dir = tempfile::tempdir().unwrap();
        let occupied = dir.path().join("occupied");
        fs::create_dir_all(occupied.join("x")).unwrap();
        let error = write_atomic(&occupied, b"bytes").unwrap_err();
        assert!(error.to_string().contains("occupied"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the temporary sibling is gone");
        assert!(write_atomic(&dir.path().join("no/such/dir"), b"").is_err());
        assert!(write_atomic(Path::new(".."), b"").is_err());
    }

    #[test]
    fn siblings_of_killed_processes_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(".best.bin.tmp-1-0"), b"half").unwrap();
        fs::write(dir.path().join("best.bin"), b"whole").unwrap();
        sweep_siblings(dir.path());
        let names: Vec<_> = DiskStore.list(dir.path()).unwrap();
        assert_eq!(names, ["best.bin"]);
    }
}
