//! One fine-tuning run from the command line: what of it is a language model's own. The rest is a [`Session`].

use std::path::{Path, PathBuf};

use bellows_chat::{Conversation, Example, Message, RenderOptions, Role, Splits, Template, Tokenizer, encode_prompt};
use bellows_cli::{Bar, Failure, Resumed, Run, Session, Usage, note, pick_device, quoted, ranks_of, resumed, say, unfit};
use bellows_device::{ProbeOptions, Selected, processor};
use bellows_learner::memory::{Place, peak_memory};
use bellows_learner::{LearnError, Outcome};
use bellows_qwen::arch::Architecture;
use bellows_qwen::base::Base;
use bellows_qwen::config::{MAY_CHANGE, Method, SETTINGS, SftConfig};
use bellows_qwen::data::{Encoding, SftData};
use bellows_qwen::export::{Parameters, write_gguf, write_transformers};
use bellows_qwen::generate::{Sampling, generate, stop_ids};
use bellows_qwen::grow::add_tokens;
use bellows_qwen::hub::{describe, locate};
use bellows_qwen::hub_data::locate_data;
use bellows_qwen::memory::Plan;
use bellows_qwen::merging::{Merging, own_dtype};
use bellows_qwen::model::{CausalLm, ModelConfig};
use bellows_qwen::modelfile::modelfile;
use bellows_qwen::storage::BaseDtype;
use bellows_qwen::train::{Finetune, MADE_BASE, Report, with_adapter};
use bellows_runs::{Unwritten, write_atomic};
use bellows_settings::Layer;
use bellows_weights::gguf::Preset;
use bellows_weights::{Checkpoint, DType};
use burn::tensor::Device;
use serde_json::{Map, Value, json};

use crate::args::TrainArgs;
use crate::console::Console;
use crate::presets::{of_file, settings};
use crate::prove::{has_numbers, of_run, prove};
use crate::settle::settle_memory;
use crate::speak::{adapter_tokenizer, adopt_tokenizer};

/// What a run makes besides its weights.
const MADE: [&str; 8] = [MADE_BASE, "adapter", "model", "merged", "model-*.gguf", "model-*.Modelfile", "test.json", "results.png"];

/// Trains with these settings, or goes on with the run in `resumed`.
pub(crate) fn run(session: Session, args: &TrainArgs, config: SftConfig, resumed: Option<PathBuf>) -> Result<(), Failure> {
    say(&format!("Bellows {} · {} · {}", env!("CARGO_PKG_VERSION"), config.model, config.data.join(", ")));
    let model = find_model(&config)?;
    let config = find_adapter(config, resumed.is_some())?;
    let of_run = of_run(&config, model.as_ref());
    let device = pick_device(&config.device, &ProbeOptions { reprobe: args.reprobe, tune: args.tune, ..of_run })?;
    has_numbers(config.precision, &device).inspect_err(|_| unfit())?;
    let paths = data_paths(&config, resumed.is_some())?;
    let (shape, tokenizer) = open_tokenizer(&config, &paths)?;
    let template = pick_template(&config, shape.architecture, &tokenizer)?;
    let data = open_data(&config, &paths, &tokenizer, &template)?;
    // A run that goes on keeps the weights it began with.
    let config = if resumed.is_none() { config.stored_at(Place::of(&device.device)) } else { config };
    let (config, planned) = settle_memory(config, &shape, &data, &device, session.local_ranks())?;
    let base = open_base(&config, &paths, &device.device)?;

    let mut run = session.open(resumed.as_deref(), &config.project, &config.name, config.exist_ok)?;
    // A run that was killed before it had written its base still does.
    let whole = run.path().join(MADE_BASE).join("tokenizer_config.json").exists();
    let made = (config.model == "tiny" && run.is_first() && !(run.is_resumed() && whole)).then(|| base.model.clone());
    let base = if config.model == "tiny" { base.stored_as(config.dtypes(Place::of(&device.device)), &device.device)? } else { base };
    let mut tuning = Finetune::new(config, base, data, template, &device.device, run.dir().clone())?;
    prove(&tuning.model(), tuning.shape(), tuning.config().precision, &device, false).inspect_err(|_| unfit())?;
    say(&format!("template: {}", tuning.template().name()));
    tuning.header().iter().for_each(|line| say(line));
    if !run.is_resumed() && run.is_first() {
        tuning.config().larger_updates().iter().for_each(|line| say(line));
        show_answer("Before", &tuning, &tuning.model(), &device)?;
    }
    run.start(tuning.learner(), &device)?;
    run.record(&args.typed, SETTINGS, tuning.config(), &MADE)?;
    if let Some(model) = made {
        write_transformers(&run.path().join(MADE_BASE), &model, tuning.shape(), tuning.tokenizer(), DType::F32)?;
    }
    run.watch(tuning.learner(), &device, Map::new(), Console::new());

    let report = tuning.run()?;
    tell(&report, tuning.config());
    let closed = if run.close(report.outcome) { close(&tuning, &run, &device) } else { Ok(()) };
    tell_memory(&planned, &device);
    run.end(closed, tuning.learner().finish())
}

/// All settings of the run, the run directory when one is resumed, and how many ranks train it.
pub(crate) fn settle(args: &TrainArgs) -> Result<(SftConfig, Option<PathBuf>, usize), Failure> {
    let Some(which) = &args.resume else {
        let mut config = settings(&args.settings)?;
        config.ranks = ranks_of(config.ranks)?;
        // The environment may say more ranks than was typed, and there are rules for them.
        config.validate()?;
        // With a concept there is something to do without data, too.
        let no_data = config.data.is_empty() && config.concept.is_none();
        let missing = [("--model", config.model.is_empty()), ("--data", no_data)];
        let missing: Vec<&str> = missing.iter().filter(|(_, empty)| *empty).map(|(flag, _)| *flag).collect();
        if !missing.is_empty() {
            return Err(Usage(format!("{} must be given (--config tiny has both); see --help", missing.join(" and "))).into());
        }
        let ranks = config.ranks;
        return Ok((config, None, ranks));
    };
    let file = of_file(args.settings.config.as_deref(), &args.settings.flags)?;
    let project = SftConfig::default().project;
    let Resumed { dir, layers, ranks } = resumed(which.as_deref(), file, &args.settings.flags, &project, &MAY_CHANGE, as_begun)?;
    let config = SftConfig::from_layers(&layers)?;
    let ranks = ranks_of(ranks.unwrap_or(config.ranks))?;
    Ok((config, Some(dir), ranks))
}

/// All settings that `layers` come to; what is left to the program, as it is in the first, the run that goes on.
fn as_begun(layers: &[Layer]) -> Option<Value> {
    let begun = SftConfig::from_layers(layers.get(..1)?).ok()?;
    let mut config = SftConfig::from_layers(layers).ok()?;
    if config.base_dtype == BaseDtype::Auto {
        config.base_dtype = begun.base_dtype;
    }
    serde_json::to_value(config).ok()
}

/// That the model is there, asked before a device is proved and data are read: its description (that of the hub's is fetched), and of a folder of
/// one's own the headers of its weights.
pub(crate) fn find_model(config: &SftConfig) -> Result<Option<ModelConfig>, Failure> {
    if config.model == "tiny" {
        return Ok(None);
    }
    let path = describe(&config.model, config.offline, &mut note)?;
    let shape = Base::shape(&path)?;
    // Those of the hub may be still to come.
    if Path::new(&config.model).is_dir() {
        Checkpoint::open(&path)?;
    }
    Ok(Some(shape))
}

/// All settings of a run, those of an adapter that it goes on from the adapter's: a device is proved in its ranks, and data are read with its tokenizer. One
/// that is `resumed` reads it again, for what no checkpoint has: its patterns, its tokenizer, and what it brings of the model's own weights.
fn find_adapter(config: SftConfig, resumed: bool) -> Result<SftConfig, Failure> {
    let file = config.adapter.as_ref().map(|dir| Path::new(dir).join("adapter_config.json"));
    if let Some(file) = file.filter(|file| resumed && !file.exists()) {
        let reason = format!("there is no {} any more, and the adapter that a run began with is read again", file.display());
        return Err(Usage(format!("--resume: {reason}: --adapter DIR says where it lies by now")).into());
    }
    Ok(with_adapter(config)?.0)
}

/// Where the data sets of a run lie; those of the hub are downloaded. A run that is `resumed` takes what lies there: more of a set than it began with
/// would be other data.
pub(crate) fn data_paths(config: &SftConfig, resumed: bool) -> Result<Vec<PathBuf>, Failure> {
    let pairs = config.reading().pairs;
    let locate = |data: &String| {
        let there = if resumed { locate_data(data, pairs, true, &mut |_: &str| {}).ok() } else { None };
        there.map_or_else(|| locate_data(data, pairs, config.offline, &mut note), Ok)
    };
    Ok(config.data.iter().map(locate).collect::<Result<_, _>>()?)
}

pub(crate) fn open_base(config: &SftConfig, paths: &[PathBuf], device: &Device) -> Result<Base, Failure> {
    let mut base = match config.model.as_str() {
        "tiny" => Base::tiny(texts(config, paths)?.iter().map(String::as_str), config.seed, device)?,
        model => {
            let path = locate(model, config.offline, &mut note)?;
            Base::open_for(&path, config.dtypes(Place::of(device)), config.keeps_maps(), device)?
        }
    };
    if let Some(adapter) = &config.adapter {
        adopt_tokenizer(&mut base, Path::new(adapter))?;
    }
    let added = add_tokens(&mut base, &config.new_tokens)?;
    if added > 0 {
        say(&format!("{added} tokens added: the vocabulary has {} in {} rows", base.tokenizer.len(), base.config.vocab_size));
    }
    Ok(base)
}

/// The shape and the tokenizer of a run's model, without the weights; tokens that are added count for the tokenizer alone.
pub(crate) fn open_tokenizer(config: &SftConfig, paths: &[PathBuf]) -> Result<(ModelConfig, Tokenizer), Failure> {
    let own = config.adapter.as_ref().map_or(Ok(None), |dir| adapter_tokenizer(Path::new(dir)))?;
    let (shape, mut tokenizer) = if config.model == "tiny" {
        let made = || Ok::<_, Failure>(Base::tiny_tokenizer(texts(config, paths)?.iter().map(String::as_str))?);
        let tokenizer = own.map_or_else(made, Ok)?;
        (Base::tiny_shape(&tokenizer), tokenizer)
    } else {
        let path = describe(&config.model, config.offline, &mut note)?;
        (Base::shape(&path)?, own.map_or_else(|| Base::tokenizer(&path), Ok)?)
    };
    tokenizer.add(&config.new_tokens)?;
    Ok((shape, tokenizer))
}

/// What the tokenizer of a made-up model is learnt from: what the data say. Rows that cannot be read are left out here; whoever reads the data
/// for training or a preview names them.
fn texts(config: &SftConfig, paths: &[PathBuf]) -> Result<Vec<String>, Failure> {
    let mut texts = Vec::new();
    for path in paths {
        for set in &Splits::open(path, &config.reading())?.train {
            set.iter().flatten().for_each(|example| add_texts(example, &mut texts));
            set.forget();
        }
    }
    Ok(texts)
}

fn add_texts(example: Example, texts: &mut Vec<String>) {
    match example {
        Example::Chat(chat) => texts.extend(chat.messages.into_iter().map(|message| message.content)),
        Example::Prompt { prompt, completion } => texts.extend([prompt, completion]),
        Example::Text(text) => texts.push(text),
        Example::Pair { chosen, rejected } => [chosen, rejected].into_iter().for_each(|side| add_texts(*side, texts)),
        Example::Tokens { .. } => {}
    }
}

pub(crate) fn pick_template(config: &SftConfig, architecture: Architecture, tokenizer: &Tokenizer) -> Result<Template, Failure> {
    match config.template(tokenizer)? {
        Some(template) => Ok(template),
        None => Ok(Template::detect(tokenizer, Some(architecture.model_type()))?),
    }
}

pub(crate) fn open_data(config: &SftConfig, paths: &[PathBuf], tokenizer: &Tokenizer, template: &Template) -> Result<SftData, Failure> {
    let mut bar = Bar::new("examples ", 0);
    let mut progress = |done, total| bar.set("reading".into(), done, total);
    let options = config.encoding()?;
    let data = SftData::open(config, paths, Encoding { options: &options, tokenizer, template }, &mut progress)?;
    bar.finish("");
    Ok(data)
}

/// The model's greedy answer to the question that the settings ask, if they do.
fn show_answer(when: &str, tuning: &Finetune, model: &CausalLm, device: &Selected) -> Result<(), Failure> {
    let Some(prompt) = &tuning.config().sample_prompt else { return Ok(()) };
    let (tokenizer, shape): (&Tokenizer, &ModelConfig) = (tuning.tokenizer(), tuning.shape());
    let conversation = Conversation { messages: vec![Message::new(Role::User, prompt.as_str())], ..Conversation::default() };
    let ids = encode_prompt(&conversation, tokenizer, tuning.template(), RenderOptions::default())?;
    let sampling = Sampling { max_new_tokens: 48, temperature: 0.0, ..Sampling::default() };
    let stop = stop_ids(shape, tokenizer, Some(tuning.template()));
    let new = generate(model, shape, &ids, &sampling, &stop, &device.device.clone().without_autodiff(), |_| true)?;
    say(&format!("{when} training: {prompt} → {:?}", tokenizer.decode(&new, true)?));
    Ok(())
}

/// The most memory this process has held, beside the plan; of a card's nothing is known here.
fn tell_memory(planned: &Plan, device: &Selected) {
    if let Some(kib) = peak_memory().filter(|_| device.backend == "flex") {
        // Its unit is 1.024 x 10^9 bytes.
        say(&format!("memory: {:.2} GB at most, {:.2} planned", 1.024 * kib, planned.peak() / 1e9));
    }
}

fn tell(report: &Report, config: &SftConfig) {
    if matches!(report.outcome, Outcome::Finished | Outcome::EarlyStopped) {
        say(&format!("\n{} epochs completed in {:.0} s", report.epochs, report.elapsed_s));
    }
    if let Some(loss) = report.best_loss {
        say(&format!("Lowest validation loss {loss:.4}{}", perplexity(", ", loss, config)));
    }
}

/// The perplexity that a loss is, behind `gap`; none of a loss of pairs.
fn perplexity(gap: &str, loss: f64, config: &SftConfig) -> String {
    if config.objective.is_of_pairs() { String::new() } else { format!("{gap}perplexity {:.3}", loss.exp()) }
}

/// The best model is written, tested, asked, and written as other programs want it. What cannot be written is told, and keeps nothing else from
/// being done; the program ends with the code of a training that is saved and a result that is not.
fn close(tuning: &Finetune, run: &Run, device: &Selected) -> Result<(), Failure> {
    let mut reasons = Vec::new();
    match tuning.save() {
        Ok(saved) => say(&format!("Saved {}", saved.display())),
        Err(error) => unwritten(run, &mut reasons, "the adapter", &error.into()),
    }
    if let Err(error) = try_out(tuning, run, device, &mut reasons) {
        if reasons.is_empty() {
            return Err(error);
        }
        // What is missing goes before.
        note(&format!("warning: {error}"));
        reasons.push(error.to_string());
    }
    if reasons.is_empty() {
        return Ok(());
    }
    note(&format!("what is missing is written by: llm-finetune --resume {}", quoted(run.path())));
    Err(LearnError::from(Unwritten { reasons }).into())
}

fn try_out(tuning: &Finetune, run: &Run, device: &Selected, reasons: &mut Vec<String>) -> Result<(), Failure> {
    let model = tuning.best()?;
    let mut bar = Bar::new("judging ", 0);
    let tested = tuning.test(&model, &device.device, &mut |done, total| bar.set("test".into(), done, total))?;
    let line = |(loss, _)| format!("test: loss {loss:.4}{}", perplexity("  ", loss, tuning.config()));
    bar.finish(&tested.map(line).unwrap_or_default());
    if let Some(tested) = tested {
        let path = run.path().join("test.json");
        if let Err(error) = write_atomic(&path, test_file(tested, tuning.config()).as_bytes()) {
            unwritten(run, reasons, "the loss of the test rows", &error.into());
        }
    }
    if run.is_stopped() {
        return Ok(());
    }
    show_answer("After", tuning, &model, device)?;
    if let Err(error) = write_files(tuning, &model, run, reasons) {
        unwritten(run, reasons, "the merged model", &error);
    }
    Ok(())
}

/// The test rows' mean loss and what it is a mean of, as JSON.
fn test_file((loss, of): (f64, usize), config: &SftConfig) -> String {
    let values = if config.objective.is_of_pairs() {
        json!({ "loss": loss, "pairs": of })
    } else {
        json!({ "loss": loss, "perplexity": loss.exp(), "tokens": of })
    };
    format!("{values:#}\n")
}

/// The merged model and the GGUF, where they were asked for. They can be as large as the base model, so they are streamed to the disk and not
/// handed to the journal as bytes.
fn write_files(tuning: &Finetune, model: &CausalLm, run: &Run, reasons: &mut Vec<String>) -> Result<(), Failure> {
    let (config, dir) = (tuning.config(), run.path());
    if !config.save_merged && config.gguf().is_none() {
        return Ok(());
    }
    let (shape, processor) = (tuning.shape(), processor());
    let base = |offline: bool, announce: &mut dyn FnMut(&str)| -> Result<PathBuf, Failure> {
        Ok(if config.model == "tiny" { dir.join(MADE_BASE) } else { locate(&config.model, offline, announce)? })
    };
    let merging = if config.base_dtype.rounds() && config.method == Method::Lora {
        say("The adapter is merged into the values of the model's file, not into those it was trained beside");
        Some(Merging::open(&base(config.offline, &mut note)?, (model, shape), tuning.adapter(), &processor)?)
    } else {
        None
    };
    let parameters: &dyn Parameters = merging.as_ref().map_or(model, |merging| merging);
    // Full fine-tuning has written its model already.
    if config.save_merged && config.method == Method::Lora {
        let merged = dir.join("merged");
        // What lies there tells it: a type is no reason to download a model once more.
        let dtype = merged_type(base(true, &mut |_: &str| {}));
        let written = directory(&merged, parameters, shape, tuning.tokenizer(), dtype);
        written.unwrap_or_else(|error| unwritten(run, reasons, &merged.display().to_string(), &error));
    }
    if let Some(kind) = config.gguf() {
        let file = dir.join(format!("model-{kind}.gguf"));
        let written = gguf(&file, parameters, shape, tuning.tokenizer(), kind, config.system.as_deref(), Some(tuning.template()));
        written.unwrap_or_else(|error| unwritten(run, reasons, &file.display().to_string(), &error));
    }
    Ok(())
}

/// The type of a merged model: that of its base's files, or f32, which holds the values of any, where these are gone.
fn merged_type(base: Result<PathBuf, Failure>) -> DType {
    let own = base.and_then(|base| Ok(own_dtype(&base)?));
    own.unwrap_or_else(|error| {
        say(&format!("The merged model is in f32, for the type of its base is not known: {error}"));
        DType::F32
    })
}

/// A file that is missing at the end, told at once.
fn unwritten(run: &Run, reasons: &mut Vec<String>, what: &str, error: &Failure) {
    run.lacks_a_file();
    note(&format!("warning: {what} is not written: {error}"));
    reasons.push(error.to_string());
}

/// A directory for transformers; says in which type.
pub(crate) fn directory(
    dir: &Path,
    model: &dyn Parameters,
    shape: &ModelConfig,
    tokenizer: &Tokenizer,
    dtype: DType,
) -> Result<(), Failure> {
    for line in write_transformers(dir, model, shape, tokenizer, dtype)? {
        say(&format!("warning: {line}"));
    }
    say(&format!("Saved {} in {}", dir.display(), dtype.to_string().to_lowercase()));
    Ok(())
}

/// A GGUF of this kind, and a Modelfile beside it.
pub(crate) fn gguf(
    file: &Path,
    model: &dyn Parameters,
    shape: &ModelConfig,
    tokenizer: &Tokenizer,
    kind: &str,
    system: Option<&str>,
    template: Option<&Template>,
) -> Result<(), Failure> {
    let kinds = || Preset::ALL.map(|p| p.name()).join(", ");
    let preset = Preset::from_name(kind).ok_or_else(|| Usage(format!("{kind:?} is no kind of GGUF; there are {}", kinds())))?;
    let name = file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    for line in write_gguf(file, model, shape, tokenizer, preset, name.trim_end_matches(".gguf"))? {
        say(&format!("warning: {line}"));
    }
    let beside = modelfile_of(file);
    write_atomic(&beside, modelfile(&format!("./{name}"), None, system, template, tokenizer).as_bytes())?;
    say(&format!("Saved {} and {}", file.display(), beside.display()));
    Ok(())
}

/// The Modelfile of a GGUF: what stands behind another dot of its name (`qwen2.5-0.5b`) is no suffix.
pub(crate) fn modelfile_of(file: &Path) -> PathBuf {
    let has_suffix = file.extension().is_some_and(|suffix| suffix == "gguf");
    if has_suffix { file.with_extension("Modelfile") } else { file.with_added_extension("Modelfile") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merged_model_is_in_f32_where_the_files_of_its_base_are_gone() {
        let dir = tempfile::tempdir().unwrap();
        let base = Base::tiny(["a b"], 0, &Device::flex()).unwrap();
        write_transformers(dir.path(), &base.model, &base.config, &base.tokenizer, DType::BF16).unwrap();
        assert_eq!(merged_type(Ok(dir.path().into())), DType::BF16);
        assert_eq!(merged_type(Ok(dir.path().join("gone"))), DType::F32);
        assert_eq!(merged_type(Err(Usage("offline".into()).into())), DType::F32);
    }
}
