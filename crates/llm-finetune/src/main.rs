//! `llm-finetune`: flags to settings, settings to a run, a run to files, an error to an exit code.
//!
//! 0 done (also: stopped by a signal after saving), 1 failed while running, 2 the input or the command line is wrong, 3 the final save
//! failed, 4 stopped because training diverged.

mod args;
mod benchmark;
mod console;
mod exit;
mod export;
mod presets;
mod preview;
mod prove;
mod speak;
mod train;

use std::process::ExitCode;

fn main() -> ExitCode {
    let run = || match args::parse() {
        args::Request::Train(typed) => train::train(typed),
        args::Request::Speak(typed) => speak::speak(typed),
        args::Request::Merge(typed) => export::merge(&typed),
        args::Request::Export(typed) => export::export(&typed),
        args::Request::Preview { flags, count } => preview::preview(flags, count),
        args::Request::Benchmark(typed) => benchmark::run(&typed),
        args::Request::Doctor { device, reprobe } => bellows_cli::examine(&device, reprobe),
    };
    bellows_cli::program(run, exit::code_of)
}
