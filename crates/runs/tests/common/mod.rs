//! What the tests of the checkpoint protocol share: saving a recognisable state, and recognising it again.
#![allow(dead_code, reason = "each test file uses a part of this")]

pub(crate) mod fault;
pub(crate) mod memory;

use std::fs;
use std::path::{Path, PathBuf};

use bellows_runs::{Checkpoint, Checkpoints, Member, SaveError, Store};
use memory::{Forget, MemoryStore};
use serde_json::{Map, Value};

/// The files of a checkpoint.
pub(crate) const PARTS: [&str; 3] = ["manifest.json", "state.json", "weights.bin"];

/// The two members of `step`, different for every step.
pub(crate) fn contents(step: u64) -> [(&'static str, Vec<u8>); 2] {
    [("weights.bin", format!("the weights at step {step}").into_bytes()), ("state.json", format!("{{\"step\":{step}}}").into_bytes())]
}

/// What is saved beside them; `version` differs when the step is saved again.
pub(crate) fn info(step: u64, version: u64) -> Map<String, Value> {
    let info = serde_json::json!({"epoch": step / 5, "config_hash": "00ff", "is_best": step == 5, "version": version});
    info.as_object().unwrap().clone()
}

pub(crate) fn save<S: Store>(checkpoints: &Checkpoints<S>, step: u64) -> Result<PathBuf, SaveError> {
    save_version(checkpoints, step, 1)
}

pub(crate) fn save_version<S: Store>(checkpoints: &Checkpoints<S>, step: u64, version: u64) -> Result<PathBuf, SaveError> {
    let contents = contents(step);
    let members = contents.each_ref().map(|(name, bytes)| Member { name, bytes });
    checkpoints.save(step, &members, &info(step, version))
}

/// Whether `checkpoint` is exactly what `save` stored at its step.
pub(crate) fn is_as_saved(checkpoint: &Checkpoint) -> bool {
    let members: Vec<_> = checkpoint.members.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let mut expected = contents(checkpoint.step).to_vec();
    expected.sort();
    members == expected && checkpoint.info == info(checkpoint.step, version_of(checkpoint))
}

pub(crate) fn version_of(checkpoint: &Checkpoint) -> u64 {
    checkpoint.info["version"].as_u64().unwrap()
}

/// The steps that have a checkpoint in `dir`, oldest first.
pub(crate) fn steps(dir: &Path) -> Vec<u64> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut steps: Vec<u64> = names.filter_map(|name| name.strip_prefix("step-")?.split('-').next()?.parse().ok()).collect();
    steps.sort_unstable();
    steps
}

/// A directory for a test with thousands of small files: in memory where the system offers that.
pub(crate) fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// The files of a directory with steps 5 and 10, to be written anew for every trial.
pub(crate) fn two_steps() -> Vec<(PathBuf, Vec<u8>)> {
    let dir = scratch();
    let checkpoints = Checkpoints::open(dir.path()).unwrap();
    let saved = [5, 10].map(|step| save(&checkpoints, step).unwrap());
    let paths = saved.iter().flat_map(|checkpoint| PARTS.map(|part| checkpoint.join(part)));
    paths.map(|path| (path.strip_prefix(dir.path()).unwrap().to_owned(), fs::read(&path).unwrap())).collect()
}

/// Makes `dir` hold exactly `files`.
pub(crate) fn write(dir: &Path, files: &[(PathBuf, Vec<u8>)]) {
    let _ = fs::remove_dir_all(dir);
    for (path, bytes) in files {
        fs::create_dir_all(dir.join(path).parent().unwrap()).unwrap();
        fs::write(dir.join(path), bytes).unwrap();
    }
}

/// Cuts the power after every operation of `train`, which notes what it was told is safe, and holds at most `most` of the disks that may be
/// found then against `survives`. Returns how many that were, or what was lost.
pub(crate) fn power_cuts<R: Copy + Default>(
    most: u64,
    forget: Forget,
    train: impl Fn(MemoryStore, &mut R) -> Result<(), String>,
    survives: impl Fn(MemoryStore, R) -> Result<(), String>,
) -> Result<usize, String> {
    let mut disks = 0;
    for operations in 0.. {
        let store = MemoryStore::new(Path::new("/run"), operations, forget);
        let mut reported = R::default();
        let done = train(store.clone(), &mut reported).is_ok();
        for disk in store.after_power_loss(most) {
            survives(disk, reported).map_err(|lost| format!("after {operations} operations: {lost}"))?;
            disks += 1;
        }
        if done {
            break;
        }
    }
    Ok(disks)
}
