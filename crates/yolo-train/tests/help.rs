//! Having an integration test makes `cargo test` build the binary, which the tests of the workspace drive.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[test]
fn version_is_told() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_yolo-train")).arg("--version").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains(env!("CARGO_PKG_VERSION")));
}
