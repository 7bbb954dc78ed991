//! Every file operation of a save and a prune fails once, in five ways: the earlier checkpoint stands, and nothing half-done stays.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test fails by panicking")]

mod common;

use std::path::{Path, PathBuf};

use bellows_runs::{Checkpoints, DiskStore, Store};
use common::fault::{FAULTS, Fault, FaultStore};
use common::{is_as_saved, save_version, scratch, steps, two_steps, version_of, write};

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
    assert_eq!(steps(dir.path()), [earlier, new.0], "{context}: trying again");
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
