//! Replacing one file so that a reader, a kill or a power cut sees the old contents or the new, never a mixture.
//!
//! For files that stand alone (`weights/best.safetensors`, `config.yaml`, caches), and for what is too large to be written in one piece, files and
//! folders ([`part_of`], [`publish`]). Sets of files that belong together are checkpoints. If the path is a link, the link is replaced, not what it
//! points to. What is being written is called `.NAME.tmp-PID-N` and stands beside its place, so that whoever comes after a process that died knows it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::process::is_alive;
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

/// Where a file or a folder is written that belongs at `path`: beside it. What dead processes have left of it is removed.
///
/// # Errors
/// A path that names no file.
pub fn part_of(path: &Path) -> Result<PathBuf, StoreError> {
    let part = sibling(path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    for left in DiskStore.list(parent_of(path)).unwrap_or_default() {
        if owner(&left).is_some_and(|(of, pid)| of == name && pid != std::process::id() && !is_alive(pid)) {
            discard(&path.with_file_name(left));
        }
    }
    Ok(part)
}

/// Gives what was written at `part` its name, for good. Its contents must have been flushed.
///
/// # Errors
/// When it cannot be renamed, or the rename cannot be flushed.
pub fn publish(part: &Path, path: &Path) -> Result<(), StoreError> {
    DiskStore.rename(part, path)?;
    DiskStore.sync_dir(parent_of(path))
}

/// `.NAME.tmp-PID-N` next to `path`, with another N each time.
fn sibling(path: &Path) -> Result<PathBuf, StoreError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let not_a_file = || StoreError::new("write", path, std::io::Error::new(ErrorKind::InvalidInput, "not a file name"));
    let name = path.file_name().ok_or_else(not_a_file)?.to_string_lossy();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Ok(path.with_file_name(format!(".{name}.tmp-{}-{number}", std::process::id())))
}

/// What the sibling of this name is to become, and the process that writes it.
fn owner(name: &str) -> Option<(&str, u32)> {
    let (of, numbers) = name.strip_prefix('.')?.rsplit_once(".tmp-")?;
    let (pid, number) = numbers.split_once('-')?;
    number.parse::<u64>().ok()?;
    Some((of, pid.parse().ok()?))
}

/// Writes `bytes` to a sibling of `path`.
fn write_sibling<S: Store + ?Sized>(store: &S, path: &Path, bytes: &[u8]) -> Result<PathBuf, StoreError> {
    loop {
        let temp = sibling(path)?;
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
    let names = DiskStore.list(dir).unwrap_or_default();
    names.iter().filter(|name| owner(name).is_some()).for_each(|name| discard(&dir.join(name)));
}

/// Removes a file or a folder that was not finished.
fn discard(path: &Path) {
    match kind(path) {
        Some(kind) if kind.is_file() => remove(&DiskStore, path),
        Some(kind) if kind.is_dir() => {
            if let Err(e) = DiskStore.remove_dir_all(path) {
                tracing::debug!("leftover stays for now: {e}");
            }
        }
        _ => {}
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
        fs::create_dir_all(dir.path().join(".model.tmp-1-7/inner")).unwrap();
        fs::write(dir.path().join(".notes.tmp-mine"), b"a stranger's").unwrap();
        sweep_siblings(dir.path());
        let mut names: Vec<_> = DiskStore.list(dir.path()).unwrap();
        names.sort();
        assert_eq!(names, [".notes.tmp-mine", "best.bin"]);
    }

    #[test]
    fn a_part_takes_its_place_and_what_the_dead_left_of_it_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        // No process has the highest number; that of the first one lives.
        let [dead, other, living] =
            [".model.gguf.tmp-2147483646-3", ".other.gguf.tmp-2147483646-3", ".model.gguf.tmp-1-3"].map(|name| dir.path().join(name));
        [&dead, &other, &living].iter().for_each(|left| fs::write(left, b"half").unwrap());
        let part = part_of(&path).unwrap();
        assert!(!dead.exists() && other.exists() && (living.exists() || cfg!(not(unix))));
        fs::write(&part, b"whole").unwrap();
        publish(&part, &path).unwrap();
        assert!(!part.exists() && fs::read(&path).unwrap() == b"whole");
        assert!(part_of(Path::new("..")).is_err());
    }
}
