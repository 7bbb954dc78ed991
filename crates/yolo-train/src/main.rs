//! `yolo-train`: flags to settings, settings to a run.

mod args;
mod benchmark;
mod console;
mod data;
mod export;
mod peer;
mod plan;
mod predict;
mod report;
mod results;
mod run;
mod shots;
#[cfg(test)]
mod switching;
mod used;
mod val;
mod words;

use std::process::ExitCode;

fn main() -> ExitCode {
    bellows_cli::program(|signals| match args::parse()? {
        args::Request::Train(typed) => run::train(&typed, signals),
        args::Request::Verb(run, matches) => run(&matches, signals),
        args::Request::Benchmark(typed) => benchmark::run(&typed, signals),
        args::Request::Doctor { device, reprobe } => bellows_cli::examine(&device, reprobe, bellows_device::Work::Detector),
    })
}
