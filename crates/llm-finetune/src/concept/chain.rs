//! Training with `--concept`: the direction is found, scored, taken out and judged before the model is tuned.
//!
//! All of it lies in `PROJECT/NAME`: what is known of the concept in `concept/`, the edited model in `edited/`, the run in `run/`. Each stage leaves its
//! files complete or not at all, and a stage whose files are there is not done again: whatever ends the process, the same command goes on.

use std::borrow::Borrow;
use std::path::{Path, PathBuf};

use bellows_chat::Template;
use bellows_cli::{Failure, Keeping, Session, Signals, Usage, note, pick_device, say};
use bellows_device::{Selected, processor};
use bellows_qwen::base::Base;
use bellows_qwen::concept::files::{Found, read_json, read_scores, write_json};
use bellows_qwen::concept::judge::{Comparison, Verdict};
use bellows_qwen::config::SftConfig;
use bellows_qwen::hub::locate;
use bellows_qwen::precision::RunPrecision;
use bellows_runs::{RunDir, find_latest_run, results_dir};
use bellows_weights::DType;
use serde_json::{Map, Value, json};

use super::steps::{Prompts, ablate, extract, judged, known_as, place, reader, scored, tell_comparison};
use crate::args::TrainArgs;
use crate::prove::{by, prove};
use crate::train::{data_paths, gguf, open_data, open_tokenizer, pick_template, run, settle};

/// The edited model.
const EDITED: &str = "edited";
/// Tokens of an answer that markers are looked for in.
const ANSWER: usize = 32;

/// A training run; with a concept, what comes before it.
pub(crate) fn train(args: &TrainArgs, signals: &Signals) -> Result<(), Failure> {
    let mut session = Session::begin("llm-finetune", signals, args.tui)?;
    let (config, resumed, ranks) = settle(args)?;
    if session.is_left_to_others(&Keeping::of(&config, args.background, ranks)?, &config.project)? {
        return Ok(());
    }
    let Some(sets) = config.concept.clone().filter(|_| resumed.is_none()) else { return run(session, args, config, resumed) };
    session.goes_on_by_itself();
    if config.model == "tiny" {
        return Err(Usage("--concept needs a model that has learnt something: --model tiny is made on the spot".into()).into());
    }
    let paths = data_paths(&config)?;
    // Tokens that are added to be learnt are not the model's yet.
    let (shape, tokenizer) = open_tokenizer(&SftConfig { new_tokens: Vec::new(), ..config.clone() }, &paths)?;
    let template = pick_template(&config, shape.architecture, &tokenizer)?;
    let prompts = Prompts::open(Path::new(&sets), &tokenizer, Some(&template))?;
    // What is wrong with the chats is said now, and not when the model is edited.
    open_data(&config, &paths, &open_tokenizer(&config, &paths)?.1, &template)?;
    let dir = results_dir(Path::new(&config.project), &config.name, true)?;
    let _lock = RunDir::at(&dir).lock()?;
    begin(&dir, &config, &prompts)?;
    let chain = Chain { dir, config, template, prompts };
    chain.edit()?;
    chain.judge()?;
    let Chain { dir, config, template, .. } = chain;
    let edited = dir.join(EDITED);
    if config.concept_skip.iter().any(|stage| stage == "train") {
        return export(&config, &dir, &edited, &template);
    }
    // A run that was killed before its first checkpoint begins anew.
    let resumed = find_latest_run(&dir);
    let (project, model) = (dir.display().to_string(), edited.display().to_string());
    run(session, args, SftConfig { model, project, name: "run".into(), exist_ok: true, ..config }, resumed)
}

struct Chain {
    dir: PathBuf,
    config: SftConfig,
    template: Template,
    prompts: Prompts,
}

impl Chain {
    fn skips(&self, stage: &str) -> bool {
        self.config.concept_skip.iter().any(|skipped| skipped == stage)
    }

    /// A model on the device of these stages.
    fn open(&self, path: &Path) -> Result<(Base, Selected), Failure> {
        let device = pick_device(self.config.concept_device.as_ref().unwrap_or(&self.config.device), &by(self.config.products))?;
        let base = Base::open(path, &device.device)?;
        prove(&base.model, &base.config, RunPrecision::F32, &device)?;
        Ok((base, device))
    }

    /// The model before the edit.
    fn open_base(&self) -> Result<(Base, Selected), Failure> {
        self.open(&locate(&self.config.model, self.config.offline, &mut note)?)
    }

    /// Finds the direction, scores it, and takes it out.
    fn edit(&self) -> Result<(), Failure> {
        let (concept, edited) = (self.dir.join("concept"), self.dir.join(EDITED));
        if edited.exists() {
            say(&format!("{} is there: the concept is taken out", edited.display()));
            return Ok(());
        }
        let edit = self.config.ablation()?;
        let (base, device) = self.open_base()?;
        edit.check(base.config.num_hidden_layers)?;
        let found = match Found::is_in(&concept) {
            true => Found::read(&concept)?,
            false => extract(reader(&base, &device.device), &self.config.model, &self.prompts, &concept)?,
        };
        if !self.skips("score") && read_scores(&concept)?.is_none() {
            match self.prompts.sets.markers.is_empty() {
                true => say("no markers.txt beside the prompt sets: the layer that separates best is taken"),
                false => drop(scored(&base, &device.device, &found, &self.prompts, &edit, &concept)?),
            }
        }
        // It is judged while it is here.
        if !self.skips("eval") {
            self.verdict("before.json", || Ok((&base, &device)))?;
        }
        ablate((&known_as(&self.config.model), base), &found, place(&found, &concept, None)?, &edit, DType::F32, &edited)
    }

    /// What a model says: read from the file, or else asked of the model, which is opened for that.
    fn verdict<B: Borrow<Base>, D: Borrow<Selected>>(
        &self,
        file: &str,
        open: impl FnOnce() -> Result<(B, D), Failure>,
    ) -> Result<Verdict, Failure> {
        let path = self.dir.join("concept").join(file);
        if path.is_file() {
            return Ok(read_json(&path)?);
        }
        let (base, device) = open()?;
        let verdict = judged(base.borrow(), &device.borrow().device, &self.prompts, ANSWER, ("judging", say))?;
        write_json(&path, &verdict)?;
        Ok(verdict)
    }

    /// Judges the edited model beside the one before; one that became worse at the guard's text is not tuned.
    fn judge(&self) -> Result<(), Failure> {
        if self.skips("eval") {
            return Ok(());
        }
        let before = self.verdict("before.json", || self.open_base())?;
        let after = Some(self.verdict("after.json", || self.open(&self.dir.join(EDITED)))?);
        let comparison = Comparison { before, after, most_rise: self.config.concept_max_perplexity_rise };
        tell_comparison(&comparison);
        Ok(comparison.hold()?)
    }
}

/// Remembers what this chain is of, or refuses to go on with one of something else.
fn begin(dir: &Path, config: &SftConfig, prompts: &Prompts) -> Result<(), Failure> {
    let own = [
        ("model", json!(config.model)),
        ("concept", json!(config.concept)),
        ("prompts", json!(prompts.digest())),
        ("concept_layers", json!(config.concept_layers)),
        ("concept_strength", json!(config.concept_strength)),
        ("concept_norm_preserving", json!(config.concept_norm_preserving)),
    ];
    let own: Map<String, Value> = own.map(|(key, value)| (key.to_string(), value)).into_iter().collect();
    let file = dir.join("chain.json");
    if !file.is_file() {
        let run = RunDir::at(dir);
        if run.config().exists() || run.events().exists() {
            return Err(Usage(format!("{} is a run without a concept: give this one another --name", dir.display())).into());
        }
        return Ok(write_json(&file, &own)?);
    }
    let begun: Map<String, Value> = read_json(&file)?;
    match own.iter().find(|(key, value)| begun.get(*key) != Some(value)) {
        Some((key, value)) => {
            let was = begun.get(key).unwrap_or(&Value::Null);
            Err(Usage(format!("{} was begun with {key} {was} and not {value}: give this one another --name", dir.display())).into())
        }
        None => Ok(()),
    }
}

/// The edited model as it is, for the program that was asked for.
fn export(config: &SftConfig, dir: &Path, edited: &Path, template: &Template) -> Result<(), Failure> {
    let Some(kind) = config.gguf() else { return Ok(()) };
    let base = Base::open(edited, &processor())?;
    let file = dir.join(format!("model-{kind}.gguf"));
    gguf(&file, &base.model, &base.config, &base.tokenizer, kind, config.system.as_deref(), Some(template))
}
