//! The command line as typed: flags come from the table of settings, so help, YAML keys and code cannot disagree.

use std::path::PathBuf;

use bellows_kernels::Lowering;
use bellows_yolo::bench::Benchmark;
use bellows_yolo::config::{ABSENT, Layer, SETTINGS, Setting, TrainConfig};
use bellows_yolo::model::Scale;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value};

/// What the user asked for.
pub(crate) enum Request {
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
    /// Threads of the CPU; 0 for all.
    pub(crate) threads: usize,
    /// One JSON object instead of lines.
    pub(crate) json: bool,
}

/// A training run as typed.
pub(crate) struct TrainArgs {
    /// `--config FILE`.
    pub(crate) config: Option<PathBuf>,
    /// `--resume [RUN_DIR]`: `Some(None)` is the newest run.
    pub(crate) resume: Option<Option<PathBuf>>,
    /// burn-train's dashboard instead of lines.
    pub(crate) tui: bool,
    /// Do not use a cached verdict on the GPU.
    pub(crate) reprobe: bool,
    /// The flags.
    pub(crate) flags: Layer,
    /// The command line, for the run's records.
    pub(crate) typed: Vec<String>,
}

fn flag(setting: &Setting, defaults: &Value) -> Arg {
    let long = setting.name.trim_end_matches('_').replace('_', "-");
    let default = match &defaults[setting.name] {
        Value::Null => String::new(),
        Value::String(s) if s.is_empty() => String::new(),
        Value::String(s) => format!(" [default: {s}]"),
        other => format!(" [default: {other}]"),
    };
    let arg = Arg::new(setting.name)
        .long(long.clone())
        .help(format!("{}{default}", setting.help.trim()))
        .help_heading(setting.group)
        .action(ArgAction::Set)
        .allow_negative_numbers(true)
        .value_name(value_name(setting.kind));
    let arg = if long.contains('-') { arg.alias(setting.name.trim_end_matches('_')) } else { arg };
    if setting.kind == "bool" {
        arg.num_args(0..=1)
            .require_equals(false)
            .default_missing_value("true")
            .value_parser(PossibleValuesParser::new(["true", "false", "True", "False"]))
    } else {
        arg
    }
}

fn value_name(kind: &str) -> &'static str {
    match kind {
        "bool" => "true|false",
        "usize" | "u64" | "i64" => "N",
        "f64" | "Option<f64>" => "X",
        "Freeze" => "N|N,N,..",
        "Option<Vec<u32>>" => "N,N,..",
        "Option<Vec<String>>" => "DIR,DIR,..",
        _ => "VALUE",
    }
}

fn command() -> Command {
    let defaults = serde_json::to_value(TrainConfig::default()).unwrap_or_default();
    Command::new("yolo-train")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Trains YOLOv8 on the GPU you own, or on none: survives crashes, resumes exactly, writes files other tools read.")
        .after_help(
            "Examples:\n  yolo-train --data datasets/thermal-sample.yaml\n  yolo-train --data ltdv2.yaml --imgsz 640 --batch 16 --device vulkan\n  \
             yolo-train --resume\n  yolo-train doctor",
        )
        .args_conflicts_with_subcommands(true)
        .subcommand(
            Command::new("doctor")
                .about("Shows adapters, drivers, memory, known issues and the result of the device probe")
                .arg(Arg::new("device").long("device").default_value("auto").help("Probe this device only"))
                .arg(Arg::new("reprobe").long("reprobe").action(ArgAction::SetTrue).help("Do not use the cached verdict")),
        )
        .subcommand(
            Command::new("benchmark")
                .about("Times training steps and inference on made-up images")
                .arg(count("batch", "4", "Images per batch"))
                .arg(count("imgsz", "640", "Side of the images in pixels, a multiple of 32"))
                .arg(count("steps", "5", "Steps that count, after two that do not"))
                .arg(count("boxes", "20", "Objects an image"))
                .arg(count("threads", "0", "Threads of the CPU; 0 for all"))
                .arg(Arg::new("model").long("model").default_value("n").value_parser(PossibleValuesParser::new(["n", "s", "m", "l", "x"])).help("Size of the model"))
                .arg(Arg::new("device").long("device").default_value("cpu").help("Where to run, as for training"))
                .arg(
                    Arg::new("conv")
                        .long("conv")
                        .default_value("auto")
                        .value_parser(PossibleValuesParser::new(Lowering::ALL.map(|l| l.name())))
                        .help("How convolutions are computed"),
                )
                .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print one JSON object")),
        )
        .arg(Arg::new("config").long("config").value_name("FILE").help("YAML file of settings; flags override it"))
        .arg(
            Arg::new("resume")
                .long("resume")
                .value_name("RUN_DIR")
                .num_args(0..=1)
                .help("Go on with a run: this directory, or the newest one under the project"),
        )
        .arg(Arg::new("tui").long("tui").action(ArgAction::SetTrue).help("Full-screen dashboard"))
        .arg(Arg::new("reprobe").long("reprobe").action(ArgAction::SetTrue).help("Probe the GPU again instead of using the cached verdict"))
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

/// Reads the process's arguments; prints help or a usage error and exits (code 2) by itself.
pub(crate) fn parse() -> Request {
    let matches = command().get_matches();
    if let Some(("doctor", m)) = matches.subcommand() {
        return Request::Doctor { device: text(m, "device").unwrap_or_default(), reprobe: m.get_flag("reprobe") };
    }
    if let Some(("benchmark", m)) = matches.subcommand() {
        return Request::Benchmark(benchmark(m));
    }
    let resume = matches.contains_id("resume").then(|| text(&matches, "resume").map(PathBuf::from));
    Request::Train(TrainArgs {
        config: text(&matches, "config").map(PathBuf::from),
        resume,
        tui: matches.get_flag("tui"),
        reprobe: matches.get_flag("reprobe"),
        flags: Layer { origin: "command line".into(), values: flag_values(&matches) },
        typed: std::env::args().skip(1).collect(),
    })
}

fn count(name: &'static str, default: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name("N").default_value(default).value_parser(clap::value_parser!(u32)).help(help)
}

fn benchmark(m: &ArgMatches) -> BenchmarkArgs {
    let number = |name: &str| m.get_one::<u32>(name).copied().unwrap_or_default() as usize;
    let scale = match text(m, "model").as_deref() {
        Some("s") => Scale::S,
        Some("m") => Scale::M,
        Some("l") => Scale::L,
        Some("x") => Scale::X,
        _ => Scale::N,
    };
    BenchmarkArgs {
        device: text(m, "device").unwrap_or_default(),
        what: Benchmark { scale, batch: number("batch"), imgsz: number("imgsz"), steps: number("steps"), boxes: number("boxes") },
        conv: text(m, "conv").and_then(|c| c.parse().ok()).unwrap_or_default(),
        threads: number("threads"),
        json: m.get_flag("json"),
    }
}

fn text(matches: &ArgMatches, id: &str) -> Option<String> {
    matches.get_one::<String>(id).cloned()
}

fn flag_values(matches: &ArgMatches) -> Map<String, Value> {
    let settings = SETTINGS.iter().map(|s| (s.name, s.kind)).chain(absent().map(|name| (name, "Toggle")));
    let typed = settings.filter_map(|(name, kind)| Some((name, kind, matches.get_one::<String>(name)?)));
    typed.map(|(name, kind, value)| (name.to_string(), scalar(kind, value))).collect()
}

/// A flag's text as the kind of value its setting has; what does not parse stays text and is refused, by name, later.
fn scalar(kind: &str, text: &str) -> Value {
    let number = |t: &str| t.trim().parse::<i64>().map(Value::from).or_else(|_| t.trim().parse::<f64>().map(Value::from)).ok();
    match kind {
        "String" => Value::from(text),
        "bool" | "Toggle" | "Cache" if text.eq_ignore_ascii_case("true") => Value::from(true),
        "bool" | "Toggle" | "Cache" if text.eq_ignore_ascii_case("false") => Value::from(false),
        "Option<Vec<u32>>" => text.split(',').map(|t| number(t).unwrap_or_else(|| Value::from(t))).collect(),
        "Option<Vec<String>>" => text.split(',').map(Value::from).collect(),
        "Freeze" if text.contains(',') => text.split(',').map(|t| number(t).unwrap_or_else(|| Value::from(t))).collect(),
        _ => number(text).unwrap_or_else(|| Value::from(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config_of(args: &[&str]) -> TrainConfig {
        let matches = command().try_get_matches_from(args).unwrap();
        TrainConfig::from_layers(&[Layer { origin: "t".into(), values: flag_values(&matches) }]).unwrap()
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
        // A peer's habit that changes nothing.
        config_of(&["yolo-train", "--amp", "False", "--mask-ratio", "4", "--task", "detect"]);
        let c =
            config_of(&["yolo-train", "--lr0=0.1", "--exist_ok", "true", "--plots", "False", "--save-period", "-1", "--classes", "0,3"]);
        assert_eq!((c.lr0, c.exist_ok, c.plots, c.save_period, c.classes), (0.1, true, false, -1, Some(vec![0, 3])));
    }
}
