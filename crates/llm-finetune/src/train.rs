//! One fine-tuning run from the command line: layers of settings, device, model, data, run directory, training, files, closing words.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use bellows_chat::{Conversation, Example, Message, RenderOptions, Role, Splits, Template, Tokenizer, encode_prompt};
use bellows_cli::{Bar, Usage, join_pool, note, pick_device, record_settings, resumed, say};
use bellows_device::{ProbeOptions, Telemetry};
use bellows_learner::{Dashboard, Outcome, signals};
use bellows_qwen::arch::Architecture;
use bellows_qwen::base::Base;
use bellows_qwen::config::{MAY_CHANGE, Method, SETTINGS, SftConfig};
use bellows_qwen::data::SftData;
use bellows_qwen::export::{modelfile, write_gguf, write_transformers};
use bellows_qwen::generate::{Sampling, generate, stop_ids};
use bellows_qwen::hub::{describe, locate};
use bellows_qwen::model::{CausalLm, ModelConfig};
use bellows_qwen::train::{Finetune, MADE_BASE, Report};
use bellows_qwen::weights::merge;
use bellows_runs::{RunDir, write_atomic};
use bellows_weights::DType;
use bellows_weights::gguf::Preset;
use burn::tensor::Device;
use burn::train::Interrupter;
use burn::train::renderer::tui::TuiMetricsRendererWrapper;
use serde_json::json;

use crate::args::TrainArgs;
use crate::console::Console;
use crate::presets::settings;
use crate::prove::prove;
use crate::speak::{adapter_tokenizer, adopt_tokenizer};

pub(crate) fn train(args: TrainArgs) -> anyhow::Result<()> {
    if args.tui && !std::io::stdout().is_terminal() {
        return Err(Usage("--tui needs a terminal: leave it out".into()).into());
    }
    join_pool(0)?;
    let stop = signals::install().context("installing signal handlers")?;
    let (config, resumed) = settle(&args)?;
    say(&format!("Bellows {} · {} · {}", env!("CARGO_PKG_VERSION"), config.model, config.data.join(", ")));
    let device = pick_device(&config.device, &ProbeOptions { reprobe: args.reprobe, ..ProbeOptions::default() })?;
    let base = open_base(&config, &device.device)?;
    let template = pick_template(&config, base.config.architecture, &base.tokenizer)?;
    let data = open_data(&config, &base.tokenizer, &template)?;

    let dir = match &resumed {
        Some(path) => RunDir::open(path)?,
        None => RunDir::create(Path::new(&config.project), &config.name, config.exist_ok)?,
    };
    let lock = dir.lock()?;
    let path = dir.path().to_path_buf();
    let made = (config.model == "tiny" && resumed.is_none()).then(|| base.model.clone());
    let prepared = Finetune::new(config.clone(), base, data, template, &device.device, dir.clone());
    let proved = |run: Finetune| prove(&run.model(), run.shape(), &device).map(|()| run);
    let mut run = match prepared.map_err(Into::into).and_then(proved) {
        Ok(run) => run,
        Err(error) => {
            dir.withdraw(lock);
            return Err(error);
        }
    };
    if let Some(model) = made {
        write_transformers(&path.join(MADE_BASE), &model, run.shape(), run.tokenizer(), DType::F32)?;
    }
    say(&format!("template: {}", run.template().name()));
    run.header().iter().for_each(|line| say(line));
    if resumed.is_some() {
        run.learner().resume()?;
    } else {
        record_settings(&path, &format!("llm-finetune {}", args.typed.join(" ")), SETTINGS, run.config())?;
    }
    let about = json!({ "backend": device.backend, "name": device.name, "fallback": device.fallback });
    run.learner().first_event("device", about);
    let telemetry = Telemetry::start(&device);
    run.learner().stop_when(stop).gauges(move || telemetry.latest().gauges());
    if let Some(prompt) = config.sample_prompt.as_deref().filter(|_| resumed.is_none()) {
        say(&format!("Before training: {prompt} → {}", answer(&run, &run.model(), prompt, &device.device)?));
    }
    if args.tui {
        let quit = Interrupter::new();
        let renderer = TuiMetricsRendererWrapper::new(quit.clone(), None);
        run.learner().stop_on(quit).observe(Dashboard::new(Box::new(renderer)));
    } else {
        if run.learner().state().counters.epoch < config.epochs {
            say(&format!("Logging to {}\nStarting training for {} epochs", path.display(), config.epochs));
        }
        run.learner().observe(Console::new());
    }
    let started = Instant::now();
    let report = run.run()?;
    close(&report, &path);
    if report.outcome != Outcome::Interrupted {
        let model = run.best()?;
        let mut bar: Option<Bar> = None;
        let mut progress = |done, total| bar.get_or_insert_with(|| Bar::new("judging ", total)).set("test".into(), done, total);
        if let Some(loss) = run.test(&model, &device.device, &mut progress)? {
            let line = format!("test: loss {loss:.4}  perplexity {:.3}", loss.exp());
            bar.map_or_else(|| say(&line), |bar| bar.finish(&line));
        }
        if let Some(prompt) = &config.sample_prompt {
            say(&format!("After training: {prompt} → {}", answer(&run, &model, prompt, &device.device)?));
        }
        write_files(&config, &run, model, &path)?;
    }
    say(&format!("Results saved to {} ({:.0} s)", path.display(), started.elapsed().as_secs_f64()));
    Ok(())
}

/// All settings of the run, and the run directory when one is resumed.
fn settle(args: &TrainArgs) -> anyhow::Result<(SftConfig, Option<PathBuf>)> {
    let Some(which) = &args.resume else {
        let config = settings(&args.settings)?;
        let missing = [("--model", config.model.is_empty()), ("--data", config.data.is_empty())];
        let missing: Vec<&str> = missing.iter().filter(|(_, empty)| *empty).map(|(flag, _)| *flag).collect();
        if !missing.is_empty() {
            return Err(Usage(format!("{} must be given (--config tiny has both); see --help", missing.join(" and "))).into());
        }
        return Ok((config, None));
    };
    let (path, layers) = resumed(which.as_deref(), &args.settings.flags, &SftConfig::default().project, &MAY_CHANGE)?;
    Ok((SftConfig::from_layers(&layers)?, Some(path)))
}

fn open_base(config: &SftConfig, device: &Device) -> anyhow::Result<Base> {
    let mut base = match config.model.as_str() {
        "tiny" => Base::tiny(texts(config)?.iter().map(String::as_str), config.seed, device)?,
        model => Base::open(&locate(model, config.offline, &mut note)?, device)?,
    };
    if let Some(adapter) = &config.adapter {
        adopt_tokenizer(&mut base, Path::new(adapter))?;
    }
    Ok(base)
}

/// The family and the tokenizer that a run has, without the weights.
pub(crate) fn open_tokenizer(config: &SftConfig) -> anyhow::Result<(Architecture, Tokenizer)> {
    let own = config.adapter.as_ref().map_or(Ok(None), |dir| adapter_tokenizer(Path::new(dir)))?;
    if config.model == "tiny" {
        let made = || Ok::<_, anyhow::Error>(Base::tiny_tokenizer(texts(config)?.iter().map(String::as_str))?);
        return Ok((Architecture::Qwen2, own.map_or_else(made, Ok)?));
    }
    let path = describe(&config.model, config.offline, &mut note)?;
    Ok((Base::shape(&path)?.architecture, own.map_or_else(|| Base::tokenizer(&path), Ok)?))
}

/// What the tokenizer of a made-up model is learnt from: what the data say. Rows that cannot be read are left out here; whoever reads the data
/// for training or a preview names them.
fn texts(config: &SftConfig) -> anyhow::Result<Vec<String>> {
    let mut texts = Vec::new();
    for path in &config.data {
        for example in Splits::open(Path::new(path), &config.reading())?.train.iter().flatten() {
            match example {
                Example::Chat(chat) => texts.extend(chat.messages.into_iter().map(|message| message.content)),
                Example::Prompt { prompt, completion } => texts.extend([prompt, completion]),
                Example::Text(text) => texts.push(text),
                Example::Tokens { .. } => {}
            }
        }
    }
    Ok(texts)
}

pub(crate) fn pick_template(config: &SftConfig, architecture: Architecture, tokenizer: &Tokenizer) -> anyhow::Result<Template> {
    match config.template(tokenizer)? {
        Some(template) => Ok(template),
        None => Ok(Template::detect(tokenizer, Some(architecture.model_type()))?),
    }
}

pub(crate) fn open_data(config: &SftConfig, tokenizer: &Tokenizer, template: &Template) -> anyhow::Result<SftData> {
    let mut bar: Option<Bar> = None;
    let mut progress = |done, total| bar.get_or_insert_with(|| Bar::new("examples ", total)).set("reading".into(), done, total);
    let data = SftData::open(config, &config.encoding()?, tokenizer, template, &mut progress)?;
    if let Some(bar) = bar {
        bar.finish("");
    }
    Ok(data)
}

/// The model's greedy answer to one question.
fn answer(run: &Finetune, model: &CausalLm, prompt: &str, device: &Device) -> anyhow::Result<String> {
    let (tokenizer, shape): (&Tokenizer, &ModelConfig) = (run.tokenizer(), run.shape());
    let conversation = Conversation { messages: vec![Message::new(Role::User, prompt)], ..Conversation::default() };
    let ids = encode_prompt(&conversation, tokenizer, run.template(), RenderOptions::default())?;
    let sampling = Sampling { max_new_tokens: 48, temperature: 0.0, ..Sampling::default() };
    let device = device.clone().without_autodiff();
    let new = generate(model, shape, &ids, &sampling, &stop_ids(shape, tokenizer), &device, |_| true)?;
    Ok(format!("{:?}", tokenizer.decode(&new, true)?))
}

fn close(report: &Report, dir: &Path) {
    match report.outcome {
        Outcome::NothingToDo => say(&format!("{} is finished: nothing to resume", dir.display())),
        Outcome::Interrupted => say(&format!("Stopped; go on with: llm-finetune --resume {}", dir.display())),
        Outcome::Finished | Outcome::EarlyStopped => say(&format!("\n{} epochs completed in {:.0} s", report.epochs, report.elapsed_s)),
    }
    if let Some(loss) = report.best_loss {
        say(&format!("Lowest validation loss {loss:.4}, perplexity {:.3}", loss.exp()));
    }
    if let Some(saved) = &report.saved {
        say(&format!("Saved {}", saved.display()));
    }
}

/// The merged model and the GGUF, where they were asked for.
fn write_files(config: &SftConfig, run: &Finetune, model: CausalLm, dir: &Path) -> anyhow::Result<()> {
    if !config.save_merged && config.save_gguf.is_none() {
        return Ok(());
    }
    let tokenizer = run.tokenizer();
    let model = if config.method == Method::Lora { merge(model) } else { model };
    // Full fine-tuning has written its model already.
    if config.save_merged && config.method == Method::Lora {
        let merged = dir.join("merged");
        write_transformers(&merged, &model, run.shape(), tokenizer, DType::F32)?;
        say(&format!("Saved {}", merged.display()));
    }
    if let Some(kind) = &config.save_gguf {
        let file = dir.join(format!("model-{kind}.gguf"));
        gguf(&file, &model, run.shape(), tokenizer, kind, config.system.as_deref(), Some(run.template()))?;
    }
    Ok(())
}

/// A GGUF of this kind, and a Modelfile beside it.
pub(crate) fn gguf(
    file: &Path,
    model: &CausalLm,
    shape: &ModelConfig,
    tokenizer: &Tokenizer,
    kind: &str,
    system: Option<&str>,
    template: Option<&Template>,
) -> anyhow::Result<()> {
    let kinds = || Preset::ALL.map(|p| p.name()).join(", ");
    let preset = Preset::from_name(kind).ok_or_else(|| Usage(format!("{kind:?} is no kind of GGUF; there are {}", kinds())))?;
    let name = file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    for line in write_gguf(file, model, shape, tokenizer, preset, name.trim_end_matches(".gguf"))? {
        say(&format!("warning: {line}"));
    }
    let beside = file.with_extension("Modelfile");
    write_atomic(&beside, modelfile(&format!("./{name}"), None, system, template).as_bytes())?;
    say(&format!("Saved {} and {}", file.display(), beside.display()));
    Ok(())
}
