//! Real files that tests compare with and the repository does not hold.

use std::env::var_os;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// The folder of `model`, with `files` in it, that `.ci/assets` fetches: now, if they are not there. None, with a message, if they cannot be.
pub fn asset(model: &str, files: &[&str]) -> Option<PathBuf> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock();
    let home = || PathBuf::from(var_os("HOME").unwrap_or_default()).join(".cache");
    let cache = || var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("bellows/assets");
    let dir = var_os("BELLOWS_ASSETS").map_or_else(cache, PathBuf::from).join(model);
    let there = || files.iter().all(|file| dir.join(file).is_file());
    if !there() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/assets");
        Command::new(script).arg(model).stdout(Stdio::null()).status().ok();
    }
    if there() {
        return Some(dir);
    }
    // Past the test runner, which shows what a test prints only if it fails.
    writeln!(std::io::stderr(), "skipped: {} is not there and .ci/assets cannot fetch it", dir.display()).ok();
    None
}
