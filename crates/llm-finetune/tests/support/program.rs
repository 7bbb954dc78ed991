//! The program as a script runs it.

use std::path::Path;
use std::process::{Command, Output};

/// It in `dir`, with a cache there, ready to be run.
pub(crate) fn program(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llm-finetune"));
    command.current_dir(dir).args(args).env("XDG_CACHE_HOME", dir.join("cache"));
    command
}

/// Runs it: exit code, stdout, stderr.
pub(crate) fn run(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = program(dir, args).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}
