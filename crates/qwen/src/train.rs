//! A fine-tuning run put together: model, adapter, data, Learner, and the files at its end.

use std::path::{Path, PathBuf};

use bellows_chat::{ChatError, Encoded, Fault, Template, Tokenizer};
use bellows_exit::{Coded, Exit};
use bellows_learner::{EvalContext, Identity, Interrupted, LearnError, Learner, Outcome, Shared};
use bellows_runs::{RunDir, RunDirError};
use bellows_settings::SettingsError;
use bellows_weights::DType;
use burn::data::dataset::InMemDataset;
use burn::tensor::Device;
use serde_json::{Value, json};

use crate::adapter::{AdapterError, HEAD, LoraConfig, Targets, train_where};
use crate::base::{Base, BaseError};
use crate::checks::{adapter_fits, warnings};
use crate::config::{MAY_CHANGE, Method, SftConfig};
use crate::curves::Curves;
use crate::data::SftData;
use crate::examples::Examples;
use crate::export::{ExportError, write_transformers};
use crate::grow::grow_adapter;
use crate::hashes::{FNV, fnv};
use crate::load;
use crate::model::{CausalLm, ModelConfig};
use crate::peft::{self, PeftError};
use crate::precision::{RunPrecision, in_f16};
use crate::preference::Objective;
use crate::storage::BaseDtype;
use crate::task::SftTask;
use crate::weights::visit_all;

/// Why fine-tuning could not start or end.
#[derive(Debug, thiserror::Error)]
pub enum FinetuneError {
    /// Settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The model.
    #[error(transparent)]
    Base(#[from] BaseError),
    /// The data, the template or the tokenizer.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// The adapter.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// An adapter's files.
    #[error(transparent)]
    Peft(#[from] PeftError),
    /// A model's files.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The run directory.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The Learner.
    #[error(transparent)]
    Learn(#[from] LearnError),
    /// Nothing to train on.
    #[error("{0}")]
    Data(String),
}

impl Coded for FinetuneError {
    fn exit(&self) -> Exit {
        match self {
            Self::Settings(error) => error.exit(),
            Self::Base(error) => error.exit(),
            Self::Chat(error) => error.exit(),
            Self::Adapter(error) => error.exit(),
            Self::Peft(error) => error.exit(),
            Self::Export(error) => error.exit(),
            Self::RunDir(error) => error.exit(),
            Self::Learn(error) => error.exit(),
            Self::Data(_) => Exit::Usage,
        }
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Report {
    /// Why it ended.
    pub outcome: Outcome,
    /// Epochs done, over all sessions.
    pub epochs: usize,
    /// Seconds spent training, over all sessions.
    pub elapsed_s: f64,
    /// Lowest validation loss, if there was a validation set.
    pub best_loss: Option<f64>,
}

/// Where in the run directory a base model is kept that was made on the spot.
pub const MADE_BASE: &str = "base";

/// A run, ready to go.
pub struct Finetune {
    learner: Learner<SftTask>,
    config: SftConfig,
    lora: LoraConfig,
    shape: ModelConfig,
    tokenizer: Tokenizer,
    template: Template,
    examples: usize,
    test: Examples,
    header: Vec<String>,
}

impl Finetune {
    /// Puts adapters on `base` and prepares the run in `dir`. The `data` are encoded as [`SftConfig::encoding`] of the same settings says.
    ///
    /// # Errors
    /// Settings that break a rule or do not fit the model, data that cannot be used or are not what the objective learns from, a run directory that cannot be.
    pub fn new(
        config: SftConfig,
        base: Base,
        data: SftData,
        template: Template,
        device: &Device,
        dir: RunDir,
    ) -> Result<Self, FinetuneError> {
        config.validate()?;
        data.suit(config.objective).map_err(FinetuneError::Data)?;
        let Base { model, config: shape, mut tokenizer, content, added } = base;
        let fresh = tokenizer.len() - added..tokenizer.len();
        if data.train.is_empty() {
            return Err(FinetuneError::Data(data.nothing_left(&config)));
        }
        let judging = [("early_stopping_patience", config.early_stopping_patience), ("eval_steps", config.eval_steps)];
        if let Some((setting, _)) = judging.iter().find(|(_, value)| *value > 0 && data.valid.is_empty()) {
            let reason = format!("{setting} needs examples to judge by: a valid file beside the training data, or val_size");
            return Err(FinetuneError::Data(reason));
        }
        tokenizer.adopt(&template);
        // A base model's own end of text never comes in chats, and would never stop the tuned model.
        if let Some(end) = template.end_of_turn()
            && let Some(id) = tokenizer.id(&end)
            && any(&data.train, |example| example.ids.contains(&id))?
        {
            tokenizer.set_eos(&end).map_err(ChatError::from)?;
        }
        let mut header = vec![model_line(&model, &shape)];
        if config.base_dtype.rounds() {
            let into = "adapters are trained beside it, and merged into the values of the file";
            header.push(format!("the base is stored in {}: {into}", config.base_dtype));
        }
        header.extend(data.summary(config.objective));
        let (base, mut brought) = (norms(&model), FNV);
        let (config, mut lora) = with_adapter(config)?;
        if !fresh.is_empty() && config.method == Method::Lora && model.lm_head.is_some() && !lora.trains(HEAD) {
            let advice = config.to_train("lm_head too");
            let reason = format!("new_tokens: this model has a lm_head of its own, whose new rows must be trained: {advice}");
            return Err(AdapterError::Setting(reason).into());
        }
        let model = match (config.method, config.adapter.as_ref().map(Path::new)) {
            (Method::Full, _) => train_where(model, |_| true),
            (Method::Lora, None) => {
                adapter_fits(&lora, &model)?;
                lora.apply(model, config.seed)?
            }
            (Method::Lora, Some(dir)) => {
                let (theirs, mut tensors) = peft::read(dir)?;
                lora.brought = theirs.brought;
                if config.objective == Objective::Dpo && !lora.brought.is_empty() {
                    let reason =
                        format!("{}: dpo's reference is the model without its adapter, which has weights of the model too", dir.display());
                    return Err(AdapterError::Setting(reason).into());
                }
                let own = lora.brought.iter().filter_map(|name| tensors.get(&peft::peft_name(name)));
                brought = fnv(brought, own.flat_map(|tensor| tensor.data.iter().copied()));
                // It knows nothing of them, and its embedding takes the place of the one that has their rows.
                if !fresh.is_empty() {
                    grow_adapter(&mut tensors, &fresh, shape.vocab_size, device)?;
                }
                peft::attach(model, &lora, tensors, dir)?
            }
        };
        let trains = |name: &str| config.method == Method::Full || lora.trains(name);
        let model = if config.precision == RunPrecision::Fp16Pure { in_f16(model, trains) } else { model };
        let all = count(&model, |_| true);
        let trained = count(&model, trains);
        header.push(format!("{trained} of {all} parameters are trained ({:.3} %)", 100.0 * trained as f64 / all as f64));
        let pad = tokenizer.pad().or(tokenizer.eos()).unwrap_or(0);
        let (examples, validated) = (data.train.len() / config.objective.sequences(), !data.valid.is_empty());
        if let Some(loss) = config.pair_loss() {
            header.push(format!("{examples} pairs of answers; {loss}"));
        }
        let mut identity = identity(&config, &data, base, content)?;
        // What an adapter's settings are is compared setting by setting, but for its patterns; its LoRA weights are in checkpoints.
        let begun_with = config.adapter.as_ref().map(|_| json!([lora.rank_pattern, lora.alpha_pattern]));
        identity = identity.with(ADAPTER, begun_with);
        // They are no part of checkpoints: whoever goes on reads them again, or none if there were none.
        if config.adapter.is_some() {
            identity = identity.with("adapter's weights of the model", format!("{brought:016x}"));
        }
        let task = SftTask::new(config.clone(), lora.clone(), shape.clone(), data.train, data.valid, pad);
        let task = task.beginning_with(&model).map_err(ExportError::from)?;
        header.extend(warnings(&config, &shape, task.batches().div_ceil(config.ranks)));
        let mut learner = Learner::new(task, model, device, config.learner(validated), dir, identity)?;
        if config.plots && !learner.dir().is_nowhere() {
            let curves = Curves::of(learner.dir());
            learner.observe(curves);
        }
        if config.tensorboard {
            learner.tensorboard();
        }
        Ok(Self { learner, config, lora, shape, tokenizer, template, examples, test: data.test, header })
    }

    /// The Learner: resume, observers, a stop flag.
    pub fn learner(&mut self) -> &mut Learner<SftTask> {
        &mut self.learner
    }

    /// The settings in force: those of an adapter that the run goes on from are the adapter's.
    pub fn config(&self) -> &SftConfig {
        &self.config
    }

    /// What a person wants to know before it starts: one line each.
    pub fn header(&self) -> &[String] {
        &self.header
    }

    /// The model as it is now, without autodiff.
    pub fn model(&self) -> CausalLm {
        self.learner.ema_model()
    }

    /// The settings of its adapter.
    pub fn adapter(&self) -> &LoraConfig {
        &self.lora
    }

    /// The shape of the model.
    pub fn shape(&self) -> &ModelConfig {
        &self.shape
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The chat template it is trained with.
    pub fn template(&self) -> &Template {
        &self.template
    }

    /// Trains. What is left to do then is [`save`](Self::save), and last [`Learner::finish`], which tells what could not be written.
    ///
    /// # Errors
    /// See [`FinetuneError`].
    pub fn run(&mut self) -> Result<Report, FinetuneError> {
        let outcome = self.learner.fit(&InMemDataset::new(vec![(); self.examples]))?;
        let counters = &self.learner.state().counters;
        let best_loss = counters.best.map(|(fitness, _)| -fitness);
        Ok(Report { outcome, epochs: counters.epoch, elapsed_s: counters.elapsed_s, best_loss })
    }

    /// The best model of the run: the one with the lowest validation loss, or the last.
    ///
    /// # Errors
    /// Weights that cannot be read back.
    pub fn best(&self) -> Result<CausalLm, FinetuneError> {
        let weights = self.learner.dir().weights();
        // An earlier run in the same directory may have left a best of its own.
        let judged = self.learner.state().counters.best.is_some();
        let file = weights.join(if judged { "best.safetensors" } else { "last.safetensors" });
        let tensors = bellows_weights::read(&file).map_err(PeftError::from)?.tensors;
        match self.config.method {
            Method::Lora => Ok(peft::assign(self.model(), tensors, &file)?),
            Method::Full => {
                let value = |name: &str| {
                    let Some(tensor) = tensors.get(name) else { return Ok(None) };
                    Ok(Some((tensor.shape.clone(), tensor.to_f32()?)))
                };
                let loaded = load::load(self.model(), BaseDtype::Auto, false, value);
                loaded.map_err(|source| BaseError::Load { path: file.clone(), source }.into())
            }
        }
    }

    /// The mean loss a learnt token (of pairs: a pair) of `model` over the `test` files, which nothing else looks at, and the number of these;
    /// `None` where there are none, and when the Learner is stopped meanwhile. `progress` gets (done, total) examples.
    ///
    /// # Errors
    /// A device that fails.
    pub fn test(
        &self,
        model: &CausalLm,
        device: &Device,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Option<(f64, usize)>, FinetuneError> {
        if self.test.is_empty() {
            return Ok(None);
        }
        let device = device.clone().without_autodiff();
        let (workers, epoch) = (0, self.config.epochs);
        let interrupted = || self.learner.is_stopped();
        let mut context = EvalContext { device: &device, workers, epoch, progress, interrupted: &interrupted, shared: &Shared::alone() };
        let judged = self.learner.task().judge(model, &self.test, &mut context);
        // As of the Learner's own evaluations: a merged model and its files may come next.
        bellows_kernels::forget();
        match judged {
            Err(error) if error.is::<Interrupted>() => Ok(None),
            judged => Ok(Some(judged.map_err(LearnError::task("judging the test data"))?)),
        }
    }

    /// Writes the best adapter (the last one, where nothing was validated) under `adapter/` of the run; after full fine-tuning the best model under
    /// `model/`, as transformers has it. Where it is.
    ///
    /// # Errors
    /// Weights that cannot be read back, files that cannot be written.
    pub fn save(&self) -> Result<PathBuf, FinetuneError> {
        let model = self.best()?;
        if self.config.method == Method::Full {
            let dir = self.learner.dir().path().join("model");
            write_transformers(&dir, &model, &self.shape, &self.tokenizer, DType::F32)?;
            return Ok(dir);
        }
        let dir = self.learner.dir().path().join("adapter");
        // A model made on the spot lies in the run.
        let made = self.learner.dir().path().join(MADE_BASE);
        let made = made.canonicalize().unwrap_or(made);
        let base = if self.config.model == "tiny" { made.display().to_string() } else { self.config.model.clone() };
        peft::write(&dir, &model, &self.lora, Some(&base))?;
        self.tokenizer.save(&dir)?;
        Ok(dir)
    }
}

/// The settings of a run and of its adapter. Where it goes on from one, that one's settings become the run's, except for the dropout, which an adapter
/// does not depend on.
///
/// # Errors
/// An adapter whose settings cannot be read, one that has others than were asked for, and one that leaves rows untrained which have to be trained.
pub fn with_adapter(mut config: SftConfig) -> Result<(SftConfig, LoraConfig), FinetuneError> {
    let (mut own, plain) = (config.lora(), SftConfig::default().lora());
    let Some(dir) = config.adapter.as_ref().map(PathBuf::from) else { return Ok((config, own)) };
    let theirs = peft::read_config(&dir.join("adapter_config.json"))?;
    let lora = LoraConfig { lora_dropout: own.lora_dropout, ..theirs };
    // An expression that could be a name is recorded with a run as the text it is, and read from there as a name.
    for (own, theirs) in [(&mut own.target_modules, &lora.target_modules), (&mut own.exclude_modules, &lora.exclude_modules)] {
        if let Targets::Pattern(text) = theirs
            && *own == Targets::parse(text)
        {
            own.clone_from(theirs);
        }
    }
    let fields = [&own, &plain, &lora].map(|lora| serde_json::to_value(lora).unwrap_or_default());
    let Value::Object(asked) = &fields[0] else { return Ok((config, lora)) };
    if let Some((key, value)) = asked.iter().find(|(key, value)| **value != fields[1][*key] && **value != fields[2][*key]) {
        let reason = format!("{key} is {value}, and the adapter in {} has {}: leave {key} to the adapter", dir.display(), fields[2][key]);
        return Err(AdapterError::Setting(reason).into());
    }
    config.set_lora(&lora);
    // An adapter may bring what its settings are not allowed to: weights trained whole where DPO's reference is the model without it.
    config.validate()?;
    config.check_rows()?;
    Ok((config, lora))
}

fn count(model: &CausalLm, which: impl Fn(&str) -> bool) -> usize {
    let mut count = 0;
    visit_all(model, &mut |name, shape, _| count += if which(name) { shape.iter().product() } else { 0 });
    count
}

fn model_line(model: &CausalLm, c: &ModelConfig) -> String {
    let millions = count(model, |_| true) as f64 / 1e6;
    format!(
        "{} · {millions:.1} million parameters · {} layers, width {}, {} heads ({} for keys), vocabulary {}",
        c.architecture.model_type(),
        c.num_hidden_layers,
        c.hidden_size,
        c.num_attention_heads,
        c.num_key_value_heads,
        c.vocab_size
    )
}

/// Every scale of the model's norms, bit by bit: two published models do not share them, and they are few. Runs from before its files were hashed know no more
/// of the base than these, which stay what they are where a model is edited.
fn norms(model: &CausalLm) -> u64 {
    let layers = model.model.layers.iter().flat_map(|layer| [&layer.input_layernorm, &layer.post_attention_layernorm]);
    let values = layers.chain([&model.model.norm]).flat_map(|norm| norm.weight.val().try_into_vec_as::<f32>().unwrap_or_default());
    fnv(FNV, values.flat_map(|v| v.to_bits().to_le_bytes()))
}

/// Whether `is` holds for an example.
fn any(examples: &Examples, is: impl Fn(&Encoded) -> bool) -> Result<bool, ChatError> {
    let mut found = false;
    each(examples, |example| found |= is(example))?;
    Ok(found)
}

fn each(examples: &Examples, mut see: impl FnMut(&Encoded)) -> Result<(), ChatError> {
    for example in examples.iter() {
        see(example.map_err(Fault::from)?.as_ref());
    }
    Ok(())
}

/// What `model` and `adapter` name, wherever it lies.
const CONTENT: &str = "content of the base model";
const ADAPTER: &str = "adapter it began with";

/// Settings that change what a run computes, the data, and the base model: a checkpoint must agree on them.
fn identity(config: &SftConfig, data: &SftData, base: u64, content: Option<u64>) -> Result<Identity, ChatError> {
    let hash = |sets: &[&Examples]| -> Result<u64, ChatError> {
        let mut tokens = FNV;
        for examples in sets {
            each(examples, |example| tokens = fnv(tokens, example.ids.iter().flat_map(|id| id.to_le_bytes())))?;
        }
        for examples in sets {
            each(examples, |example| tokens = fnv(tokens, example.trained.iter().map(|&trained| u8::from(trained))))?;
        }
        Ok(tokens)
    };
    let (tokens, of_test) = (hash(&[&data.train, &data.valid])?, hash(&[&data.test])?);
    let hex = |hash: u64| format!("{hash:016x}");
    // Patterns of an adapter that is gone on with are the adapter's, whatever a run from before has recorded of them.
    let of_adapter: &[&str] = if config.adapter.is_some() { &["rank_pattern", "alpha_pattern"] } else { &[] };
    let identity = Identity::of(config, &[&MAY_CHANGE[..], &["project", "name", "exist_ok"], of_adapter].concat());
    // All that are made on the spot have norms of ones, and none of them is one of files.
    let content = content.map_or_else(|| "made".into(), hex);
    let identity = identity.with("data", hex(tokens)).with("test data", hex(of_test)).with("base model", hex(base));
    let identity = identity.with(CONTENT, content).told_by("model", CONTENT).told_by("adapter", ADAPTER);
    // Runs from before the test split was compared know what they learn from and are judged by. Without rows to test with they are held to no place.
    Ok(if data.test.is_empty() { identity } else { identity.told_by("data", "test data") })
}
