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
mod speak;
mod train;

use std::process::ExitCode;

use bellows_cli::{complain, log_to_stderr};
use bellows_device::{DeviceRequest, PROBE_SUBCOMMAND, ProbeOptions, doctor, probe_child_main};

fn main() -> ExitCode {
    // The device probe re-runs this program as a child; it must not go through the command line proper.
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() == Some(PROBE_SUBCOMMAND) {
        return ExitCode::from(u8::try_from(probe_child_main(words)).unwrap_or(1));
    }
    log_to_stderr();
    let result = match args::parse() {
        args::Request::Train(typed) => train::train(typed),
        args::Request::Speak(typed) => speak::speak(typed),
        args::Request::Merge(typed) => export::merge(&typed),
        args::Request::Export(typed) => export::export(&typed),
        args::Request::Preview { flags, count } => preview::preview(flags, count),
        args::Request::Benchmark(typed) => benchmark::run(&typed),
        args::Request::Doctor { device, reprobe } => examine(&device, reprobe),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::from(exit::code(&error))
        }
    }
}

fn examine(device: &str, reprobe: bool) -> anyhow::Result<()> {
    let request: DeviceRequest = device.parse()?;
    doctor(&request, &ProbeOptions { reprobe, ..ProbeOptions::default() }, &mut std::io::stdout())?;
    Ok(())
}
