//! The command line as typed: flags come from the table of settings, so help, YAML keys and code cannot disagree.

use std::path::PathBuf;

use bellows_cli::{
    Failure, Signals, Usage, count, detach, doctor, flag, flag_values, note, obey, option, resume, switch, text, whole, words,
};
use bellows_kernels::{Lowering, Precision};
use bellows_settings::{Kind, Layer};
use bellows_yolo::bench::Benchmark;
use bellows_yolo::config::{ABSENT, Checkpointing, HALF, SETTINGS, Toggle, TrainConfig};
use bellows_yolo::model::Scale;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command, value_parser};
use serde_json::Value;

use crate::run::TrainArgs;
use crate::words::{Words, translated};
use crate::{data, export, plan, predict, val};

/// The program's.
const NAME: &str = "yolo-train";

/// The one setting of training that `benchmark` takes as it is.
const WORKSPACE: &str = "conv_workspace_mb";

/// A verb with a file of its own.
pub(crate) type Verb = fn(&ArgMatches, &Signals) -> Result<(), Failure>;

const VERBS: [(fn() -> Command, Verb); 7] = [
    (val::command, val::run),
    (predict::command, predict::run),
    (data::command, data::run),
    (export::command, export::run),
    (bellows_cli::status, |asked, _| bellows_cli::show(asked, &TrainConfig::default().project)),
    (bellows_cli::stop, |asked, _| bellows_cli::stopping(asked, &TrainConfig::default().project)),
    (plan::command, plan::run),
];

/// What the user asked for.
pub(crate) enum Request {
    /// One of [`VERBS`], and its words.
    Verb(Verb, ArgMatches),
    /// Train: settings as typed.
    Train(TrainArgs),
    /// Time training steps.
    Benchmark(BenchmarkArgs),
    /// Look at the machine.
    Doctor {
        /// Only this device.
        device: String,
        /// Do not use a cached verdict.
        reprobe: bool,
    },
}

/// `benchmark` as typed.
pub(crate) struct BenchmarkArgs {
    /// Where to run.
    pub(crate) device: String,
    /// What to time.
    pub(crate) what: Benchmark,
    /// How convolutions are computed.
    pub(crate) conv: Lowering,
    /// Whether what could be kept for the backward pass is made again.
    pub(crate) gradient_checkpointing: Checkpointing,
    /// Megabytes of parts of a weight gradient on a GPU.
    pub(crate) conv_workspace_mb: usize,
    /// Threads of the CPU; 0 for all.
    pub(crate) threads: usize,
    /// Count launches instead.
    pub(crate) count: bool,
    /// One JSON object instead of lines.
    pub(crate) json: bool,
}

/// All that can be typed.
pub(crate) fn command() -> Command {
    let defaults = serde_json::to_value(TrainConfig::default()).unwrap_or_default();
    Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .about("Trains YOLOv8 on the GPU you own, or on none: survives crashes, resumes exactly, writes files other tools read.")
        .after_help(
            "Examples:\n  yolo-train --data datasets/thermal-sample.yaml\n  yolo-train --data ltdv2.yaml --imgsz 640 --batch 16 --device vulkan\n  \
             yolo-train --resume\n  yolo-train val --weights runs/detect/train/weights/best.safetensors --data datasets/thermal-sample.yaml\n  \
             yolo-train predict --weights best.safetensors --source frames/\n  yolo-train doctor",
        )
        .args_conflicts_with_subcommands(true)
        .subcommands(VERBS.map(|(command, _)| command()))
        .subcommand(doctor())
        .subcommand(
            Command::new("benchmark")
                .about("Times training steps and inference on made-up images")
                .arg(count("batch", "4", "Images per batch"))
                .arg(count("imgsz", "640", "Side of the images in pixels, a multiple of 32"))
                .arg(count("classes", "4", "Classes of the model"))
                .arg(count("steps", "5", "Steps that count, after two that do not"))
                .arg(count("boxes", "20", "Objects an image"))
                .arg(count("threads", "0", "Threads of the CPU; 0 for all"))
                .arg(option("model", "Size of the model").default_value("n").value_parser(PossibleValuesParser::new(["n", "s", "m", "l", "x"])))
                .arg(option("device", "Where to run, as for training").default_value("cpu"))
                .arg(
                    option("conv", "How convolutions are computed")
                        .default_value("auto")
                        .value_parser(PossibleValuesParser::new(Lowering::ALL.map(|l| l.name()))),
                )
                .arg(
                    option("precision", "As for training: bf16 is --conv bf16, f16 takes --conv gemm on a GPU")
                        .conflicts_with("conv")
                        .value_parser(PossibleValuesParser::new(Precision::ALL.map(Precision::name).into_iter().chain([HALF]))),
                )
                .arg(
                    option("gradient-checkpointing", "As for training: auto is by the memory of a card")
                        .default_value("auto")
                        .value_parser(PossibleValuesParser::new(["auto", "true", "false"])),
                )
                .args(SETTINGS.iter().filter(|s| s.name == WORKSPACE).map(|s| flag(s, &defaults).help_heading(None).value_parser(value_parser!(u32))))
                .arg(switch("count", "Count what a training step launches on a GPU, instead of timing it"))
                .arg(switch("json", "Print one JSON object")),
        )
        .arg(option("config", "YAML file of settings; flags override it").value_name("FILE"))
        .arg(resume())
        .arg(detach())
        .arg(switch("tui", "Full-screen dashboard"))
        .arg(switch("reprobe", "Probe the GPU again instead of using the cached verdict"))
        .arg(switch("tune", "Time block sizes of our own kernels on the GPU, and remember the fastest"))
        .args(SETTINGS.iter().map(|s| flag(s, &defaults)))
        .args(absent().map(|name| {
            let arg = Arg::new(name).long(name.replace('_', "-")).hide(true).num_args(0..=1).default_missing_value("true");
            if name.contains('_') { arg.alias(name) } else { arg }
        }))
}

/// A peer's arguments that are no settings: taken or refused, with the reason, by their value.
fn absent() -> impl Iterator<Item = &'static str> {
    ABSENT.iter().map(|a| a.name).filter(|&name| name != "resume")
}

/// Reads the process's arguments; prints help and exits by itself.
///
/// # Errors
/// What Ultralytics has and this program has not, or a word that is none or not UTF-8.
pub(crate) fn parse() -> Result<Request, Usage> {
    let typed = words().map_err(Usage)?;
    let Words { words, notes } = translated(&typed, &command()).map_err(Usage)?;
    // With the name that usage begins with, whatever this file is called.
    let matches = bellows_cli::matches(command(), std::iter::once(NAME.to_string()).chain(words))?;
    notes.iter().for_each(|line| note(line));
    Ok(request(&matches, typed))
}

fn request(matches: &ArgMatches, typed: Vec<String>) -> Request {
    if let Some((name, m)) = matches.subcommand()
        && let Some((_, run)) = VERBS.iter().find(|(command, _)| command().get_name() == name)
    {
        return Request::Verb(*run, m.clone());
    }
    if let Some(("doctor", m)) = matches.subcommand() {
        return Request::Doctor { device: text(m, "device").unwrap_or_default(), reprobe: m.get_flag("reprobe") };
    }
    if let Some(("benchmark", m)) = matches.subcommand() {
        return Request::Benchmark(benchmark(m));
    }
    let mut resume = matches.contains_id("resume").then(|| text(matches, "resume").map(PathBuf::from));
    let mut config = text(matches, "config").map(PathBuf::from);
    let mut flags = flags(matches);
    obey(&mut resume, &mut config, &mut flags);
    Request::Train(TrainArgs {
        config,
        resume,
        tui: matches.get_flag("tui"),
        reprobe: matches.get_flag("reprobe"),
        tune: matches.get_flag("tune"),
        background: matches.get_flag("detach"),
        flags,
        typed,
    })
}

/// Settings, and what is none.
fn flags(matches: &ArgMatches) -> Layer {
    let absent = absent().map(|name| (name, Toggle::read as fn(&str) -> Value));
    let flags = SETTINGS.iter().map(|s| (s.key(), s.read)).chain(absent);
    Layer { origin: "command line".into(), values: flag_values(flags, matches) }
}

fn benchmark(m: &ArgMatches) -> BenchmarkArgs {
    let scale = match text(m, "model").as_deref() {
        Some("s") => Scale::S,
        Some("m") => Scale::M,
        Some("l") => Scale::L,
        Some("x") => Scale::X,
        _ => Scale::N,
    };
    BenchmarkArgs {
        device: text(m, "device").unwrap_or_default(),
        what: Benchmark {
            scale,
            batch: whole(m, "batch"),
            imgsz: whole(m, "imgsz"),
            classes: whole(m, "classes"),
            steps: whole(m, "steps"),
            boxes: whole(m, "boxes"),
            half: text(m, "precision").as_deref() == Some(HALF),
        },
        conv: match text(m, "precision").as_deref() {
            Some("bf16") => Lowering::Bf16,
            Some(HALF) => Lowering::Gemm,
            _ => text(m, "conv").and_then(|c| c.parse().ok()).unwrap_or_default(),
        },
        gradient_checkpointing: match text(m, "gradient-checkpointing").as_deref() {
            Some("true") => Checkpointing::On(true),
            Some("false") => Checkpointing::On(false),
            _ => Checkpointing::Auto,
        },
        conv_workspace_mb: m.get_one::<u32>(WORKSPACE).map_or(TrainConfig::default().conv_workspace_mb, |&mb| mb as usize),
        threads: whole(m, "threads"),
        count: m.get_flag("count"),
        json: m.get_flag("json"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config_of(args: &[&str]) -> TrainConfig {
        let matches = command().try_get_matches_from(args).unwrap();
        TrainConfig::from_layers(&[flags(&matches)]).unwrap()
    }

    #[test]
    fn every_setting_is_a_flag_and_parses() {
        command().debug_assert();
        let c = config_of(&[
            "yolo-train",
            "--data",
            "d.yaml",
            "--close-mosaic",
            "0",
            "--cos-lr",
            "--freeze",
            "1,2",
            "--box",
            "2",
            "--name",
            "7",
        ]);
        assert_eq!((c.data.as_str(), c.close_mosaic, c.cos_lr, c.box_, c.name.as_str()), ("d.yaml", 0, true, 2.0, "7"));
        assert_eq!(c.freeze, bellows_yolo::config::Freeze::List(vec![1, 2]));
        assert_eq!(config_of(&["yolo-train", "--freeze=[10]"]).freeze, bellows_yolo::config::Freeze::List(vec![10]));
        // A peer's habit that changes nothing.
        config_of(&["yolo-train", "--amp", "False", "--mask-ratio", "4", "--task", "detect"]);
        let c =
            config_of(&["yolo-train", "--lr0=0.1", "--exist_ok", "true", "--plots", "False", "--save-period", "-1", "--classes", "0,3"]);
        assert_eq!((c.lr0, c.exist_ok, c.plots, c.save_period, c.classes), (0.1, true, false, -1, Some(vec![0, 3])));
    }

    /// With and without a rule that is named; nobody's rates are no reason to warn.
    #[test]
    fn none_takes_back_a_rate_of_the_data_set() {
        let read = |typed: &[&str], settings: Value| {
            let typed: Vec<String> = typed.iter().map(ToString::to_string).collect();
            let words = translated(&typed, &command()).unwrap().words;
            let matches = command().try_get_matches_from(std::iter::once(NAME.to_string()).chain(words)).unwrap();
            let dataset = Layer { origin: "ss.yaml".into(), values: settings.as_object().cloned().unwrap() };
            let (config, notes) = TrainConfig::with_notes(&[dataset, flags(&matches)]).unwrap();
            ([config.lr0, config.momentum, config.warmup_bias_lr], notes.len())
        };
        let none = ["data=ss.yaml", "lr0=None", "momentum=none", "warmup_bias_lr=None"];
        let settings = json!({ "lr0": 0.02, "momentum": 0.5, "warmup_bias_lr": 0.3 });
        let with_sgd = json!({ "optimizer": "SGD", "lr0": 0.02, "momentum": 0.5, "warmup_bias_lr": 0.3 });
        for settings in [settings.clone(), with_sgd, json!({})] {
            assert_eq!(read(&none, settings), ([0.01, 0.937, 0.1], 0));
        }
        assert_eq!(read(&["data=ss.yaml", "lr0=None"], settings), ([0.01, 0.5, 0.3], 1), "of the others it is told");
    }
}
