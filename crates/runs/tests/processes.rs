//! What needs a second process: a file-size limit, a second trainer in the same directory, a killed one.
//!
//! This test binary runs itself again with one of the ignored tests, the child's part, and the directory in a variable.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use bellows_runs::{Checkpoints, Journal, LockError, Member, Retention, RunDir};
use common::{is_as_saved, save};

const DIRECTORY: &str = "BELLOWS_TEST_DIRECTORY";

/// The command line that runs `test` of this binary, and only it.
fn child_arguments(test: &str) -> Vec<String> {
    let program = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    [&program, "--exact", test, "--ignored", "--nocapture"].map(str::to_owned).to_vec()
}

/// The directory the parent chose; a child's part without a parent (`--ignored` by hand) does nothing.
fn directory() -> Option<PathBuf> {
    std::env::var_os(DIRECTORY).map(PathBuf::from)
}

#[test]
fn a_full_disk_stops_no_training() {
    let dir = tempfile::tempdir().unwrap();
    // The shell sets the limit and ignores its signal, both of which the child inherits: the write then fails with EFBIG.
    let limited = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$@\"", "sh"])
        .args(child_arguments("child_with_a_file_size_limit"))
        .env(DIRECTORY, dir.path())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&limited.stdout).into_owned() + &String::from_utf8_lossy(&limited.stderr);
    assert!(limited.status.success() && output.contains("1 passed"), "{output}");
    // Without the limit, what it left is in order.
    let latest = Checkpoints::open(dir.path()).unwrap().latest().unwrap();
    assert!(latest.checkpoint.is_some_and(|c| c.step == 15 && is_as_saved(&c)) && latest.set_aside.is_empty());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
#[ignore = "the child of a_full_disk_stops_no_training"]
fn child_with_a_file_size_limit() {
    let Some(dir) = directory() else { return };
    let checkpoints = Checkpoints::open(dir).unwrap();
    save(&checkpoints, 5).unwrap();
    let large = vec![7; 1 << 20];
    for _ in 0..3 {
        let error = checkpoints.save(10, &[Member { name: "large.bin", bytes: &large }], &common::info(10, 1)).unwrap_err();
        assert!(error.is_no_space() && error.to_string().contains("large.bin"), "{error}");
        assert_eq!(checkpoints.latest().unwrap().checkpoint.unwrap().step, 5);
    }
    save(&checkpoints, 15).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_log_on_a_full_disk_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create(dir.path(), "train", false).unwrap();
    std::os::unix::fs::symlink("/dev/full", run.events()).unwrap();
    let mut journal = Journal::open(run).unwrap();
    journal.begin("epoch").unwrap();
    journal.take_warnings();
    (0..3).for_each(|_| journal.event("{}"));
    let warnings = journal.take_warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("events.jsonl"), "not one for every line: {warnings:?}");
    let keep = Retention { newest: 2, steps: Vec::new() };
    journal.save(5, &[Member { name: "state", bytes: b"x" }], serde_json::Map::new(), &keep).unwrap();
    assert!(journal.finish().unwrap_err().to_string().contains("events.jsonl"));
}

#[test]
fn a_half_written_line_is_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let limited = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$@\"", "sh"])
        .args(child_arguments("child_with_a_log_at_its_limit"))
        .env(DIRECTORY, dir.path())
        .output()
        .unwrap();
    assert!(limited.status.success(), "{}", String::from_utf8_lossy(&limited.stdout));
    assert_eq!(std::fs::read_to_string(dir.path().join("train/events.jsonl")).unwrap(), "first\nlast\n");
}

#[test]
#[ignore = "the child of a_half_written_line_is_taken_back"]
fn child_with_a_log_at_its_limit() {
    let Some(dir) = directory() else { return };
    let mut journal = Journal::open(RunDir::create(&dir, "train", false).unwrap()).unwrap();
    journal.begin("epoch").unwrap();
    journal.event("first");
    journal.event(&"x".repeat(1 << 20));
    assert_eq!(journal.take_warnings().len(), 1);
    journal.event("last");
    assert_eq!(journal.take_warnings(), [""; 0]);
}

#[test]
fn a_second_process_is_told_who_has_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create(dir.path(), "train", false).unwrap();
    let arguments = child_arguments("child_that_holds_the_lock");
    let mut child = Command::new(&arguments[0])
        .args(&arguments[1..])
        .env(DIRECTORY, run.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    output.find(|line| line.as_ref().unwrap().ends_with("locked")).expect("the child locks").unwrap();

    let error = run.lock().unwrap_err();
    assert!(matches!(error, LockError::Held { pid: Some(pid), .. } if pid == child.id()), "{error:?}");
    assert!(error.to_string().contains(&format!("process {}", child.id())) && error.to_string().contains("train"), "{error}");

    child.kill().unwrap();
    child.wait().unwrap();
    let lock = run.lock().expect("the lock of a killed process is free");
    let again = run.lock().unwrap_err();
    assert!(matches!(again, LockError::Held { pid: Some(pid), .. } if pid == std::process::id()), "{again:?}");
    drop(lock);
    run.lock().unwrap();
}

#[test]
#[ignore = "the child of a_second_process_is_told_who_has_the_run"]
fn child_that_holds_the_lock() {
    let Some(dir) = directory() else { return };
    let _lock = RunDir::open(dir).unwrap().lock().unwrap();
    println!("locked");
    // Until the parent kills this process (or is gone).
    let _ = std::io::stdin().read(&mut [0]);
}
