//! The power fails after any operation, and any part of what was not flushed is lost: the last reported checkpoint survives.
//!
//! The disk is [`common::memory`]'s. The tests that leave out one flush at a time must fail: they show that the model can see the difference.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test fails by panicking")]

mod common;

use std::path::Path;

use bellows_runs::Checkpoints;
use common::memory::{Forget, MemoryStore, name_of};
use common::{is_as_saved, save_version, version_of};

const MOST_SUBSETS: u64 = 1 << 12;

/// Step and version: what was reported as saved.
type Reported = Option<(u64, u64)>;

/// Opens, saves and prunes, and notes each save that was reported as done. Stops when the power does.
fn train(store: MemoryStore, reported: &mut Reported) -> Result<(), String> {
    let checkpoints = Checkpoints::open_with(store, "/run/checkpoints").map_err(|e| e.to_string())?;
    for (step, version) in [(5, 1), (10, 1), (10, 2), (15, 1), (15, 1), (20, 1)] {
        save_version(&checkpoints, step, version).map_err(|e| e.to_string())?;
        *reported = Some((step, version));
        checkpoints.prune(2, &[]).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// What a restarted run finds must be whole, and no older than what was reported.
fn survives(store: MemoryStore, reported: Reported) -> Result<(), String> {
    let checkpoints = Checkpoints::open_with(store, "/run/checkpoints").map_err(|e| e.to_string())?;
    let latest = checkpoints.latest().map_err(|e| e.to_string())?;
    if !latest.set_aside.is_empty() {
        return Err(format!("{reported:?} was reported, and found damaged: {:?}", latest.set_aside));
    }
    if !latest.checkpoint.as_ref().is_none_or(is_as_saved) {
        return Err("what was found is not what was saved".into());
    }
    let found = latest.checkpoint.map(|c| (c.step, version_of(&c)));
    if found < reported {
        return Err(format!("{reported:?} was reported, {found:?} was found"));
    }
    Ok(())
}

fn power_cuts(forget: Forget) -> Result<usize, String> {
    common::power_cuts(MOST_SUBSETS, forget, train, survives)
}

#[test]
fn the_last_reported_checkpoint_survives_a_power_cut() {
    let disks = power_cuts(|_, _| false).unwrap();
    println!("{disks} disks after a power cut");
    assert!(disks > 5_000, "only {disks} disks were looked at");
}

#[test]
fn without_flushing_members_it_would_not() {
    power_cuts(|kind, path| kind == "file" && !path.ends_with("manifest.json")).unwrap_err();
}

#[test]
fn without_flushing_the_manifest_it_would_not() {
    power_cuts(|kind, path| kind == "file" && path.ends_with("manifest.json")).unwrap_err();
}

#[test]
fn without_flushing_the_new_directory_it_would_not() {
    power_cuts(|kind, path| kind == "dir" && name_of(path).contains(".tmp-")).unwrap_err();
}

#[test]
fn without_flushing_the_rename_it_would_not() {
    power_cuts(|kind, path| kind == "dir" && path.ends_with("checkpoints")).unwrap_err();
}

#[test]
fn without_flushing_the_creation_of_the_checkpoints_directory_it_would_not() {
    power_cuts(|kind, path| kind == "dir" && path == Path::new("/run")).unwrap_err();
}
