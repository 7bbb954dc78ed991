//! What the command lines of Bellows have in common: flags from a table of settings, layers of them, `--resume`, plain lines or bars, the
//! device, and one message and a code for an error.
//!
//! This is the part that prints, so only binaries depend on it. What a program can do, and which settings it has, it knows itself.

mod console;
mod device;
mod exit;
mod flags;
mod layers;

use std::error::Error;
use std::process::ExitCode;

use bellows_device::{PROBE_SUBCOMMAND, probe_child_main};

pub use console::{Bar, Foot, columns, fit, memory, note, rate, say};
pub use device::{examine, join_pool, pick_device};
pub use exit::{FINAL_SAVE, USAGE, Usage, code_of_learner};
pub use flags::{count, doctor, flag, flag_values, option, resume, switch, text, whole};
pub use layers::{record_settings, resumed, yaml_layer, yaml_text};

/// A program from start to exit code: what `run` does, or the device probe's child when this process is one. An error is printed once, on one
/// line; `code_of` knows the codes of the program's own errors, the others are known here.
pub fn program(run: impl FnOnce() -> anyhow::Result<()>, code_of: impl Fn(&(dyn Error + 'static)) -> Option<u8>) -> ExitCode {
    // The device probe re-runs this program as a child; it must not go through the command line proper.
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() == Some(PROBE_SUBCOMMAND) {
        return ExitCode::from(u8::try_from(probe_child_main(words)).unwrap_or(1));
    }
    log_to_stderr();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            exit::complain(&error);
            ExitCode::from(exit::code(&error, code_of))
        }
    }
}

/// Logs go to stderr; `BELLOWS_LOG` says which.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("BELLOWS_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,bellows_learner=error,bellows_device=error"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).without_time().init();
}
