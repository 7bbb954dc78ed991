//! Replacing one file so that a reader, a kill or a power cut sees the old contents or the new, never a mixture.
//!
//! For files that stand alone (`weights/best.safetensors`, `config.yaml`, caches). Sets of files that belong together are
//! checkpoints. If the path is a link, the link is replaced, not what it points to.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::{DiskStore, Store, StoreError, parent_of};

/// Writes `bytes` to `path`, replacing what was there: a temporary sibling is written and flushed, renamed over `path`, and the
/// rename is flushed. On error the old contents stand and the sibling is gone, except when that last flush fails: then the new
/// contents are in place and may not survive a power cut. The directory must exist.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    replace(&DiskStore, path, bytes)
}

/// The same on any store.
pub(crate) fn replace<S: Store + ?Sized>(store: &S, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let about_path = |e: StoreError| StoreError::new("write", path, e.error);
    let temp = write_sibling(store, path, bytes)?;
    if let Err(e) = store.sync_file(&temp).and_then(|()| store.rename(&temp, path)) {
        remove(store, &temp);
        return Err(about_path(e));
    }
    store.sync_dir(parent_of(path))
}

/// Writes `bytes` to `.NAME.tmp-PID-N` next to `path`, for the first N that is free.
fn write_sibling<S: Store + ?Sized>(store: &S, path: &Path, bytes: &[u8]) -> Result<PathBuf, StoreError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let not_a_file = || StoreError::new("write", path, std::io::Error::new(ErrorKind::InvalidInput, "not a file name"));
    let name = path.file_name().ok_or_else(not_a_file)?.to_string_lossy();
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let temp = path.with_file_name(format!(".{name}.tmp-{}-{number}", std::process::id()));
        match store.write_file(&temp, bytes) {
            Ok(()) => return Ok(temp),
            Err(e) if e.error.kind() == ErrorKind::AlreadyExists => {} // Left by a dead process of our number.
            Err(e) => {
                remove(store, &temp);
                return Err(StoreError::new("write", path, e.error));
            }
        }
    }
}

/// Removes what may be there, with a second try: a full copy-on-write disk can refuse a deletion for the moment.
fn remove<S: Store + ?Sized>(store: &S, temp: &Path) {
    if let Err(e) = store.remove_file(temp).or_else(|e| if e.is_not_found() { Ok(()) } else { store.remove_file(temp) }) {
        tracing::debug!("leftover stays for now: {e}");
    }
}

/// Removes siblings that killed processes left in `dir` and the directories in it; only for whoever holds the run lock. Failing costs disk
/// space only. Links are not followed: what is behind them is not the run's.
pub(crate) fn sweep_siblings(dir: &Path) {
    sweep(dir);
    for name in DiskStore.list(dir).unwrap_or_default() {
        let path = dir.join(&name);
        if kind(&path).is_some_and(|kind| kind.is_dir()) {
            sweep(&path);
        }
    }
}

fn sweep(dir: &Path) {
    for name in DiskStore.list(dir).unwrap_or_default() {
        let path = dir.join(&name);
        if name.starts_with('.') && name.contains(".tmp-") && kind(&path).is_some_and(|kind| kind.is_file()) {
            remove(&DiskStore, &path);
        }
    }
}

/// What stands at `path`, be it a link.
fn kind(path: &Path) -> Option<std::fs::FileType> {
    std::fs::symlink_metadata(path).map(|info| info.file_type()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

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
