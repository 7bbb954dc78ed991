//! The disk, one of whose operations fails.

use std::cell::Cell;
use std::io::{Error, ErrorKind};
use std::path::Path;
use std::rc::Rc;

use bellows_runs::{Checkpoints, DiskStore, Store, StoreError};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    /// The device failed.
    Eio,
    /// The disk is full.
    Enospc,
    /// The quota is used up.
    Edquot,
    /// Half of a file is written; any other operation is done, but reported as failed.
    Short,
    /// The process is gone: nothing is done from here on.
    Abort,
}

pub(crate) const FAULTS: [Fault; 5] = [Fault::Eio, Fault::Enospc, Fault::Edquot, Fault::Short, Fault::Abort];

/// The disk, with the `at`-th operation (from 1) after opening failing.
#[derive(Clone)]
pub(crate) struct FaultStore {
    pub(crate) at: usize,
    pub(crate) fault: Fault,
    /// Operations so far; `None` until faults are armed.
    pub(crate) done: Rc<Cell<Option<usize>>>,
}

impl FaultStore {
    /// The checkpoints in `dir` on such a disk, armed after opening.
    pub(crate) fn open(dir: &Path, at: usize, fault: Fault) -> (Self, Checkpoints<Self>) {
        let store = Self { at, fault, done: Rc::default() };
        let checkpoints = Checkpoints::open_with(store.clone(), dir).unwrap();
        store.done.set(Some(0));
        (store, checkpoints)
    }

    pub(crate) fn reached(&self) -> bool {
        self.done.get() >= Some(self.at)
    }

    fn run<T>(&self, path: &Path, whole: impl FnOnce() -> Result<T, StoreError>, partly: impl FnOnce()) -> Result<T, StoreError> {
        self.done.set(self.done.get().map(|done| done + 1));
        let error = match self.fault {
            Fault::Abort if self.reached() => Error::other("the process is gone"),
            _ if self.done.get() != Some(self.at) => return whole(),
            Fault::Eio | Fault::Abort => Error::from_raw_os_error(5),
            Fault::Enospc => ErrorKind::StorageFull.into(),
            Fault::Edquot => ErrorKind::QuotaExceeded.into(),
            Fault::Short => {
                partly();
                ErrorKind::WriteZero.into()
            }
        };
        Err(StoreError::new("(injected)", path, error))
    }

    fn all_or_done<T>(&self, path: &Path, whole: impl Fn() -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.run(path, &whole, || drop(whole()))
    }
}

impl Store for FaultStore {
    fn create_dir(&self, path: &Path) -> Result<(), StoreError> {
        self.all_or_done(path, || DiskStore.create_dir(path))
    }
    fn write_file(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        self.run(path, || DiskStore.write_file(path, bytes), || drop(DiskStore.write_file(path, &bytes[..bytes.len() / 2])))
    }
    fn sync_file(&self, path: &Path) -> Result<(), StoreError> {
        self.all_or_done(path, || DiskStore.sync_file(path))
    }
    fn sync_dir(&self, path: &Path) -> Result<(), StoreError> {
        self.all_or_done(path, || DiskStore.sync_dir(path))
    }
    fn append(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        self.run(path, || DiskStore.append(path, bytes), || drop(DiskStore.append(path, &bytes[..bytes.len() / 2])))
    }
    fn truncate(&self, path: &Path, len: u64) -> Result<(), StoreError> {
        self.all_or_done(path, || DiskStore.truncate(path, len))
    }
    fn len(&self, path: &Path) -> Result<u64, StoreError> {
        self.all_or_done(path, || DiskStore.len(path))
    }
    fn remove_file(&self, path: &Path) -> Result<(), StoreError> {
        self.all_or_done(path, || DiskStore.remove_file(path))
    }
    fn read_part(&self, path: &Path, at: u64, len: usize) -> Result<Vec<u8>, StoreError> {
        self.all_or_done(path, || DiskStore.read_part(path, at, len))
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.all_or_done(from, || DiskStore.rename(from, to))
    }
    fn remove_dir_all(&self, path: &Path) -> Result<(), StoreError> {
        self.all_or_done(path, || DiskStore.remove_dir_all(path))
    }
    fn read(&self, path: &Path, limit: u64) -> Result<Vec<u8>, StoreError> {
        self.all_or_done(path, || DiskStore.read(path, limit))
    }
    fn list(&self, path: &Path) -> Result<Vec<String>, StoreError> {
        self.all_or_done(path, || DiskStore.list(path))
    }
    fn free_space(&self, path: &Path) -> Result<u64, StoreError> {
        self.all_or_done(path, || DiskStore.free_space(path))
    }
}
