//! The command line of `concept` as typed.

use std::path::PathBuf;

use bellows_cli::{count, option, switch, text, whole};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command};

/// A model as typed.
pub(crate) struct ModelArgs {
    pub(crate) model: String,
    pub(crate) adapter: Option<PathBuf>,
    pub(crate) offline: bool,
    pub(crate) device: String,
}

/// An edit as typed.
pub(crate) struct EditArgs {
    pub(crate) layers: String,
    pub(crate) strength: f64,
    pub(crate) norm_preserving: bool,
    pub(crate) embeddings: bool,
}

/// What the user asked for.
pub(crate) enum ConceptArgs {
    Extract { model: ModelArgs, sets: PathBuf, out: PathBuf },
    Score { model: ModelArgs, sets: PathBuf, concept: PathBuf, edit: EditArgs },
    Ablate { model: ModelArgs, concept: PathBuf, at_layer: Option<u32>, edit: EditArgs, dtype: String, out: PathBuf },
    Steer { model: ModelArgs, concept: PathBuf, at_layer: Option<u32>, coefficient: f64, what: Steered },
    Eval { model: ModelArgs, sets: PathBuf, edited: Option<PathBuf>, tokens: usize, most_rise: f64, json: bool },
}

/// What is to be done with a direction that is added.
pub(crate) enum Steered {
    /// Answer this.
    Prompt { prompt: String, tokens: usize },
    /// Write a file for llama.cpp.
    ControlVector(PathBuf),
}

fn number(name: &'static str, default: &'static str, help: &'static str) -> Arg {
    let parser = clap::value_parser!(f64);
    Arg::new(name).long(name).value_name("X").allow_negative_numbers(true).default_value(default).value_parser(parser).help(help)
}

fn sets() -> Arg {
    option("sets", "Folder with target.txt and baseline.txt (or .jsonl, ..), perhaps markers.txt and guard.txt").required(true)
}

fn concept() -> Arg {
    option("concept", "Folder that `concept extract` wrote").required(true)
}

fn at_layer() -> Arg {
    let parser = clap::value_parser!(u32);
    Arg::new("at-layer")
        .long("at-layer")
        .value_name("N")
        .value_parser(parser)
        .help("Take the direction of this layer's input [default: the chosen one]")
}

fn edit() -> [Arg; 4] {
    [
        option("layers", "Layers whose o_proj and down_proj are edited: all, 8, or 8-16").default_value("all"),
        number("strength", "1", "Share of the direction that is taken out: 1 takes all of it"),
        switch("norm-preserving", "What each input of a matrix writes keeps its length"),
        switch("embeddings", "Take it out of the embedding too"),
    ]
}

/// The verb with its own verbs; `model` makes the flags that say which model.
pub(crate) fn command(model: fn() -> [Arg; 3]) -> Command {
    let verb = |name: &'static str, about: &'static str| {
        let device =
            option("concept-device", "auto, cpu, vulkan, cuda, rocm, metal or webgpu").default_value("auto").visible_alias("device");
        Command::new(name).about(about).args(model()).arg(device)
    };
    Command::new("concept")
        .about("Finds the direction between two sets of prompts in a model, takes it out or adds it, and judges what that did")
        .subcommand_required(true)
        .subcommand(
            verb("extract", "Finds the direction at every layer, and says how well each separates prompts that were held out")
                .arg(sets())
                .arg(option("out", "Folder to write").required(true)),
        )
        .subcommand(
            verb("score", "Tries every layer's direction: what taking it out and adding it do to the next token")
                .arg(sets())
                .arg(concept())
                .args(edit()),
        )
        .subcommand(
            verb("ablate", "Writes the model with the direction taken out")
                .arg(concept())
                .arg(at_layer())
                .args(edit())
                .arg(
                    option("dtype", "Type of the weights")
                        .default_value("f32")
                        .value_parser(PossibleValuesParser::new(["f32", "f16", "bf16"])),
                )
                .arg(option("out", "Directory to write").required(true)),
        )
        .subcommand(
            verb("steer", "Answers with the direction added, or writes it as a control vector for llama.cpp")
                .arg(concept())
                .arg(at_layer())
                .arg(number("coefficient", "1", "Multiple of the difference of the sets' means that is added; negative takes it away"))
                .arg(option("prompt", "The question").required_unless_present("control-vector").conflicts_with("control-vector"))
                .arg(count("max-new-tokens", "64", "Most tokens of the answer"))
                .arg(option("control-vector", "GGUF file to write instead")),
        )
        .subcommand(
            verb("eval", "Shares of answers with a marker and perplexity, of a model or of two")
                .arg(sets())
                .arg(option("edited", "The model after the edit"))
                .arg(count("max-new-tokens", "32", "Most tokens of an answer"))
                .arg(number(
                    "max-perplexity-rise",
                    "0.05",
                    "By which share the perplexity of guard.txt may rise; above it the exit code is 1",
                ))
                .arg(switch("json", "Print one JSON object")),
        )
}

/// What `concept` was asked for.
pub(crate) fn parse(m: &ArgMatches) -> ConceptArgs {
    let Some((name, m)) = m.subcommand() else { unreachable!("clap asks for a subcommand") };
    let path = |name: &str| text(m, name).map(PathBuf::from).unwrap_or_default();
    let float = |name: &str| m.get_one::<f64>(name).copied().unwrap_or_default();
    let model = ModelArgs {
        model: text(m, "model").unwrap_or_default(),
        adapter: text(m, "adapter").map(PathBuf::from),
        offline: m.get_flag("offline"),
        device: text(m, "concept-device").unwrap_or_default(),
    };
    let edit = || EditArgs {
        layers: text(m, "layers").unwrap_or_default(),
        strength: float("strength"),
        norm_preserving: m.get_flag("norm-preserving"),
        embeddings: m.get_flag("embeddings"),
    };
    let at_layer = || m.get_one::<u32>("at-layer").copied();
    match name {
        "extract" => ConceptArgs::Extract { model, sets: path("sets"), out: path("out") },
        "score" => ConceptArgs::Score { model, sets: path("sets"), concept: path("concept"), edit: edit() },
        "ablate" => ConceptArgs::Ablate {
            model,
            concept: path("concept"),
            at_layer: at_layer(),
            edit: edit(),
            dtype: text(m, "dtype").unwrap_or_default(),
            out: path("out"),
        },
        "steer" => ConceptArgs::Steer {
            model,
            concept: path("concept"),
            at_layer: at_layer(),
            coefficient: float("coefficient"),
            what: match (text(m, "prompt"), text(m, "control-vector")) {
                (Some(prompt), _) => Steered::Prompt { prompt, tokens: whole(m, "max-new-tokens") },
                (None, file) => Steered::ControlVector(file.map(PathBuf::from).unwrap_or_default()),
            },
        },
        _ => ConceptArgs::Eval {
            model,
            sets: path("sets"),
            edited: text(m, "edited").map(PathBuf::from),
            tokens: whole(m, "max-new-tokens"),
            most_rise: float("max-perplexity-rise"),
            json: m.get_flag("json"),
        },
    }
}
