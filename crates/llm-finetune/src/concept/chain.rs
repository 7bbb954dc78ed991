//! Training with `--concept`: the direction is found, scored, taken out and judged before the model is tuned.
//!
//! All of it lies in `PROJECT/NAME`: what is known of the concept in `concept/`, the edited model in `edited/`, the run in `run/`. Each stage leaves its
//! files complete or not at all, and a stage whose files are there is not done again: whatever ends the process, the same command goes on. A stage that
//! is left out uses what an earlier run has left of it, and makes nothing.

use std::borrow::Borrow;
use std::path::{Path, PathBuf};

use bellows_chat::Template;
use bellows_cli::{Failure, Keeping, Session, Signals, Usage, note, pick_device, say, yaml_layer};
use bellows_device::{Selected, processor};
use bellows_qwen::base::Base;
use bellows_qwen::concept::files::{Found, digest_of_judges, read_json, read_scores, write_json, write_scores};
use bellows_qwen::concept::judge::{Comparison, Verdict};
use bellows_qwen::concept::stages::Stage;
use bellows_qwen::config::SftConfig;
use bellows_qwen::hub::locate;
use bellows_qwen::model::ModelConfig;
use bellows_qwen::precision::RunPrecision;
use bellows_qwen::storage::BaseDtype;
use bellows_runs::{RunDir, find_latest_run, results_dir};
use bellows_weights::DType;
use serde_json::{Map, Value, json};

use super::steps::{Prompts, ablate, extract, judged, known_as, place, reader, scored, tell_comparison};
use crate::args::TrainArgs;
use crate::prove::{by, prove};
use crate::train::{data_paths, find_model, gguf, open_data, open_tokenizer, pick_template, run, settle};

/// What is known of the concept.
const CONCEPT: &str = "concept";
/// The edited model.
const EDITED: &str = "edited";
/// What models are judged by, of which older programs remembered nothing.
const JUDGES: &str = "markers_and_guard";
/// Tokens of an answer that markers are looked for in.
const ANSWER: usize = 32;

/// A training run; with a concept, what comes before it.
pub(crate) fn train(args: &TrainArgs, signals: &Signals) -> Result<(), Failure> {
    let mut session = Session::begin("llm-finetune", signals, args.tui)?;
    let (config, resumed, ranks) = settle(args)?;
    if session.is_left_to_others(&Keeping::of(&config, args.background, ranks)?, resumed.as_deref(), &config.project)? {
        return Ok(());
    }
    let Some(sets) = config.concept.clone().filter(|_| resumed.is_none()) else { return run(session, args, config, resumed) };
    session.goes_on_by_itself();
    if config.model == "tiny" {
        return Err(Usage("--concept needs a model that has learnt something: --model tiny is made on the spot".into()).into());
    }
    find_model(&config)?;
    let skips_train = Stage::Train.is_in(&config.concept_skip);
    let trains = !(config.data.is_empty() || skips_train);
    if !(trains || skips_train) {
        say("fine-tuning is skipped: there is no --data");
    }
    let edited = !Stage::Ablate.is_in(&config.concept_skip) || Path::new(&config.project).join(&config.name).join(EDITED).exists();
    if trains && edited && config.base_dtype == BaseDtype::Gguf {
        let why = "base_dtype gguf: the edited model that is tuned is no .gguf file; nf4 and int8 make blocks of any model";
        return Err(Usage(why.into()).into());
    }
    let paths = if trains { data_paths(&config, false)? } else { Vec::new() };
    // Tokens that are added to be learnt are not the model's yet.
    let (shape, tokenizer) = open_tokenizer(&SftConfig { new_tokens: Vec::new(), ..config.clone() }, &paths)?;
    let template = pick_template(&config, shape.architecture, &tokenizer)?;
    let prompts = Prompts::open(Path::new(&sets), &tokenizer, Some(template.clone()))?;
    // What is wrong with the chats is said now, and not when the model is edited.
    if trains {
        open_data(&config, &paths, &open_tokenizer(&config, &paths)?.1, &template)?;
    }
    let before = found_before(&config, &shape)?;
    let dir = results_dir(Path::new(&config.project), &config.name, true)?;
    let _lock = RunDir::at(&dir).lock()?;
    begin(&dir, &config, &prompts)?;
    let chain = Chain { dir, config, template, prompts };
    chain.edit(before)?;
    chain.judge()?;
    let Chain { dir, mut config, template, .. } = chain;
    if Stage::Export.is_in(&config.concept_skip) {
        (config.export, config.save_gguf) = (None, None);
    }
    if dir.join(EDITED).exists() {
        config.model = dir.join(EDITED).display().to_string();
    }
    if !trains {
        return export(&config, &dir, &template);
    }
    // A run that was killed before its first checkpoint begins anew.
    let resumed = find_latest_run(&dir);
    // How its base is stored was settled then, for a model and a device that the settings as typed know nothing of.
    if let Some(run) = &resumed
        && config.base_dtype == BaseDtype::Auto
    {
        let mut begun = yaml_layer(&RunDir::at(run).config())?;
        begun.values.shift_remove("command");
        config.base_dtype = SftConfig::from_layers(&[begun])?.base_dtype;
    }
    let project = dir.display().to_string();
    run(session, args, SftConfig { project, name: "run".into(), exist_ok: true, ..config }, resumed)
}

/// The direction of the folder that the settings name, which is not to be looked for. A run that has its own, or its edit, needs that folder no more; without
/// either, finding it cannot be left out where it is used.
fn found_before(config: &SftConfig, shape: &ModelConfig) -> Result<Option<Found>, Failure> {
    let dir = Path::new(&config.project).join(&config.name);
    let (own, skips) = (dir.join(CONCEPT), |stage: Stage| stage.is_in(&config.concept_skip));
    if Found::is_in(&own) || dir.join(EDITED).exists() {
        return Ok(None);
    }
    if let Some(folder) = &config.concept_from {
        let found = Found::read(Path::new(folder))?;
        found.fits(shape)?;
        return Ok(Some(found));
    }
    if skips(Stage::Extract) && !(skips(Stage::Score) && skips(Stage::Ablate)) {
        let why = "concept_skip extract needs a direction that was found before, and there is none";
        return Err(Usage(format!("{why} in {}: name its folder with --concept-from", own.display())).into());
    }
    Ok(None)
}

struct Chain {
    dir: PathBuf,
    config: SftConfig,
    template: Template,
    prompts: Prompts,
}

impl Chain {
    fn skips(&self, stage: Stage) -> bool {
        stage.is_in(&self.config.concept_skip)
    }

    /// A model on the device of these stages.
    fn open(&self, path: &Path) -> Result<(Base, Selected), Failure> {
        let device = pick_device(self.config.concept_device.as_ref().unwrap_or(&self.config.device), &by(self.config.products))?;
        let base = Base::open(path, &device.device)?;
        prove(&base.model, &base.config, RunPrecision::F32, &device, true)?;
        Ok((base, device))
    }

    /// The model before the edit.
    fn open_base(&self) -> Result<(Base, Selected), Failure> {
        self.open(&locate(&self.config.model, self.config.offline, &mut note)?)
    }

    /// Finds the direction, if it was not found `before`, scores it, and takes it out.
    fn edit(&self, before: Option<Found>) -> Result<(), Failure> {
        let (concept, edited) = (self.dir.join(CONCEPT), self.dir.join(EDITED));
        if edited.exists() {
            say(&format!("{} is there: the concept is taken out", edited.display()));
            return Ok(());
        }
        if self.skips(Stage::Ablate) {
            say("the edit is skipped: the model stays as it is");
            let found = Found::is_in(&concept) || (self.skips(Stage::Extract) && self.skips(Stage::Score));
            let scored = self.skips(Stage::Score) || self.prompts.sets.markers.is_empty() || read_scores(&concept)?.is_some();
            if found && scored {
                return Ok(());
            }
        }
        let edit = self.config.ablation()?;
        let (base, device) = self.open_base()?;
        edit.check(base.config.num_hidden_layers)?;
        let found = match before {
            _ if Found::is_in(&concept) => Found::read(&concept)?,
            Some(found) => self.adopt(found, &concept)?,
            None => extract(reader(&base, &device.device), &self.config.model, &self.prompts, &concept)?,
        };
        found.fits(&base.config)?;
        if !self.skips(Stage::Score) && read_scores(&concept)?.is_none() {
            match self.prompts.sets.markers.is_empty() {
                true => say("no markers.txt beside the prompt sets: the layer that separates best is taken"),
                false => drop(scored(&base, &device.device, &found, &self.prompts, &edit, &concept)?),
            }
        }
        // It is judged while it is here.
        if !self.skips(Stage::Eval) {
            self.verdict("before.json", || Ok((&base, &device)))?;
        }
        if self.skips(Stage::Ablate) {
            return Ok(());
        }
        ablate((&known_as(&self.config.model), base), &found, place(&found, &concept, None)?, &edit, DType::F32, &edited)
    }

    /// Makes the direction of another folder this run's, and where scoring is left out the choice that was made there.
    fn adopt(&self, found: Found, concept: &Path) -> Result<Found, Failure> {
        let from = self.config.concept_from.as_deref().unwrap_or_default();
        let scores = if self.skips(Stage::Score) { read_scores(Path::new(from))? } else { None };
        // The direction comes last: where it is, this is done.
        if let Some(scores) = scores {
            write_scores(concept, &scores)?;
        }
        found.write(concept)?;
        say(&format!("Using the direction of {} from {from}", found.concept));
        Ok(found)
    }

    /// What a model says: read from the file, or else asked of the model, which is opened for that.
    fn verdict<B: Borrow<Base>, D: Borrow<Selected>>(
        &self,
        file: &str,
        open: impl FnOnce() -> Result<(B, D), Failure>,
    ) -> Result<Verdict, Failure> {
        let path = self.dir.join(CONCEPT).join(file);
        if path.is_file() {
            return Ok(read_json(&path)?);
        }
        let (base, device) = open()?;
        let verdict = judged(base.borrow(), &device.borrow().device, &self.prompts, ANSWER, ("judging", say))?;
        write_json(&path, &verdict)?;
        Ok(verdict)
    }

    /// Judges the edited model, if there is one, beside the one before; one that became worse at the guard's text is not tuned.
    fn judge(&self) -> Result<(), Failure> {
        if self.skips(Stage::Eval) {
            return Ok(());
        }
        let before = self.verdict("before.json", || self.open_base())?;
        let edited = self.dir.join(EDITED);
        let after = edited.exists().then(|| self.verdict("after.json", || self.open(&edited))).transpose()?;
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
        (JUDGES, json!(digest_of_judges(&prompts.sets))),
        ("concept_layers", json!(config.concept_layers)),
        ("concept_strength", json!(config.concept_strength)),
        ("concept_norm_preserving", json!(config.concept_norm_preserving)),
    ];
    // Whoever begins with a direction of another folder may go on without naming it again.
    let from = config.concept_from.iter().map(|folder| ("concept_from", json!(folder)));
    let own: Map<String, Value> = own.into_iter().chain(from).map(|(key, value)| (key.to_string(), value)).collect();
    let file = dir.join("chain.json");
    if !file.is_file() {
        let run = RunDir::at(dir);
        if run.config().exists() || run.events().exists() {
            return Err(Usage(format!("{} is a run without a concept: give this one another --name", dir.display())).into());
        }
        return Ok(write_json(&file, &own)?);
    }
    let begun: Map<String, Value> = read_json(&file)?;
    if let Some(from) = begun.get("concept_from").filter(|_| config.concept_from.is_none() && !Found::is_in(&dir.join(CONCEPT))) {
        let why = format!("was begun with concept_from {from}, which is not taken over yet: name it again");
        return Err(Usage(format!("{} {why}", dir.display())).into());
    }
    let known = |key: &str| key != JUDGES || begun.contains_key(key);
    match own.iter().find(|(key, value)| known(key) && begun.get(*key) != Some(value)) {
        Some((key, value)) => {
            let was = begun.get(key).unwrap_or(&Value::Null);
            Err(Usage(format!("{} was begun with {key} {was} and not {value}: give this one another --name", dir.display())).into())
        }
        None => Ok(()),
    }
}

/// The model as it is, edited or not, for the program that was asked for.
fn export(config: &SftConfig, dir: &Path, template: &Template) -> Result<(), Failure> {
    let Some(kind) = config.gguf() else { return Ok(()) };
    let base = Base::open(&locate(&config.model, config.offline, &mut note)?, &processor())?;
    let file = dir.join(format!("model-{kind}.gguf"));
    gguf(&file, &base.model, &base.config, &base.tokenizer, kind, config.system.as_deref(), Some(template))
}
