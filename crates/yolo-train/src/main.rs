//! `yolo-train`: flags to settings, settings to a run, a run to an exit code.
//!
//! 0 done (also: stopped by a signal after saving), 1 failed while running, 2 the input or the command line is wrong, 3 the final save
//! failed, 4 stopped because training diverged.

mod args;
mod benchmark;
mod console;
mod exit;
mod run;

use std::process::ExitCode;

fn main() -> ExitCode {
    let run = || match args::parse() {
        args::Request::Train(typed) => run::train(typed),
        args::Request::Benchmark(typed) => benchmark::run(&typed),
        args::Request::Doctor { device, reprobe } => bellows_cli::examine(&device, reprobe),
    };
    bellows_cli::program(run, exit::code_of)
}
