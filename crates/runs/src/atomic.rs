//! Replacing one file so that a reader, a kill or a power cut sees the old contents or the new, never a mixture.
//!
//! For files that stand alone (`weights/best.safetensors`, `config.yaml`, caches), and for what is too large to be written in one piece, files and
//! folders ([`part_of`], [`publish`]). Sets of files that belong together are checkpoints. If the path is a link, the link is replaced, not what it
//! points to. What is being written, a checkpoint too, is called `.NAME.tmp-HOME-PID-N` and stands beside its place, so that whoever comes after a process
//! that died knows it.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::process::{home, is_alive};
use crate::store::{DiskStore, Store, StoreError, parent_of};

/// Writes `bytes` to `path`, replacing what was there: a temporary sibling is written and flushed, renamed over `path`, and the
/// rename is flushed. On error the old contents stand and the sibling is gone, except when that last flush fails: then the new
/// contents are in place and may not survive a power cut. The directory must exist.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    replace(&DiskStore, path, bytes)
}

/// The same without a flush, for many small files that are looked at before they are used: a reader and a kill see the old contents or the new, a power cut
/// may leave a part of them.
///
/// # Errors
/// As [`write_atomic`].
pub fn write_unflushed(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let temp = write_sibling(&DiskStore, path, bytes)?;
    DiskStore.rename(&temp, path).map_err(|e| {
        remove(&DiskStore, &temp);
        StoreError::new("write", path, e.error)
    })
}

/// The same of what `write` writes, for what is too large to be held.
///
/// # Errors
/// As [`write_atomic`]; what `write` returns.
pub fn write_atomic_with<T>(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<T>) -> Result<T, StoreError> {
    let part = part_of(path)?;
    let whole = || -> io::Result<T> {
        let mut out = BufWriter::new(File::create(&part)?);
        let done = write(&mut out)?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        publish(&part, path).map_err(|e| e.error)?;
        Ok(done)
    };
    whole().map_err(|error| {
        discard(&part);
        StoreError::new("write", path, error)
    })
}

/// [`write_atomic`] on any store.
pub(crate) fn replace<S: Store + ?Sized>(store: &S, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let about_path = |e: StoreError| StoreError::new("write", path, e.error);
    let temp = write_sibling(store, path, bytes)?;
    if let Err(e) = store.sync_file(&temp).and_then(|()| store.rename(&temp, path)) {
        remove(store, &temp);
        return Err(about_path(e));
    }
    store.sync_dir(parent_of(path))
}

/// Where a file or a folder is written that belongs at `path`: beside it. What dead processes of this machine have left of it is removed; what
/// others left, of which it is not known whether they live, when nothing in it has changed for a day.
///
/// # Errors
/// A path that names no file.
pub fn part_of(path: &Path) -> Result<PathBuf, StoreError> {
    let part = sibling(path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    for left in DiskStore.list(parent_of(path)).unwrap_or_default() {
        let Some(owner) = owner(&left).filter(|owner| owner.of == name) else { continue };
        let left = path.with_file_name(&left);
        if owner.is_dead().unwrap_or_else(|| is_older_than(&left, Duration::from_hours(24))) {
            discard(&left);
        }
    }
    Ok(part)
}

/// Whether nothing in it has changed for so long.
fn is_older_than(path: &Path, age: Duration) -> bool {
    let inside = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let old = |path: PathBuf| path.symlink_metadata().and_then(|info| info.modified()).is_ok_and(|at| at.elapsed().is_ok_and(|e| e > age));
    inside.chain([path.to_owned()]).all(old)
}

/// Gives what was written at `part` its name, for good. Its contents must have been flushed.
///
/// # Errors
/// When it cannot be renamed, or the rename cannot be flushed.
pub fn publish(part: &Path, path: &Path) -> Result<(), StoreError> {
    DiskStore.rename(part, path)?;
    DiskStore.sync_dir(parent_of(path))
}

/// The next N of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// `.NAME.tmp-HOME-PID-N` next to `path`, with another N each time.
pub(crate) fn sibling(path: &Path) -> Result<PathBuf, StoreError> {
    let not_a_file = || StoreError::new("write", path, io::Error::new(ErrorKind::InvalidInput, "not a file name"));
    let name = path.file_name().ok_or_else(not_a_file)?.to_string_lossy();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Ok(path.with_file_name(format!(".{name}.tmp-{:08x}-{}-{number}", home(), std::process::id())))
}

/// Who writes a sibling.
#[derive(Debug, PartialEq)]
struct Owner<'a> {
    /// What it is to become.
    of: &'a str,
    /// None in names that older programs gave.
    home: Option<u32>,
    pid: u32,
    number: u64,
}

impl Owner<'_> {
    /// Whether it has ended; `None` where that cannot be known from here.
    fn is_dead(&self) -> Option<bool> {
        // An earlier process may have had our number.
        let is_ours = self.pid == std::process::id() && self.number < NEXT.load(Ordering::Relaxed);
        (self.home == Some(home())).then(|| !is_ours && (self.pid == std::process::id() || !is_alive(self.pid)))
    }
}

/// Whether what has this name was left by a process of this machine that has ended. Asked by one that is writing nothing there: what has its own number
/// is an earlier one's, or could not be removed before.
pub(crate) fn is_left(name: &str) -> bool {
    let here = |owner: &Owner<'_>| owner.home == Some(home());
    owner(name).filter(here).is_some_and(|owner| owner.pid == std::process::id() || !is_alive(owner.pid))
}

/// The owner that a sibling's name tells.
fn owner(name: &str) -> Option<Owner<'_>> {
    let (of, numbers) = name.strip_prefix('.')?.rsplit_once(".tmp-")?;
    let (before, number) = numbers.rsplit_once('-')?;
    let (home, pid) = before.split_once('-').map_or((None, before), |(home, pid)| (Some(home), pid));
    let home = home.map(|home| u32::from_str_radix(home, 16)).transpose().ok()?;
    Some(Owner { of, home, pid: pid.parse().ok()?, number: number.parse().ok()? })
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

/// Removes what processes of this machine that have ended were writing in `dir`, where others may be writing. Failing costs disk space only.
pub fn sweep_dead(dir: &Path) {
    // Elsewhere nobody can be asked whether a process lives.
    if cfg!(unix) {
        let is_dead = |name: &&String| owner(name).is_some_and(|owner| owner.is_dead() == Some(true));
        DiskStore.list(dir).unwrap_or_default().iter().filter(is_dead).for_each(|name| discard(&dir.join(name)));
    }
}

/// A new folder in `dir` for what nobody wants when this process is done. What processes of this machine that have ended were writing there goes.
///
/// # Errors
/// When it cannot be made.
pub fn scratch_in(dir: &Path) -> Result<PathBuf, StoreError> {
    sweep_dead(dir);
    loop {
        let path = dir.join(sibling(Path::new("bellows"))?);
        match DiskStore.create_dir(&path) {
            Err(e) if e.error.kind() == ErrorKind::AlreadyExists => {} // Left by a dead process of our number.
            made => return made.map(|()| path),
        }
    }
}

/// Removes siblings that killed processes left in `dir` and the directories in it; only for whoever holds the run lock, and has written nothing there
/// since. What others of this machine write meanwhile stays: a merge needs no lock. Failing costs disk space only. Links are not followed: what is
/// behind them is not the run's.
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
    let has_left = |owner: Owner<'_>| owner.pid == std::process::id() || owner.is_dead() != Some(false);
    names.iter().filter(|name| owner(name).is_some_and(has_left) || is_of_older(name)).for_each(|name| discard(&dir.join(name)));
}

/// Whether that is where an older program wrote a checkpoint: `.tmp-STEP-PID`.
fn is_of_older(name: &str) -> bool {
    let numbers = name.strip_prefix(".tmp-").and_then(|numbers| numbers.split_once('-'));
    numbers.is_some_and(|(step, pid)| step.parse::<u64>().is_ok() && pid.parse::<u32>().is_ok())
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
    use std::io::Write;

    #[test]
    fn replaces_and_leaves_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("best.bin");
        write_atomic(&path, b"one").unwrap();
        write_atomic(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        write_unflushed(&path, b"three").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"three");
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
        assert!(write_unflushed(&occupied, b"bytes").unwrap_err().to_string().contains("occupied"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "here too");
        assert!(write_atomic(&dir.path().join("no/such/dir"), b"").is_err());
        assert!(write_atomic(Path::new(".."), b"").is_err());
    }

    #[test]
    fn what_is_written_bit_by_bit_has_its_name_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.json");
        let write = |end: io::Result<u32>| {
            write_atomic_with(&path, |out| {
                out.write_all(b"one ")?;
                out.write_all(b"two")?;
                end
            })
        };
        assert_eq!(write(Ok(2)).unwrap(), 2);
        assert_eq!(fs::read(&path).unwrap(), b"one two");
        fs::write(&path, b"before").unwrap();
        let error = write(Err(io::Error::other("no third"))).unwrap_err().to_string();
        assert!(error.contains("out.json") && error.contains("no third"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"before");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the temporary sibling is gone");
    }

    #[test]
    fn siblings_of_killed_processes_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(".best.bin.tmp-0-1-0"), b"half").unwrap();
        fs::write(dir.path().join("best.bin"), b"whole").unwrap();
        fs::create_dir_all(dir.path().join(".model.tmp-0-1-7/inner")).unwrap();
        fs::write(dir.path().join(".older.bin.tmp-1-0"), b"half").unwrap();
        fs::create_dir_all(dir.path().join("checkpoints/.tmp-15-4321/half")).unwrap();
        for stranger in [".notes.tmp-mine", ".tmp-mine-1"] {
            fs::write(dir.path().join(stranger), b"a stranger's").unwrap();
        }
        sweep_siblings(dir.path());
        let mut names: Vec<_> = DiskStore.list(dir.path()).unwrap();
        names.sort();
        assert_eq!(names, [".notes.tmp-mine", ".tmp-mine-1", "best.bin", "checkpoints"]);
        assert_eq!(DiskStore.list(&dir.path().join("checkpoints")).unwrap(), [""; 0]);
    }

    #[cfg(unix)]
    #[test]
    fn what_a_living_process_writes_is_swept_when_it_is_dead() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let left_by = |home: u32, pid: u32| {
            let left = dir.path().join(format!("weights/.merged.tmp-{home:08x}-{pid}-0"));
            fs::create_dir_all(left.join("half")).unwrap();
            left
        };
        let (living, own, strangers) = (left_by(home(), child.id()), left_by(home(), std::process::id()), left_by(!home(), child.id()));
        sweep_siblings(dir.path());
        assert!(living.exists() && !own.exists() && !strangers.exists());
        child.kill().unwrap();
        child.wait().unwrap();
        sweep_siblings(dir.path());
        assert!(!living.exists());
    }

    #[cfg(unix)]
    #[test]
    fn what_a_killed_process_did_not_want_kept_goes_with_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let left_by = |home: u32, pid: u32| {
            let left = dir.path().join(format!(".bellows.tmp-{home:08x}-{pid}-0"));
            fs::create_dir_all(left.join("checkpoints/step-000000001")).unwrap();
            left
        };
        // No process has the highest number; that of the first one lives. Another container has numbers of its own.
        let (dead, living) = (left_by(home(), 2_147_483_646), left_by(home(), 1));
        let strangers = left_by(!home(), 2_147_483_646);
        let [first, second] = [(); 2].map(|()| scratch_in(dir.path()).unwrap());
        assert!(!dead.exists() && living.exists() && strangers.exists());
        assert!(first.is_dir() && second.is_dir() && first != second);
        assert!(scratch_in(&dir.path().join("gone")).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn what_is_behind_a_link_is_not_swept() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let half = outside.path().join(".other.tmp-0-1-0");
        fs::write(&half, b"half").unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("link")).unwrap();
        sweep_siblings(dir.path());
        assert!(half.exists());
    }

    #[test]
    fn a_part_takes_its_place_and_what_the_dead_left_of_it_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        let left_by = |of: &str, home: u32, pid: u32, number: u64| {
            let left = dir.path().join(format!(".{of}.tmp-{home:08x}-{pid}-{number}"));
            fs::write(&left, b"half").unwrap();
            left
        };
        // No process has the highest number; that of the first one lives. A number as high as the last one an earlier process has given, as in containers, whose processes are all the first.
        let (here, own) = (home(), std::process::id());
        let dead = [left_by("model.gguf", here, 2_147_483_646, 3), left_by("model.gguf", here, own, u64::MAX)];
        let strangers = [left_by("model.gguf", !here, 1, 3), left_by("model.gguf", !here, own, 4)];
        let (other, living) = (left_by("other.gguf", here, 2_147_483_646, 3), left_by("model.gguf", here, 1, 3));
        let yesterday = std::time::SystemTime::now() - Duration::from_hours(25);
        fs::File::options().write(true).open(&strangers[1]).unwrap().set_modified(yesterday).unwrap();
        let mine = part_of(&path).unwrap();
        fs::write(&mine, b"half").unwrap();
        let part = part_of(&path).unwrap();
        assert!(dead.iter().all(|left| !left.exists()) && mine.exists() && other.exists() && (living.exists() || cfg!(not(unix))));
        assert!(strangers[0].exists() && !strangers[1].exists(), "of another machine or container, by age");
        fs::write(&part, b"whole").unwrap();
        publish(&part, &path).unwrap();
        assert!(!part.exists() && fs::read(&path).unwrap() == b"whole");
        assert!(part_of(Path::new("..")).is_err());
    }
}
