//! What the programs of Bellows have in common: from `main` to an exit code, signals, flags and files of settings, the device, lines and
//! bars, and the session of a verb that trains.
//!
//! This is the part that prints, so only binaries depend on it. What a program can do, and which settings it has, it knows itself.

mod background;
mod bounds;
mod console;
mod device;
mod failure;
mod fault;
mod flags;
mod launches;
mod layers;
mod orders;
mod output;
mod place;
mod pulse;
mod ranks;
mod scratch;
mod screen;
mod session;
mod signals;
mod status;
mod supervise;
mod target;
mod words;

use std::process::ExitCode;

use bellows_device::answer_probe;

pub use bellows_exit::Exit;
pub use bounds::say_bounds;
pub use console::{Bar, Foot, coloured, columns, fit, memory, note, rate, say};
pub use device::{card_memory, device_of_rank, examine, join_pool, pick_device, unfit};
pub use failure::{Context, Failure, Usage};
pub use flags::{count, detach, doctor, flag, flag_values, matches, option, resume, switch, text, whole};
pub use launches::say_launches;
pub use layers::{Resumed, resumed, yaml_layer, yaml_text};
pub use orders::obey;
pub use output::{print, reader_has_gone};
pub use ranks::{local_rank, placed, ranks_of};
pub use scratch::scratch;
pub use session::{Keeping, Run, Session};
pub use signals::{Signals, Taken};
pub use status::{show, status, stop, stopping};
pub use target::Target;
pub use words::{quoted, words};

/// A program from start to exit code: what `run` does, or the device probe's child when this process is one. Signals are answered from the
/// first moment; an error is printed once, on one line, and has its code. So has a result that stdout did not take, which of a run is none.
pub fn program(run: impl FnOnce(&Signals) -> Result<(), Failure>) -> ExitCode {
    // The device probe re-runs this program as a child; it must not go through the command line proper.
    answer_probe();
    log_to_stderr();
    match Signals::install().and_then(|signals| run(&signals)).and_then(|()| output::end()) {
        Ok(()) => {
            pulse::end("done");
            #[cfg(feature = "mpi")]
            bellows_mpi::Mpi::end();
            ExitCode::SUCCESS
        }
        Err(failure) => {
            pulse::end(&failure.to_string());
            failure.complain();
            ExitCode::from(failure.exit().code())
        }
    }
}

/// Logs go to stderr; `BELLOWS_LOG` says which.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("BELLOWS_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,bellows_learner=error,bellows_device=error"));
    // What cannot be written to a terminal that is gone is not written there a second time, which would be a panic.
    let logs = tracing_subscriber::fmt().log_internal_errors(false).with_ansi(coloured(&std::io::stderr()));
    logs.with_env_filter(filter).with_writer(std::io::stderr).with_target(false).without_time().init();
}
