//! A damaged latest checkpoint is always noticed, named and answered by the one before it; a newer one is left alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use bellows_runs::{Checkpoints, LoadError};
use common::memory::draw;
use common::{PARTS, is_as_saved, scratch, two_steps, write};
use sha2::{Digest, Sha256};

const LATEST: &str = "step-000000010";

/// All paths and contents under `dir`.
fn tree(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() { files.extend(tree(&entry)) } else { files.push((entry.clone(), fs::read(entry).unwrap())) }
    }
    files.sort();
    files
}

/// The manifest with `from` replaced by `to` and sealed again, as a program that means it would write it.
fn rewrite_manifest(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    let body = &text[..text.rfind(",\n  \"sha256\"").unwrap()];
    assert!(body.contains(from), "{body}");
    let body = body.replacen(from, to, 1);
    let digest: String = Sha256::digest(body.as_bytes()).iter().map(|b| format!("{b:02x}")).collect();
    replace(path, format!("{body},\n  \"sha256\": \"{digest}\"\n}}\n").as_bytes());
}

/// As a new file: some file systems flush one that is truncated and written again, which takes far longer.
fn replace(path: &Path, bytes: &[u8]) {
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
}

fn damage(checkpoint: &Path, trial: u64, seed: &mut u64) -> String {
    let part = PARTS[draw(seed) as usize % PARTS.len()];
    let path = checkpoint.join(part);
    let mut bytes = fs::read(&path).unwrap();
    let at = draw(seed) as usize % bytes.len();
    let what = match trial % 20 {
        0 => {
            bytes.clear();
            "emptied"
        }
        1 => {
            fs::remove_file(&path).unwrap();
            return format!("{part} removed");
        }
        2 => {
            let entry = "\"name\": \"state.json\"";
            rewrite_manifest(&checkpoint.join("manifest.json"), "\"name\": \"weights.bin\"", entry);
            return "a member listed twice".into();
        }
        3 => {
            rewrite_manifest(&checkpoint.join("manifest.json"), "\"step\": 10", "\"step\": 10,\n  \"step\": 10");
            return "a key written twice".into();
        }
        4 => {
            bytes.push(draw(seed) as u8);
            "lengthened"
        }
        5 | 6 => {
            bytes.truncate(at);
            "truncated"
        }
        _ => {
            bytes[at] ^= 1 << (draw(seed) % 8);
            "flipped"
        }
    };
    replace(&path, &bytes);
    format!("{part} {what} at {at}")
}

#[test]
fn a_thousand_damages_are_all_noticed() {
    let files = two_steps();
    let root = scratch();
    let dir = root.path().join("checkpoints");
    let checkpoints = Checkpoints::open(&dir).unwrap();
    let mut seed = 20_261_121;
    for trial in 0..1_400 {
        write(&dir, &files);
        let what = damage(&dir.join(LATEST), trial, &mut seed);
        assert!(matches!(checkpoints.load_step(10), Err(LoadError::Damaged { .. })), "{what}");
        let latest = checkpoints.latest().unwrap();
        let checkpoint = latest.checkpoint.unwrap();
        assert!(checkpoint.step == 5 && is_as_saved(&checkpoint), "{what}");
        let [aside] = latest.set_aside.as_slice() else { panic!("{what}: {:?}", latest.set_aside) };
        let name = aside.path.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("step-000000010.bad-") && aside.path.is_dir() && !aside.reason.is_empty(), "{what}: {aside:?}");
        // The next start finds the same, without finding the damage again.
        let again = checkpoints.latest().unwrap();
        assert!(again.checkpoint.unwrap().step == 5 && again.set_aside.is_empty(), "{what}");
    }
}

#[test]
fn when_all_are_damaged_nothing_starts_over() {
    let files = two_steps();
    let root = scratch();
    let dir = root.path().join("checkpoints");
    let mut seed = 1;
    for trial in 0..40 {
        write(&dir, &files);
        damage(&dir.join("step-000000005"), 7, &mut seed);
        damage(&dir.join(LATEST), if trial % 20 == 3 { 7 } else { trial }, &mut seed);
        let before: Vec<_> = tree(&dir).into_iter().map(|(_, bytes)| bytes).collect();
        let checkpoints = Checkpoints::open(&dir).unwrap();
        let Err(LoadError::AllDamaged { set_aside, .. }) = checkpoints.latest() else { panic!("trial {trial}") };
        assert_eq!(set_aside.len(), 2);
        // Nor when it is tried again, now that no directory is called a checkpoint any more.
        let again = checkpoints.latest().unwrap_err();
        assert!(matches!(&again, LoadError::AllDamaged { set_aside, .. } if set_aside.len() == 2), "{again}");
        let mut after: Vec<_> = tree(&dir).into_iter().map(|(_, bytes)| bytes).collect();
        let mut before = before;
        before.sort();
        after.sort();
        assert_eq!(before, after, "nothing is overwritten");
    }
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    let root = scratch();
    let dir = root.path().join("checkpoints");
    write(&dir, &two_steps());
    rewrite_manifest(&dir.join(LATEST).join("manifest.json"), "\"format\": 2", "\"format\": 9");
    // A damaged one above it is not renamed either.
    fs::create_dir(dir.join("step-000000015")).unwrap();
    let before = tree(&dir);
    let checkpoints = Checkpoints::open(&dir).unwrap();
    for error in [checkpoints.latest().unwrap_err(), checkpoints.load_step(10).unwrap_err()] {
        assert!(matches!(error, LoadError::NewerFormat { found: 9, supported: 2, .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("reads format 9") && text.contains(LATEST), "{text}");
    }
    assert_eq!(tree(&dir), before);
    assert!(dir.join("step-000000015").is_dir());
}

#[test]
fn a_checkpoint_under_the_wrong_step_is_damage() {
    let root = scratch();
    let dir = root.path().join("checkpoints");
    write(&dir, &two_steps());
    fs::rename(dir.join(LATEST), dir.join("step-000000020")).unwrap();
    let latest = Checkpoints::open(&dir).unwrap().latest().unwrap();
    assert_eq!(latest.checkpoint.unwrap().step, 5);
    assert!(latest.set_aside[0].reason.contains("step 10"));
}

#[cfg(unix)]
#[test]
fn a_member_that_links_elsewhere_is_not_followed() {
    let root = scratch();
    let dir = root.path().join("checkpoints");
    write(&dir, &two_steps());
    let member = dir.join(LATEST).join("weights.bin");
    let copy = root.path().join("copy");
    fs::rename(&member, &copy).unwrap();
    std::os::unix::fs::symlink(&copy, &member).unwrap();
    let latest = Checkpoints::open(&dir).unwrap().latest().unwrap();
    assert_eq!(latest.checkpoint.unwrap().step, 5);
    assert!(latest.set_aside[0].path.to_str().unwrap().ends_with(".bad-unreadable"));
}

#[test]
fn an_empty_directory_is_a_new_run() {
    let root = scratch();
    let checkpoints = Checkpoints::open(root.path().join("checkpoints")).unwrap();
    let latest = checkpoints.latest().unwrap();
    assert!(latest.checkpoint.is_none() && latest.set_aside.is_empty());
    assert!(matches!(checkpoints.load_step(5), Err(LoadError::NoSuchStep { step: 5, .. })));
}
