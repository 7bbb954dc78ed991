//! The command line as typed.

use std::path::PathBuf;

use bellows_cli::{Usage, count, detach, doctor, flag, flag_values, obey, option, resume, switch, text, whole, words};
use bellows_qwen::config::{SETTINGS, SftConfig};
use bellows_qwen::generate::Sampling;
use bellows_qwen::precision::Products;
use bellows_qwen::questions::Asking;
use bellows_settings::Layer;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::concept::args::{self as concept, ConceptArgs};
use crate::presets::{self, SettingsArgs};
use crate::shards;

/// What the user asked for.
pub(crate) enum Request {
    Train(TrainArgs),
    Speak(SpeakArgs),
    Merge(ExportArgs),
    Export(ExportArgs),
    Preview { flags: SettingsArgs, count: usize },
    Shard(ArgMatches),
    Index(ArgMatches),
    Eval(EvalArgs),
    Plan(PlanArgs),
    Tune(TuneArgs),
    Benchmark(BenchmarkArgs),
    Concept(ConceptArgs),
    Doctor { device: String, reprobe: bool },
    Status(ArgMatches),
    Stop(ArgMatches),
}

/// A training run as typed.
pub(crate) struct TrainArgs {
    pub(crate) settings: SettingsArgs,
    /// `--resume [RUN_DIR]`: `Some(None)` is the newest run.
    pub(crate) resume: Option<Option<PathBuf>>,
    pub(crate) tui: bool,
    pub(crate) reprobe: bool,
    /// Time block sizes of the GPU's kernels.
    pub(crate) tune: bool,
    /// Outlive the terminal.
    pub(crate) background: bool,
    /// The command line, for the run's records.
    pub(crate) typed: Vec<String>,
}

/// A model to speak with, as typed.
pub(crate) struct SpeakArgs {
    pub(crate) model: String,
    pub(crate) adapter: Option<PathBuf>,
    pub(crate) device: String,
    /// One question; `None` is a chat.
    pub(crate) prompt: Option<String>,
    pub(crate) system: Option<String>,
    /// The prompt is text to go on with, no question.
    pub(crate) raw: bool,
    /// Models that think do so before they answer, or not; by their templates if nothing is said.
    pub(crate) thinking: Option<bool>,
    pub(crate) stop: Vec<String>,
    pub(crate) sampling: Asked,
    pub(crate) offline: bool,
}

/// Settings of [`Sampling`] as typed; the others are the model's own.
pub(crate) struct Asked {
    max_new_tokens: usize,
    temperature: Option<f64>,
    top_k: Option<usize>,
    top_p: Option<f64>,
    repetition_penalty: Option<f64>,
    seed: u64,
}

impl Asked {
    /// These settings, and `own` where none was typed.
    pub(crate) fn over(&self, own: &Sampling) -> Sampling {
        Sampling {
            max_new_tokens: self.max_new_tokens,
            temperature: self.temperature.unwrap_or(own.temperature),
            top_k: self.top_k.unwrap_or(own.top_k),
            top_p: self.top_p.unwrap_or(own.top_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(own.repetition_penalty),
            seed: self.seed,
        }
    }
}

/// A model to write, as typed.
pub(crate) struct ExportArgs {
    pub(crate) model: String,
    pub(crate) adapter: Option<PathBuf>,
    pub(crate) out: PathBuf,
    /// f32, f16, bf16 (merge) or the kind of a GGUF (export).
    pub(crate) kind: Option<String>,
    /// Export the adapter instead of the model it makes.
    pub(crate) adapter_only: bool,
    pub(crate) system: Option<String>,
    pub(crate) offline: bool,
}

/// `eval` as typed.
pub(crate) struct EvalArgs {
    pub(crate) settings: SettingsArgs,
    pub(crate) asking: Asking,
    pub(crate) json: bool,
}

/// The flag by which this program asks itself for one measurement.
pub(crate) const MEASURE: &str = "measure";

/// `plan` as typed.
pub(crate) struct PlanArgs {
    pub(crate) settings: SettingsArgs,
    /// A published shape in place of a model.
    pub(crate) size: Option<String>,
    /// A card that need not be at hand, in place of a device.
    pub(crate) card: Option<String>,
    pub(crate) json: bool,
}

/// `tune-batch` as typed.
pub(crate) struct TuneArgs {
    pub(crate) settings: SettingsArgs,
    /// The largest batch that is tried.
    pub(crate) most: usize,
    /// Measure this one, in this process.
    pub(crate) measure: Option<usize>,
    pub(crate) json: bool,
    /// The command line, for the measuring process.
    pub(crate) typed: Vec<String>,
}

/// `benchmark` as typed.
pub(crate) struct BenchmarkArgs {
    pub(crate) size: String,
    pub(crate) batch: usize,
    pub(crate) seq: usize,
    pub(crate) rank: usize,
    pub(crate) steps: usize,
    pub(crate) targets: String,
    pub(crate) checkpointing: String,
    pub(crate) precision: String,
    pub(crate) base_dtype: String,
    pub(crate) products: Products,
    pub(crate) threads: usize,
    pub(crate) device: String,
    /// Count launches instead.
    pub(crate) count: bool,
    pub(crate) json: bool,
}

fn number(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name("X").allow_negative_numbers(true).value_parser(clap::value_parser!(f64)).help(help)
}

fn model() -> [Arg; 3] {
    [
        option("model", "Directory, .gguf file, or hub id").required(true),
        option("adapter", "Adapter directory"),
        switch("offline", "Never connect to the hub"),
    ]
}

fn speaking() -> [Arg; 11] {
    [
        option("device", "auto, cpu, vulkan, cuda, rocm, metal or webgpu").default_value("auto"),
        option("system", "System message"),
        switch("thinking", "Think before the answer, of models that do so only if they are told to"),
        switch("no-thinking", "Answer without thinking first, of models that think (Qwen3)").conflicts_with("thinking"),
        Arg::new("stop").long("stop").action(ArgAction::Append).help("Text that ends the answer; may be given several times"),
        count("max-new-tokens", "256", "Most tokens of an answer"),
        number("temperature", "Divides the logits; 0 takes the likeliest token [default: generation_config.json's, or 0.7]"),
        Arg::new("top-k")
            .long("top-k")
            .value_name("N")
            .value_parser(clap::value_parser!(u32))
            .help("Only the likeliest k tokens; 0 takes all [default: generation_config.json's, or 20]"),
        number("top-p", "Only the likeliest tokens that together reach this probability [default: generation_config.json's, or 0.8]"),
        number("repetition-penalty", "Makes tokens that were there before less likely [default: generation_config.json's, or 1]"),
        count("seed", "0", "Seed of the draws"),
    ]
}

fn settings_args(command: Command) -> Command {
    let defaults = serde_json::to_value(SftConfig::default()).unwrap_or_default();
    command
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE|NAME")
                .help(format!("YAML file of settings, or a preset: {}", presets::names())),
        )
        .args(SETTINGS.iter().map(|s| flag(s, &defaults)))
        // Alone it says yes, as it did when that was all there was to say.
        .mut_arg("gradient_checkpointing", |arg| arg.num_args(0..=1).default_missing_value("true"))
}

fn command() -> Command {
    let dtypes = PossibleValuesParser::new(["f32", "f16", "bf16"]);
    let kinds = PossibleValuesParser::new(bellows_weights::gguf::Preset::ALL.map(|p| p.name()));
    settings_args(Command::new("llm-finetune"))
        .version(env!("CARGO_PKG_VERSION"))
        .about("Fine-tunes Qwen2, Qwen2.5, Qwen3, Mistral and Llama-layout models on the GPU you own, or on none; out to PEFT, GGUF and Ollama.")
        .after_help(
            "Examples:\n  llm-finetune --config tiny\n  llm-finetune --model Qwen/Qwen2.5-0.5B-Instruct --data chats.jsonl\n  llm-finetune --resume\n  \
             llm-finetune chat --model ./Qwen2.5-0.5B-Instruct --adapter runs/sft/train/adapter\n  \
             llm-finetune export --model ./Qwen2.5-0.5B-Instruct --adapter runs/sft/train/adapter --quant q8_0 --out model.gguf",
        )
        .args_conflicts_with_subcommands(true)
        .arg(resume())
        .arg(detach())
        .arg(switch("no-gradient-checkpointing", "Keep activations instead of re-running layers: faster, more memory"))
        .arg(switch("tui", "Full-screen dashboard"))
        .arg(switch("reprobe", "Probe the GPU again instead of using the cached verdict"))
        .arg(switch("tune", "Time block sizes of our own kernels on the GPU, and remember the fastest"))
        .subcommand(
            Command::new("generate")
                .about("Answers one question")
                .args(model())
                .arg(option("prompt", "The question").required(true))
                .arg(switch("raw", "Go on with the prompt's text, without a chat template; special tokens written in it are taken for real")
                    .conflicts_with_all(["system", "thinking", "no-thinking"]))
                .args(speaking()),
        )
        .subcommand(Command::new("chat").about("Talks, a line at a time").args(model()).args(speaking()))
        .subcommand(
            Command::new("merge")
                .about("Writes the model with an adapter merged, for transformers")
                .args(model())
                .arg(option("out", "Directory to write").required(true))
                .arg(option("dtype", "Type of the weights [default: the file's, bf16 for a GGUF's blocks]").value_parser(dtypes)),
        )
        .subcommand(
            Command::new("export")
                .about("Writes a GGUF and a Modelfile")
                .args(model())
                .arg(option("out", "File to write").required(true))
                .arg(
                    option("format", "gguf: the model, an adapter merged; gguf-lora: the adapter alone, in f32")
                        .default_value("gguf")
                        .value_parser(PossibleValuesParser::new(["gguf", "gguf-lora"])),
                )
                .arg(option("quant", "How weights are stored [default: q8_0]").value_parser(kinds))
                .arg(option("system", "System message of the Modelfile")),
        )
        .subcommand(
            Command::new("data")
                .about("Looks at data, or writes them into shards")
                .subcommand_required(true)
                .subcommand(
                    settings_args(Command::new("preview"))
                        .about("Shows what is learnt of the first examples, lengths and padding")
                        .arg(count("examples", "3", "Examples to show")),
                )
                .subcommands(shards::commands()),
        )
        .subcommand(
            settings_args(Command::new("eval"))
                .about("Judges a model on files, before and after an adapter: loss and perplexity, exact match, multiple choice")
                .arg(switch("raw", "Prompts are texts to go on with, without a chat template"))
                .arg(switch("thinking", "Models that think (Qwen3) do so before they answer"))
                .arg(count("max-new-tokens", "64", "Most tokens of an answer"))
                .arg(count("limit", "0", "Rows of each file or folder that are looked at; 0 takes all"))
                .arg(switch("json", "Print one JSON object")),
        )
        .subcommand(
            settings_args(Command::new("plan"))
                .about("Says what memory a run would take, and how fast it would be, before anything is allocated")
                .arg(option("size", "A published shape of Qwen2.5 in place of --model").value_parser(sizes()))
                .arg(option("card", "A card that need not be at hand, in place of --device: \"RX 6700 XT\", MI50, ..").value_name("NAME"))
                .arg(switch("json", "Print one JSON object")),
        )
        .subcommand(
            settings_args(Command::new("tune-batch"))
                .about("Measures batches of growing size on the longest row, each in a process of its own: memory, speed, watts")
                .arg(count("most", "64", "The largest batch that is tried"))
                .arg(Arg::new(MEASURE).long(MEASURE).value_parser(value_parser!(u32)).hide(true))
                .arg(switch("json", "Print one JSON list")),
        )
        .subcommand(
            Command::new("benchmark")
                .about("Times training steps on made-up weights")
                .arg(option("size", "Shape of the model").default_value("0.5B").value_parser(sizes()))
                .arg(
                    option("precision", "Of the weights and of products with them")
                        .default_value("f32")
                        // f16 is what `yolo-train benchmark` calls it.
                        .value_parser(PossibleValuesParser::new(["f32", "bf16", "bf16x2", "fp16", "fp16-pure", "f16"]).map(|name| match name.as_str() {
                            "f16" => "fp16".to_owned(),
                            _ => name,
                        }))
                        .visible_alias("dtype"),
                )
                .arg(
                    option("base-dtype", "How the weights are stored; auto: as they are drawn")
                        .default_value("auto")
                        .value_parser(PossibleValuesParser::new(["auto", "f32", "bf16", "f16", "int8", "nf4"])),
                )
                .arg(
                    option("products", "Whose products run on a GPU")
                        .default_value("auto")
                        .value_parser(PossibleValuesParser::new(Products::ALL.map(Products::name))),
                )
                .arg(count("batch", "1", "Rows"))
                .arg(count("seq", "512", "Tokens a row"))
                .arg(count("rank", "16", "Rank"))
                .arg(count("steps", "3", "Steps that count, after one that does not"))
                .arg(option("targets", "Maps with adapters").default_value("q_proj,k_proj,v_proj,o_proj"))
                .arg(
                    option("checkpointing", "Layers run again in the backward pass: auto (as few as free memory asks for), off, or a number")
                        .default_value("off")
                        .num_args(0..=1)
                        .default_missing_value("all"),
                )
                .arg(count("threads", "0", "Threads of the CPU; 0 for all"))
                .arg(option("device", "Where to run").default_value("cpu"))
                .arg(switch("count", "Count what a training step launches on a GPU, instead of timing it"))
                .arg(switch("json", "Print one JSON object")),
        )
        .subcommand(concept::command(model))
        .subcommand(doctor())
        .subcommand(bellows_cli::status())
        .subcommand(bellows_cli::stop())
}

/// Reads the process's arguments; prints help and exits by itself.
///
/// # Errors
/// A word that is none, or not UTF-8.
pub(crate) fn parse() -> Result<Request, Usage> {
    let typed = words().map_err(Usage)?;
    let matches = bellows_cli::matches(command(), std::iter::once("llm-finetune".to_string()).chain(typed.iter().cloned()))?;
    Ok(match matches.subcommand() {
        Some(("generate", m)) => Request::Speak(speak(m, text(m, "prompt"), m.get_flag("raw"))),
        Some(("chat", m)) => Request::Speak(speak(m, None, false)),
        Some(("merge", m)) => Request::Merge(export(m, "dtype", None)),
        Some(("export", m)) => Request::Export(export(m, "quant", text(m, "system"))),
        Some(("data", m)) => match m.subcommand() {
            Some(("shard", m)) => Request::Shard(m.clone()),
            Some(("index", m)) => Request::Index(m.clone()),
            Some((_, m)) => Request::Preview { flags: settings(m), count: whole(m, "examples") },
            None => unreachable!("clap asks for a subcommand"),
        },
        Some(("eval", m)) => Request::Eval(eval(m)),
        Some(("plan", m)) => Request::Plan(plan(m)),
        Some(("tune-batch", m)) => Request::Tune(tune(m)),
        Some(("benchmark", m)) => Request::Benchmark(benchmark(m)),
        Some(("concept", m)) => Request::Concept(concept::parse(m)),
        Some(("doctor", m)) => Request::Doctor { device: text(m, "device").unwrap_or_default(), reprobe: m.get_flag("reprobe") },
        Some(("status", m)) => Request::Status(m.clone()),
        Some(("stop", m)) => Request::Stop(m.clone()),
        _ => Request::Train(train(&matches, typed)),
    })
}

fn train(m: &ArgMatches, typed: Vec<String>) -> TrainArgs {
    let mut resume = m.contains_id("resume").then(|| text(m, "resume").map(PathBuf::from));
    let mut settings = settings(m);
    obey(&mut resume, &mut settings.config, &mut settings.flags);
    let (tui, reprobe, tune, background) = (m.get_flag("tui"), m.get_flag("reprobe"), m.get_flag("tune"), m.get_flag("detach"));
    TrainArgs { settings, resume, tui, reprobe, tune, background, typed }
}

fn settings(m: &ArgMatches) -> SettingsArgs {
    let mut values = flag_values(SETTINGS.iter().map(|s| (s.key(), s.read)), m);
    if m.try_get_one::<bool>("no-gradient-checkpointing").ok().flatten() == Some(&true) {
        values.insert("gradient_checkpointing".into(), false.into());
    }
    SettingsArgs { config: text(m, "config"), flags: Layer { origin: "command line".into(), values } }
}

fn speak(m: &ArgMatches, prompt: Option<String>, raw: bool) -> SpeakArgs {
    let float = |name: &str| m.get_one::<f64>(name).copied();
    SpeakArgs {
        model: text(m, "model").unwrap_or_default(),
        adapter: text(m, "adapter").map(PathBuf::from),
        device: text(m, "device").unwrap_or_default(),
        prompt,
        system: text(m, "system"),
        raw,
        stop: m.get_many::<String>("stop").into_iter().flatten().cloned().collect(),
        thinking: if m.get_flag("no-thinking") { Some(false) } else { m.get_flag("thinking").then_some(true) },
        sampling: Asked {
            max_new_tokens: whole(m, "max-new-tokens"),
            temperature: float("temperature"),
            top_k: m.get_one::<u32>("top-k").map(|&k| k as usize),
            top_p: float("top-p"),
            repetition_penalty: float("repetition-penalty"),
            seed: whole(m, "seed") as u64,
        },
        offline: m.get_flag("offline"),
    }
}

fn export(m: &ArgMatches, kind: &str, system: Option<String>) -> ExportArgs {
    ExportArgs {
        model: text(m, "model").unwrap_or_default(),
        adapter: text(m, "adapter").map(PathBuf::from),
        out: text(m, "out").map(PathBuf::from).unwrap_or_default(),
        kind: text(m, kind),
        adapter_only: m.try_get_one::<String>("format").ok().flatten().is_some_and(|format| format == "gguf-lora"),
        system,
        offline: m.get_flag("offline"),
    }
}

fn eval(m: &ArgMatches) -> EvalArgs {
    let (raw, thinking) = (m.get_flag("raw"), m.get_flag("thinking"));
    let asking = Asking { raw, thinking, max_new_tokens: whole(m, "max-new-tokens"), limit: whole(m, "limit") };
    EvalArgs { settings: settings(m), asking, json: m.get_flag("json") }
}

fn plan(m: &ArgMatches) -> PlanArgs {
    let [size, card] = ["size", "card"].map(|name| text(m, name));
    PlanArgs { settings: settings(m), size, card, json: m.get_flag("json") }
}

fn tune(m: &ArgMatches) -> TuneArgs {
    TuneArgs {
        settings: settings(m),
        most: whole(m, "most"),
        measure: m.get_one::<u32>(MEASURE).map(|&n| n as usize),
        json: m.get_flag("json"),
        typed: std::env::args().skip(1).collect(),
    }
}

fn sizes() -> PossibleValuesParser {
    PossibleValuesParser::new(["tiny", "0.5B", "1.5B", "3B"])
}

fn benchmark(m: &ArgMatches) -> BenchmarkArgs {
    BenchmarkArgs {
        size: text(m, "size").unwrap_or_default(),
        batch: whole(m, "batch"),
        seq: whole(m, "seq"),
        rank: whole(m, "rank"),
        steps: whole(m, "steps"),
        targets: text(m, "targets").unwrap_or_default(),
        checkpointing: text(m, "checkpointing").unwrap_or_default(),
        precision: text(m, "precision").unwrap_or_default(),
        base_dtype: text(m, "base-dtype").unwrap_or_default(),
        products: text(m, "products").and_then(|name| Products::named(&name)).unwrap_or_default(),
        threads: whole(m, "threads"),
        device: text(m, "device").unwrap_or_default(),
        count: m.get_flag("count"),
        json: m.get_flag("json"),
    }
}

#[cfg(test)]
mod tests {
    use bellows_qwen::checkpointing::Checkpointing;

    use super::*;

    #[test]
    fn the_command_line_is_sound_and_flags_are_settings() {
        command().debug_assert();
        let m = command()
            .try_get_matches_from(["x", "--model", "m", "--data", "a,b", "--target-modules", "q_proj,v_proj", "--r", "8"])
            .unwrap();
        let config = SftConfig::from_layers(&[settings(&m).flags]).unwrap();
        assert_eq!((config.model.as_str(), config.data.len(), config.r), ("m", 2, 8));
        assert_eq!(config.target_modules, bellows_qwen::adapter::Targets::Names(vec!["q_proj".into(), "v_proj".into()]));
        let m = command().try_get_matches_from(["x", "--model", "m", "--data", "a", "--no-gradient-checkpointing", "--packing"]).unwrap();
        let config = SftConfig::from_layers(&[settings(&m).flags]).unwrap();
        assert!(config.gradient_checkpointing == Checkpointing::OFF && config.packing);
        let m = command().try_get_matches_from(["x", "--gradient-checkpointing", "--packing"]).unwrap();
        assert_eq!(SftConfig::from_layers(&[settings(&m).flags]).unwrap().gradient_checkpointing, Checkpointing::ALL);
        // Recorded as what it is called here.
        let m = command().try_get_matches_from(["x", "--precision", "f16"]).unwrap();
        assert_eq!(SftConfig::from_layers(&[settings(&m).flags]).unwrap().precision.name(), "fp16");
        let m = command().try_get_matches_from(["x", "chat", "--model", "m", "--no-thinking", "--top-k", "0"]).unwrap();
        let speak = speak(m.subcommand().unwrap().1, None, false);
        let own = Sampling { temperature: 0.6, top_k: 30, ..Sampling::default() };
        assert_eq!(speak.thinking, Some(false));
        assert_eq!(speak.sampling.over(&own), Sampling { top_k: 0, ..own });
        for (typed, meant) in [("f16", "fp16"), ("bf16", "bf16"), ("fp16-pure", "fp16-pure")] {
            let m = command().try_get_matches_from(["x", "benchmark", "--precision", typed]).unwrap();
            assert_eq!(benchmark(m.subcommand().unwrap().1).precision, meant);
        }
        let patterns = ["x", "--rank-pattern", "q_proj=4,layers.0.mlp.up_proj=2", "--alpha-pattern", "q_proj=1.5"];
        let lora = SftConfig::from_layers(&[settings(&command().try_get_matches_from(patterns).unwrap()).flags]).unwrap().lora();
        assert_eq!(lora.rank_pattern, [("q_proj".to_string(), 4), ("layers.0.mlp.up_proj".to_string(), 2)].into());
        assert_eq!(lora.alpha_pattern, [("q_proj".to_string(), 1.5)].into());
        let wrong = SftConfig::from_layers(&[settings(&command().try_get_matches_from(["x", "--rank-pattern", "q_proj"]).unwrap()).flags]);
        assert!(wrong.unwrap_err().to_string().contains("rank_pattern"));
    }
}
