//! One process per run directory: an advisory lock on `run.lock`, which also names its holder.
//!
//! The operating system drops the lock when the process ends, however it ends, so a stale file never locks anyone out and the
//! file is never deleted (deleting it would let two processes lock two different files of that name). Relies on the file
//! system supporting locks; where it does not, locking fails, loudly. Refused: a run in which something is a link, for what is written to it from then on
//! would be written elsewhere, or a pipe or a device, which may be waited at for ever.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bellows_exit::{Coded, Exit};

use crate::process::began;
use crate::store::StoreError;

/// The file's name.
pub(crate) const LOCK: &str = "run.lock";

/// A process that was killed holds its lock until the system has taken it apart, which takes about a second for one with much memory.
const PATIENCE: Duration = Duration::from_secs(2);

/// The right to change a run directory, until dropped.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
}

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process (or another place in this one) has it.
    #[error("{} is in use by {}: wait for it to end, or stop it", run.display(), holder(*pid))]
    Held {
        /// The run directory.
        run: PathBuf,
        /// The holder's process id, where it could be read and means a process of this machine or container.
        pid: Option<u32>,
    },
    /// Something in the run directory leads out of it.
    #[error("{} is a link, which leads what the run writes elsewhere: put there what it points to, or take it away", path.display())]
    Link {
        /// The link.
        path: PathBuf,
    },
    /// Something in the run directory is a pipe, a socket or a device.
    #[error("{} is neither a file nor a folder, as all in a run is: take it away", path.display())]
    Special {
        /// What is.
        path: PathBuf,
    },
    /// The lock file could not be opened, locked or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Coded for LockError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or("another process".into(), |pid| format!("process {pid}"))
}

impl RunLock {
    /// Locks `run/run.lock`, and writes this process's id into it and what tells it from another of that number. Waits up to [`PATIENCE`] for a
    /// holder that is ending.
    pub(crate) fn acquire(run: &Path) -> Result<Self, LockError> {
        refuse_links_and_pipes(run)?;
        let path = run.join(LOCK);
        let failed = |e| StoreError::new("lock", &path, e);
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = open.map_err(failed)?;
        let asked = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if asked.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(50)),
                Err(TryLockError::WouldBlock) => return Err(LockError::Held { run: run.into(), pid: read_holder(&mut file) }),
                Err(TryLockError::Error(e)) => return Err(failed(e).into()),
            }
        }
        let pid = std::process::id();
        let text = format!("{pid} {}\n", began(pid).unwrap_or_default());
        let mut write_pid = || {
            file.set_len(0)?;
            file.write_all(text.as_bytes())
        };
        write_pid().map_err(failed)?;
        Ok(Self { _file: file })
    }
}

/// A run directory may come from somebody else. Its files and folders are opened by their names: where one of them is a link, a log, the lock or weights
/// would be written over whatever that leads to. Opening a pipe waits for its other end.
fn refuse_links_and_pipes(run: &Path) -> Result<(), LockError> {
    let failed = |e| StoreError::new("list", run, e);
    for entry in fs::read_dir(run).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_symlink() {
            return Err(LockError::Link { path: entry.path() });
        }
        if !kind.is_file() && !kind.is_dir() {
            return Err(LockError::Special { path: entry.path() });
        }
    }
    Ok(())
}

/// Who has the run at `run`: `Some(None)` is a process that has not yet written its id, or one of another machine or container. It is asked by
/// taking the lock for an instant, with others who ask; a process that begins just then waits for that.
pub(crate) fn holder_of(run: &Path) -> Option<Option<u32>> {
    let path = run.join(LOCK);
    // Looked at before opening: opening a pipe would block for ever.
    let mut file = path.is_file().then(|| File::open(path).ok())??;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Some(read_holder(&mut file)),
        Ok(()) | Err(TryLockError::Error(_)) => None,
    }
}

/// The id in the file, if it means the process that wrote it. The holder may have locked it an instant ago and not have written yet, so it gets a tenth of a second.
fn read_holder(file: &mut File) -> Option<u32> {
    for _ in 0..10 {
        let mut text = String::new();
        file.rewind().ok()?;
        (&*file).take(128).read_to_string(&mut text).ok()?;
        if let Some(line) = text.strip_suffix('\n') {
            let (pid, its) = line.split_once(' ').unwrap_or((line, ""));
            return pid.parse().ok().filter(|&pid| its.is_empty() || began(pid).as_deref() == Some(its));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}
