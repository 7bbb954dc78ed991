//! The program as a script runs it.

use std::path::Path;
use std::process::{Command, Output};

/// Runs it in `dir`, with a cache there: exit code, stdout, stderr.
pub(crate) fn run(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llm-finetune"));
    let Output { status, stdout, stderr } = command.current_dir(dir).args(args).env("XDG_CACHE_HOME", dir.join("cache")).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}
