//! Every file operation of a save and a prune fails once, in five ways: the earlier checkpoint stands, and nothing half-done stays.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test fails by panicking")]

mod common;

use std::cell::Cell;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bellows_runs::{Checkpoints, DiskStore, Store, StoreError};
use common::{is_as_saved, save_version, scratch, two_steps, version_of, write};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
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

const FAULTS: [Fault; 5] = [Fault::Eio, Fault::Enospc, Fault::Edquot, Fault::Short, Fault::Abort];

/// The disk, with the `at`-th operation (from 1) after opening failing.
#[derive(Clone)]
struct FaultStore {
    at: usize,
    fault: Fault,
    /// Operations so far; `None` until faults are armed.
    done: Rc<Cell<Option<usize>>>,
}

impl FaultStore {
    /// The checkpoints in `dir` on such a disk, armed after opening.
    fn open(dir: &Path, at: usize, fault: Fault) -> (Self, Checkpoints<Self>) {
        let store = Self { at, fault, done: Rc::default() };
        let checkpoints = Checkpoints::open_with(store.clone(), dir).unwrap();
        store.done.set(Some(0));
        (store, checkpoints)
    }

    fn reached(&self) -> bool {
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

type Files = Vec<(PathBuf, Vec<u8>)>;

fn temporaries(dir: &Path) -> Vec<String> {
    DiskStore.list(dir).unwrap().into_iter().filter(|name| name.starts_with('.')).collect()
}

/// Step and version of the latest, found without setting anything aside.
fn latest(dir: &Path) -> (u64, u64) {
    let latest = Checkpoints::open(dir).unwrap().latest().unwrap();
    assert_eq!(latest.set_aside, []);
    let checkpoint = latest.checkpoint.unwrap();
    assert!(is_as_saved(&checkpoint));
    (checkpoint.step, version_of(&checkpoint))
}

/// Beside steps 5 and 10, saves `new` and prunes to two, on a store whose `at`-th operation fails. True if that was reached.
fn one_case(start: &Files, new: (u64, u64), at: usize, fault: Fault) -> bool {
    let dir = scratch();
    write(dir.path(), start);
    let (store, checkpoints) = FaultStore::open(dir.path(), at, fault);
    let context = format!("saving {new:?}, operation {at}, {fault:?}");
    let names_a_path = |text: String| assert!(text.contains(dir.path().to_str().unwrap()), "{context}: {text} names no path");

    let saved = save_version(&checkpoints, new.0, new.1);
    if let Err(e) = &saved {
        names_a_path(e.to_string());
        assert_eq!(e.is_no_space(), matches!(fault, Fault::Enospc | Fault::Edquot), "{context}: {e}");
    }
    if fault != Fault::Abort {
        assert_eq!(temporaries(dir.path()), [""; 0], "{context}: after the save");
        assert_eq!(latest(dir.path()), if saved.is_ok() { new } else { (10, 1) }, "{context}");
    }
    if saved.is_ok() {
        let _ = checkpoints.prune(2, &[]).map_err(|e| names_a_path(e.to_string()));
    }
    if fault != Fault::Abort {
        assert_eq!(temporaries(dir.path()), [""; 0], "{context}: after the prune");
    }

    // What the next process sees.
    let found = latest(dir.path());
    assert!(found == new || (found == (10, 1) && saved.is_err()), "{context}: {found:?} was chosen");
    let healthy = Checkpoints::open(dir.path()).unwrap();
    assert_eq!(temporaries(dir.path()), [""; 0], "{context}: after opening again");
    let earlier = if new.0 == 10 { 5 } else { 10 };
    assert!(is_as_saved(&healthy.load_step(earlier).unwrap()), "{context}: the earlier checkpoint");
    save_version(&healthy, new.0, new.1).unwrap();
    healthy.prune(2, &[]).unwrap();
    assert_eq!(healthy.steps().unwrap(), [earlier, new.0], "{context}: trying again");
    assert_eq!(DiskStore.list(dir.path()).unwrap().len(), 2, "{context}: nothing else is left");
    store.reached()
}

/// All operations, all faults; returns how many cases that was.
fn all_cases(new: (u64, u64)) -> usize {
    let start = two_steps();
    let cases = |fault| (1..).take_while(|&at| one_case(&start, new, at, fault)).count();
    FAULTS.into_iter().map(cases).sum()
}

#[test]
fn any_operation_of_save_and_prune_may_fail() {
    let cases = all_cases((15, 1));
    println!("{cases} faults injected");
    assert!(cases >= 75, "only {cases} faults were injected: the operations are not seen any more");
}

#[test]
fn any_operation_of_saving_a_step_again_may_fail() {
    let cases = all_cases((10, 2));
    println!("{cases} faults injected");
    assert!(cases >= 75, "only {cases} faults were injected: the operations are not seen any more");
}

#[test]
fn any_operation_of_a_load_may_fail_without_starting_over() {
    let start = two_steps();
    for fault in FAULTS {
        for at in 1.. {
            let dir = scratch();
            write(dir.path(), &start);
            std::fs::write(dir.path().join("step-000000010/weights.bin"), b"damaged").unwrap();
            let (store, checkpoints) = FaultStore::open(dir.path(), at, fault);
            match checkpoints.latest() {
                Ok(latest) => {
                    let checkpoint = latest.checkpoint.expect("never nothing");
                    assert!(checkpoint.step == 5 && is_as_saved(&checkpoint), "operation {at}, {fault:?}");
                }
                Err(e) => assert!(e.to_string().contains(dir.path().to_str().unwrap()), "operation {at}, {fault:?}: {e}"),
            }
            if !store.reached() {
                break;
            }
        }
    }
}
