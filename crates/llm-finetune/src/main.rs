//! `llm-finetune`: flags to settings, settings to a run, a run to files.

mod args;
mod benchmark;
mod concept;
mod console;
mod eval;
mod export;
mod plan;
mod presets;
mod preview;
mod prove;
mod settle;
mod shards;
mod speak;
mod train;
mod tune;

use std::process::ExitCode;

use bellows_qwen::config::SftConfig;

fn main() -> ExitCode {
    bellows_cli::program(|signals| match args::parse()? {
        args::Request::Train(typed) => concept::chain::train(&typed, signals),
        args::Request::Speak(typed) => speak::speak(&typed),
        args::Request::Merge(typed) => export::merge(&typed),
        args::Request::Export(typed) => export::export(&typed),
        args::Request::Preview { flags, count } => preview::preview(&flags, count),
        args::Request::Shard(asked) => shards::shard(&asked),
        args::Request::Index(asked) => shards::index(&asked),
        args::Request::Eval(typed) => eval::eval(&typed),
        args::Request::Plan(typed) => plan::plan(&typed),
        args::Request::Tune(typed) => tune::tune(&typed, signals),
        args::Request::Benchmark(typed) => benchmark::run(&typed, signals),
        args::Request::Concept(typed) => concept::verbs::concept(&typed),
        args::Request::Status(asked) => bellows_cli::show(&asked, &SftConfig::default().project),
        args::Request::Stop(asked) => bellows_cli::stopping(&asked, &SftConfig::default().project),
        args::Request::Doctor { device, reprobe } => bellows_cli::examine(&device, reprobe, bellows_device::Work::LanguageModel),
    })
}
