//! Runs the real binaries in fresh directories.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A program of this workspace, beside this test in the target directory.
pub fn program(name: &str) -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let path = deps.parent().unwrap().join(name);
    assert!(path.exists(), "{} is not built: run `cargo test --release --workspace`", path.display());
    path
}

/// `yolo-train` with arguments, in `dir`, with caches of its own.
pub fn yolo_train(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program("yolo-train"));
    command.current_dir(dir).args(args).env("XDG_CACHE_HOME", dir.join("cache")).stdin(Stdio::null());
    command
}

/// Runs to the end; panics unless the exit code is `code`. Returns standard output and standard error.
pub fn expect_code(command: &mut Command, code: i32) -> (String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&stdout).into_owned(), String::from_utf8_lossy(&stderr).into_owned());
    assert_eq!(status.code(), Some(code), "{command:?}\n--- stdout\n{out}\n--- stderr\n{err}");
    (out, err)
}

/// A data.yaml of a few small generated frames, in `dir`.
pub fn tiny_data(dir: &Path) -> PathBuf {
    let path = dir.join("tiny.yaml");
    let text = "path: tiny\ntrain: images/train\nval: images/val\nnames: [person, bicycle, motorcycle, vehicle]\n\
                sample: {train: 11, val: 4, width: 96, height: 72, object_scale: 2.0, objects: 3}\n\
                settings: {imgsz: 64, batch: 4, nbs: 8, epochs: 3, close_mosaic: 1, workers: 2, warmup_epochs: 1, device: cpu}\n";
    std::fs::write(&path, text).unwrap();
    path
}
