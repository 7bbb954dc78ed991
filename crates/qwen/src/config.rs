//! Settings of a fine-tuning run, under the names that PEFT, TRL and transformers use.

use std::collections::BTreeMap;

use crate::adapter::{ALL_LINEAR, EMBEDDING, HEAD, LoraConfig, Targets};
use crate::checkpointing::Checkpointing;
use crate::concept::edit::Ablation;
use crate::concept::stages::check_names;
use crate::optim::Optim;
use crate::precision::{Products, RunPrecision};
use crate::preference::{Objective, PairLoss};
use crate::storage::BaseDtype;
use bellows_chat::plan::{Mode, Stop};
use bellows_chat::{EncodeOptions, ReadOptions, Role, TrainOn, TrainOnEos, Truncation};
use bellows_kernels::Precision;
use bellows_learner::{Decay, LearnerConfig, Limits, Schedule, UpdateSchedule, Wire};
use bellows_settings::{Layer, SettingsError, merge, settings, with_text};
use bellows_weights::gguf::Preset;
use serde::{Deserialize, Serialize};

/// What is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// Adapters beside a frozen model.
    Lora,
    /// Every parameter: small models only.
    Full,
}

settings! {
    /// All settings of a fine-tuning run; see [`SETTINGS`] for the same as a table.
    SftConfig;
    "Model and data" {
        /// Model to start from: a directory, a .gguf file, a hub id (Qwen/Qwen2.5-0.5B-Instruct), or `tiny` (made on the spot)
        /// must be given
        model: String = String::new();
        /// How the frozen base is stored: auto (as on disk; in f16 with fp16-pure, and with fp16 on a card), f32, bf16, f16, int8 (a scale a row), nf4 (4 bits: QLoRA), gguf (a .gguf's own blocks)
        /// adapters are merged into the file's own values
        base_dtype: BaseDtype as String = BaseDtype::Auto;
        /// Chats: a .jsonl, .json, .csv, .parquet or .txt file, a folder with train, valid and test files, or a data set of the hub (owner/name); several as a list
        /// must be given
        data: Vec<String> = Vec::new();
        /// How often the rows of each of several data sets are used in an epoch, as a list (each at most 1000); 1 if not given
        data_weights: Vec<f64> = Vec::new();
        /// Mix several data sets by drawing the set of every row with these probabilities, as a list, in place of data_weights
        data_probabilities: Vec<f64> = Vec::new();
        /// An epoch of data sets so mixed ends when the first_exhausted of them is used up, or with all_exhausted
        stopping_strategy: String = "first_exhausted".into();
        /// Leave out rows that cannot be used: they are counted and listed, and more than 1 % of them stop the run
        skip_bad_rows: bool = false;
        /// Leave out rows whose tokens are those of an earlier one
        deduplicate: bool = false;
        /// Keep examples in a file instead of in memory; nothing else changes
        streaming: bool = false;
        /// Rows held out for validation if there is no valid file: a fraction below 1, or a number
        val_size: f64 = 0.0;
        /// Most examples to train on, drawn from all; 0 takes all
        max_samples: usize = 0;
        /// Never connect to the hub
        offline: bool = false;
        /// Key of rows that are plain text
        text_key: String = "text".into();
        /// Key of what is given, in rows of a prompt and a completion
        prompt_key: String = "prompt".into();
        /// Key of what is learnt, in rows of a prompt and a completion
        completion_key: String = "completion".into();
        /// Chat template: auto, qwen2, qwen2.5, qwen3, smollm, chatml, or a file with a Jinja template
        chat_template: String = "auto".into();
        /// Longest example in tokens
        max_seq_length: usize = 2048;
        /// What becomes of longer ones: keep_start, keep_end, drop, split, refuse
        truncation: String = "keep_start".into();
        /// Which turns are learnt: assistant, last-assistant, completion, all
        train_on: String = "assistant".into();
        /// Whose turns are learnt, as a list: assistant, user, system, tool
        roles_to_train: Vec<String> = vec!["assistant".into()];
        /// Which ends of turns are learnt: turn, all, last
        train_on_eos: String = "turn".into();
        /// Tokens to add, as a list; their rows begin as the mean of the others
        /// for continued pre-training; embed_tokens (and a lm_head of its own) must be trained
        new_tokens: Vec<String> = Vec::new();
        /// Take special tokens written in messages for real ones
        special_in_content: bool = false;
    }
    "Preference" {
        /// What is learnt: sft, or of pairs of answers (rows of prompt, chosen, rejected) orpo, simpo, dpo
        /// dpo's reference is the model with its adapter switched off
        objective: Objective as String = Objective::Sft;
        /// β of orpo (0.1), simpo (2) and dpo (0.1), if it is another than these
        beta: Option<f64> = None;
        /// γ of simpo: by how much the chosen answer is to be ahead
        simpo_gamma: f64 = 0.5;
    }
    "LoRA" {
        /// lora, or full to train every parameter
        method: Method as String = Method::Lora;
        /// Rank
        r: usize = 16;
        /// Numerator of the scaling
        lora_alpha: f64 = 32.0;
        /// Probability that an input of the branch is dropped
        lora_dropout: f64 = 0.0;
        /// Maps that get adapters: all-linear, a list of name endings, or a regular expression for whole names
        target_modules: Targets = Targets::Pattern(ALL_LINEAR.into());
        /// Maps that get none all the same: a list of name endings, or a regular expression for whole names
        exclude_modules: Targets = Targets::Names(Vec::new());
        /// Layers that get adapters, as a list; all if empty
        layers_to_transform: Vec<usize> = Vec::new();
        /// Rank of some maps instead of r, by name ending or regular expression; of several the first in the alphabet counts, as in PEFT's files
        rank_pattern: BTreeMap<String, usize> = BTreeMap::new();
        /// lora_alpha of some maps, in the same way
        alpha_pattern: BTreeMap<String, f64> = BTreeMap::new();
        /// Modules trained whole, as a list of name endings: embed_tokens, lm_head, norm (which is every norm), model.norm
        modules_to_save: Vec<String> = Vec::new();
        /// Scale by α / √r instead of α / r
        use_rslora: bool = false;
        /// Weight decomposition (DoRA)
        use_dora: bool = false;
        /// Learning rate of B, and of what is trained beside it and is no matrix, as a multiple of A's (LoRA+)
        loraplus_lr_ratio: f64 = 1.0;
        /// Adapter to go on from, in a directory as PEFT writes it; its rank, scaling and targets hold
        adapter: Option<String> = None;
    }
    "Files" {
        /// Answer this before and after training
        sample_prompt: Option<String> = None;
        /// Also write the model with the adapter merged, for transformers, in the type of the model's file
        save_merged: bool = false;
        /// Also write a GGUF of this kind: f16, bf16, q8_0, q6_k, q5_k_m, q4_k_m, q4_0
        save_gguf: Option<String> = None;
        /// Write what this program loads: ollama (a GGUF with a Modelfile; save_gguf says of which kind, else q8_0)
        export: Option<String> = None;
        /// System message of the Modelfile
        system: Option<String> = None;
    }
    "Concept" {
        /// Folder of two prompt sets (target and baseline): the direction between them is taken out of the model before it is tuned
        /// found, scored, taken out, judged, then tuned: in one command, each stage done once (docs/concept.md)
        concept: Option<String> = None;
        /// Layers it is taken out of: all, a layer (8), or a range (8-16)
        concept_layers: String = "all".into();
        /// Share of it that is taken out
        concept_strength: f64 = 1.0;
        /// What each input of an edited matrix writes keeps its length
        concept_norm_preserving: bool = false;
        /// By which share the perplexity of the set's guard.txt may rise; above it nothing is tuned
        concept_max_perplexity_rise: f64 = 0.05;
        /// Device for these stages; that of training if not given
        concept_device: Option<String> = None;
        /// Folder of a direction that was found before (by `concept extract`, or concept/ of another run): it is taken, none is looked for
        concept_from: Option<String> = None;
        /// Stages that are left out, as a list: extract, score, ablate, eval, train, export
        concept_skip: Vec<String> = Vec::new();
    }
    "Run" {
        /// Epochs to train for
        epochs: usize = 3;
        /// Examples per batch (rows, when packing)
        batch_size: usize = 1;
        /// Batches per update
        gradient_accumulation_steps: usize = 8;
        /// Several examples in a row of max_seq_length, which do not see each other
        packing: bool = false;
        /// Examples of like length together
        group_by_length: bool = false;
        /// Rows are padded to a multiple of this
        pad_to_multiple_of: usize = 64;
        /// Updates between evaluations; 0 evaluates after every epoch only
        eval_steps: usize = 0;
        /// Evaluations without improvement before stopping; 0 never stops
        early_stopping_patience: usize = 0;
        /// Seed of every random draw
        seed: u64 = 0;
        /// auto, cpu, vulkan, cuda, rocm (each with :N for the N-th card), metal or webgpu
        device: String = "auto".into();
        /// Whose products run on a GPU: auto (Burn's, tuned there; ours where those fail and on cards without matrix units), burn, own (few launches, nothing is tuned)
        products: Products as String = Products::Auto;
        /// f32; factors of products with the model's own weights in bf16 (where the processor multiplies it) or fp16 (the loss is scaled), adapters in f32; bf16x2: weights in bf16, activations in two bf16 parts, nearly as exact as f32 (with AMX; elsewhere f32, which is as fast there); fp16-pure: base and adapters in f16 too, no loss scale, Adam's epsilon 1e-4
        precision: RunPrecision as String = RunPrecision::F32;
        /// What the loss is multiplied by in fp16: dynamic, or a number (128 to 1024 is usual)
        loss_scale: String = "dynamic".into();
        /// Layers that are run again in the backward pass instead of keeping their activations: auto (as few as the memory asks for), off, or a number of them
        /// the lowest ones, never the top one; all (or true) means all of them, false means off; auto is settled when a run begins, and recorded
        gradient_checkpointing: Checkpointing = Checkpointing::Auto;
        /// Most memory in GB (10^9 bytes) that a run (each of its processes) may take; one that is planned to take more is refused before it begins
        memory_limit: Option<f64> = None;
        /// Wait for the device after every layer: slower, and a driver's fault shows where it happened
        sync_launches: bool = false;
        /// Processes that train together, each on batches of its own: an update sees as many times as many
        /// on this machine, unless WORLD_SIZE and RANK are in the environment; docs/cluster.md tells more
        ranks: usize = 1;
        /// With ranks: what the numbers of gradients travel as: f32, bf16 or f16 (half the bytes, rounded on the way; sums are f32); f16 holds nothing above 65504: an update with more is skipped
        wire: Wire as String = Wire::F32;
        /// Directory that runs are kept in
        project: String = "runs/sft".into();
        /// Name of the run; a number is added if it is taken
        name: String = "train".into();
        /// Write into an existing run directory of that name
        exist_ok: bool = false;
        /// Minutes between checkpoints
        checkpoint_minutes: f64 = 10.0;
        /// Checkpoints to keep besides the best
        /// at least 2, for the newest may be damaged
        keep_checkpoints: usize = 2;
        /// Threads that make batches; 0 uses the training thread
        workers: usize = 1;
        /// Batches between two lines of the log
        logging_steps: usize = 1;
        /// Tell after every epoch where its time went
        profile: bool = false;
        /// A process that computes nothing watches the one that trains: it is started again when it crashes, hangs, runs out of memory or loses the device
        supervise: bool = false;
        /// With supervise, when the device has failed twice without a new checkpoint: none, or cpu (goes on there, and says so)
        fallback: String = "none".into();
        /// With supervise and ranks of this machine: a rank that is lost is left out when the run is started again
        elastic: bool = false;
        /// Seconds without a sign of life after which a supervised run is taken for hung, by phase: start, first (step), step, evaluation, save, export
        /// usually 3600, 600, 300, 600, 300, 3600; a step may take ten times the median of the last ones if that is more
        heartbeat: BTreeMap<String, f64> = BTreeMap::new();
        /// Draw results.png: loss, learning rate, gradient norm
        plots: bool = true;
        /// Write event files for TensorBoard into the run directory
        tensorboard: bool = false;
    }
    "Optimizer" {
        /// AdamW, Adam, SGD, Adafactor (small state), or Lion (a tenth of AdamW's learning rate)
        /// in upper or lower case; adamw_torch, adamw_torch_fused and adamw_hf of transformers are AdamW
        optim: Optim as String = Optim::AdamW;
        /// Peak learning rate
        learning_rate: f64 = 2e-4;
        /// Peak learning rate of embed_tokens and lm_head where they are trained, if it is another; a fifth of it or less is usual
        embedding_learning_rate: Option<f64> = None;
        /// Shape after warm-up: constant, linear, cosine, wsd
        lr_scheduler_type: Decay as String = Decay::Cosine;
        /// What the rate ends at, as a fraction of the peak
        min_lr_ratio: f64 = 0.0;
        /// Share of all updates over which the rate rises
        warmup_ratio: f64 = 0.03;
        /// Updates over which the rate rises; in place of warmup_ratio
        warmup_steps: Option<usize> = None;
        /// Weight decay; not of norms and biases. Decoupled, but SGD and Adam add it to the gradient, as PyTorch's do
        weight_decay: f64 = 0.0;
        /// β1, or SGD's momentum; Adafactor has none
        momentum: f64 = 0.9;
        /// Adam's and AdamW's β1; in place of momentum
        adam_beta1: Option<f64> = None;
        /// Adam's and AdamW's β2
        adam_beta2: f64 = 0.999;
        /// What keeps Adam's and AdamW's division from being one by 0
        adam_epsilon: f64 = 1e-8;
        /// Global gradient norm that is clipped to; 0 does not clip
        max_grad_norm: f64 = 1.0;
        /// Noise on embeddings in training, α of α/√(S h) (NEFTune); 0 adds none
        neftune_noise_alpha: f64 = 0.0;
    }
}

/// Settings that do not change what a run computes: they may differ when it is resumed. Of data, model and adapter it is compared what they are, not where they lie.
pub const MAY_CHANGE: [&str; 29] = [
    "data",
    "model",
    "adapter",
    "supervise",
    "fallback",
    "elastic",
    "heartbeat",
    "sample_prompt",
    "save_merged",
    "save_gguf",
    "export",
    "concept_device",
    "concept_from",
    "concept_skip",
    "system",
    "device",
    "products",
    "offline",
    "sync_launches",
    "checkpoint_minutes",
    "keep_checkpoints",
    "workers",
    "logging_steps",
    "profile",
    "plots",
    "tensorboard",
    "gradient_checkpointing",
    "memory_limit",
    "streaming",
];

/// The names that `datasets.interleave_datasets` has for them.
const STRATEGIES: [(&str, Stop); 2] = [("first_exhausted", Stop::FirstExhausted), ("all_exhausted", Stop::AllExhausted)];

/// The layer with the maps it names by a text as a list, where that text is names alone and no expression, and as text what are words or numbers.
fn with_names(layer: &Layer) -> Layer {
    let mut layer = with_text(layer, &["device", "concept_device", "concept_layers", "loss_scale"]);
    for (key, value) in &mut layer.values {
        if ["target_modules", "exclude_modules"].contains(&key.replace('-', "_").as_str())
            && let Some(Targets::Names(names)) = value.as_str().map(Targets::parse)
        {
            *value = names.into();
        }
    }
    layer
}

pub(crate) fn bad(reason: String) -> SettingsError {
    SettingsError { origin: "settings".into(), reason }
}

impl SftConfig {
    /// Defaults overlaid by `layers`, the last one winning.
    ///
    /// # Errors
    /// A key that is not a setting, a value of the wrong kind, or a rule that is broken.
    pub fn from_layers(layers: &[Layer]) -> Result<Self, SettingsError> {
        let layers: Vec<Layer> = layers.iter().map(with_names).collect();
        let config = merge(Self::default(), SETTINGS, &layers, |_, _| Ok(false))?;
        config.validate()?;
        Ok(config)
    }

    /// How exactly the model's own weights are multiplied.
    pub fn precision(&self) -> Precision {
        self.precision.of_products()
    }

    /// The rules that one setting alone cannot check.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn validate(&self) -> Result<(), SettingsError> {
        if self.loss_scale != "dynamic" && !self.loss_scale.parse().is_ok_and(|scale: f64| scale.is_finite() && scale >= 1.0) {
            return Err(bad(format!("loss_scale {:?} is neither dynamic nor a number from 1 up", self.loss_scale)));
        }
        let not_negative = [
            ("learning_rate", self.learning_rate),
            ("weight_decay", self.weight_decay),
            ("max_grad_norm", self.max_grad_norm),
            ("neftune_noise_alpha", self.neftune_noise_alpha),
            ("val_size", self.val_size),
            ("checkpoint_minutes", self.checkpoint_minutes),
            ("concept_max_perplexity_rise", self.concept_max_perplexity_rise),
            ("simpo_gamma", self.simpo_gamma),
            ("embedding_learning_rate", self.embedding_learning_rate.unwrap_or(0.0)),
        ];
        if let Some((name, x)) = not_negative.iter().find(|(_, x)| !(x.is_finite() && *x >= 0.0)) {
            return Err(bad(format!("{name} {x} is negative or not a number")));
        }
        let positive = [
            ("lora_alpha", self.lora_alpha),
            ("loraplus_lr_ratio", self.loraplus_lr_ratio),
            ("beta", self.beta.unwrap_or(1.0)),
            ("memory_limit", self.memory_limit.unwrap_or(1.0)),
        ];
        let weights = self.data_weights.iter().map(|&x| ("data_weights:", x));
        let odds = self.data_probabilities.iter().map(|&x| ("data_probabilities:", x));
        let alphas = self.alpha_pattern.values().map(|&x| ("alpha_pattern:", x));
        if let Some((name, x)) = positive.into_iter().chain(weights).chain(odds).chain(alphas).find(|(_, x)| !(x.is_finite() && *x > 0.0)) {
            return Err(bad(format!("{name} {x} is not above 0")));
        }
        let ratios = [("warmup_ratio", self.warmup_ratio), ("min_lr_ratio", self.min_lr_ratio)];
        if let Some((name, x)) = ratios.iter().find(|(_, x)| !(0.0..=1.0).contains(x)) {
            return Err(bad(format!("{name} {x} is not between 0 and 1")));
        }
        let rules = [
            (!(0.0..1.0).contains(&self.momentum), "momentum must be at least 0 and below 1"),
            (self.adam_beta1.is_some_and(|beta| !(0.0..1.0).contains(&beta)), "adam_beta1 must be at least 0 and below 1"),
            (!(0.0..1.0).contains(&self.adam_beta2), "adam_beta2 must be at least 0 and below 1"),
            (!(self.adam_epsilon.is_finite() && self.adam_epsilon > 0.0), "adam_epsilon must be above 0"),
            (!self.is_adam() && self.has_adams(), "adam_beta1, adam_beta2 and adam_epsilon are Adam's and AdamW's: leave them out"),
            (self.epochs == 0, "epochs must be at least 1"),
            (self.batch_size == 0, "batch_size must be at least 1"),
            (self.ranks == 0, "ranks must be at least 1"),
            (self.ranks > 1 && self.concept.is_some(), "concept is taken out by one process: train the edited model with ranks after it"),
            (self.gradient_accumulation_steps == 0, "gradient_accumulation_steps must be at least 1"),
            (self.max_seq_length < 2, "max_seq_length must be at least 2"),
            (self.keep_checkpoints < 2, "keep_checkpoints must be at least 2: the newest may be damaged"),
            (!["none", "cpu"].contains(&self.fallback.as_str()), "fallback must be none or cpu"),
            (self.fallback == "cpu" && !self.supervise, "fallback cpu is done by a supervisor: it needs supervise"),
            (self.elastic && !self.supervise, "elastic is done by a supervisor: it needs supervise"),
            (self.packing && self.group_by_length, "packing and group_by_length exclude each other"),
            (!self.data_weights.is_empty() && self.data_weights.len() != self.data.len(), "data_weights needs one weight a data set"),
            (self.data_weights.iter().any(|weight| *weight > 1e3), "data_weights must be at most 1000 uses of a row in an epoch"),
            (
                !self.data_probabilities.is_empty() && self.data_probabilities.len() != self.data.len(),
                "data_probabilities needs one probability a data set",
            ),
            (
                !self.data_probabilities.is_empty() && !self.data_weights.is_empty(),
                "data_weights and data_probabilities exclude each other",
            ),
            (STRATEGIES.iter().all(|(n, _)| *n != self.stopping_strategy), "stopping_strategy must be first_exhausted or all_exhausted"),
            (!(0.0..1.0).contains(&self.lora_dropout), "lora_dropout must be at least 0 and below 1"),
            (self.method == Method::Full && self.adapter.is_some(), "method full trains no adapter: leave out --adapter"),
            (self.roles_to_train.is_empty(), "roles_to_train needs a role: nothing is learnt otherwise"),
            ([&self.text_key, &self.prompt_key, &self.completion_key].iter().any(|key| key.is_empty()), "a key of the data is empty"),
        ];
        let (of_pairs, dpo) = (self.objective.is_of_pairs(), self.objective == Objective::Dpo);
        let rules = rules.into_iter().chain([
            (
                self.embedding_learning_rate.is_some() && self.learning_rate == 0.0,
                "embedding_learning_rate is a multiple of learning_rate, which is 0",
            ),
            (
                self.concept.is_some() && self.adapter.is_some(),
                "concept edits the model, and --adapter was trained on the one before: leave one out",
            ),
            (of_pairs && self.packing, "packing is for single texts: leave it out where the objective learns from pairs"),
            (
                of_pairs && self.train_on == "all",
                "train_on all makes the prompt a part of both answers: take another where the objective learns from pairs",
            ),
            (
                dpo && self.method == Method::Full,
                "dpo's reference is the model without its adapter: method full leaves none (orpo and simpo need none)",
            ),
            (
                self.base_dtype.is_blocks() && self.method == Method::Full,
                "method full trains every weight, and base_dtype int8, nf4 and gguf are for frozen ones: use method lora",
            ),
            (
                dpo && !self.modules_to_save.is_empty(),
                "dpo's reference is the model without its adapter: modules_to_save would change it too",
            ),
        ]);
        if let Some((_, rule)) = rules.into_iter().find(|(broken, _)| *broken) {
            return Err(bad(rule.to_string()));
        }
        // What an adapter trains that is gone on with, its own settings say.
        if self.adapter.is_none() {
            self.check_rows()?;
        }
        if let Some(kind) = self.save_gguf.as_ref().filter(|kind| Preset::from_name(kind).is_none()) {
            return Err(bad(format!("save_gguf {kind:?} is none of {}", Preset::ALL.map(Preset::name).join(", "))));
        }
        if let Some(program) = self.export.as_ref().filter(|program| *program != "ollama") {
            return Err(bad(format!("export {program:?}: there is ollama")));
        }
        if self.concept.is_some() {
            self.ablation()?;
        }
        check_names(&self.concept_skip).map_err(bad)?;
        Limits::of(&self.heartbeat).map_err(bad)?;
        self.encoding().map(drop)
    }

    /// That rows which are added, or have a rate of their own, are trained.
    ///
    /// # Errors
    /// The setting that wants them trained.
    pub(crate) fn check_rows(&self) -> Result<(), SettingsError> {
        let lora = self.lora();
        let embedding_trained = self.method == Method::Full || lora.trains(EMBEDDING);
        if !self.new_tokens.is_empty() && !embedding_trained {
            let advice = self.to_train("embed_tokens (and lm_head, if the model has one)");
            return Err(bad(format!("new_tokens need rows that are trained: {advice}")));
        }
        if self.embedding_learning_rate.is_some() && !embedding_trained && !lora.trains(HEAD) {
            let advice = self.to_train("embed_tokens or lm_head");
            return Err(bad(format!("embedding_learning_rate: neither the embedding nor a head is trained: {advice}")));
        }
        Ok(())
    }

    /// How the concept is taken out.
    ///
    /// # Errors
    /// Layers that are no range, a strength out of its.
    pub fn ablation(&self) -> Result<Ablation, SettingsError> {
        let layers = self.concept_layers.parse().map_err(|e| bad(format!("concept_layers: {e}")))?;
        let edit = Ablation { layers, strength: self.concept_strength, norm_preserving: self.concept_norm_preserving, embeddings: false };
        edit.check_strength().map_err(|e| bad(format!("concept_strength: {e}")))?;
        Ok(edit)
    }

    /// The loss of pairs, where they are learnt from.
    pub fn pair_loss(&self) -> Option<PairLoss> {
        let plain = if self.objective == Objective::Simpo { 2.0 } else { 0.1 };
        let (objective, beta, gamma) = (self.objective, self.beta.unwrap_or(plain), self.simpo_gamma);
        objective.is_of_pairs().then_some(PairLoss { objective, beta, gamma })
    }

    /// The kind of GGUF to write, if any.
    pub fn gguf(&self) -> Option<&str> {
        self.save_gguf.as_deref().or(self.export.is_some().then_some("q8_0"))
    }

    fn is_adam(&self) -> bool {
        matches!(self.optim, Optim::Adam | Optim::AdamW)
    }

    /// Whether a constant of Adam's was given.
    fn has_adams(&self) -> bool {
        let plain = Self::default();
        let own = |config: &Self| (config.adam_beta1, config.adam_beta2, config.adam_epsilon);
        own(self) != own(&plain)
    }

    /// How examples become tokens.
    ///
    /// # Errors
    /// A word that is none of those a setting takes.
    pub fn encoding(&self) -> Result<EncodeOptions, SettingsError> {
        fn word<T: Copy>(setting: &str, value: &str, words: &[(&str, T)]) -> Result<T, SettingsError> {
            let found = words.iter().find(|(w, _)| *w == value.replace('_', "-")).map(|(_, t)| *t);
            let all = words.iter().map(|(w, _)| *w).collect::<Vec<_>>().join(", ");
            found.ok_or_else(|| bad(format!("{setting} {value:?} is none of {all}")))
        }
        let truncations = [
            ("keep-start", Truncation::KeepStart),
            ("keep-end", Truncation::KeepEnd),
            ("drop", Truncation::Drop),
            ("split", Truncation::Split),
            ("refuse", Truncation::Refuse),
        ];
        let turns = [
            ("assistant", TrainOn::Assistant),
            ("last-assistant", TrainOn::LastAssistant),
            ("completion", TrainOn::Completion),
            ("all", TrainOn::All),
        ];
        let roles = [Role::Assistant, Role::User, Role::System, Role::Tool].map(|role| (role.name(), role));
        let ends = [("turn", TrainOnEos::Turn), ("all", TrainOnEos::All), ("last", TrainOnEos::Last)];
        Ok(EncodeOptions {
            train_on: word("train_on", &self.train_on, &turns)?,
            train_on_eos: word("train_on_eos", &self.train_on_eos, &ends)?,
            roles: self.roles_to_train.iter().map(|name| word("roles_to_train", name, &roles)).collect::<Result<_, _>>()?,
            max_seq_length: self.max_seq_length,
            truncation: word("truncation", &self.truncation, &truncations)?,
            special_in_content: self.special_in_content,
            pairs: self.objective.is_of_pairs(),
        })
    }

    /// When an epoch of data sets that are mixed by probability ends; [`validate`](Self::validate) has seen that it has a name.
    pub(crate) fn stopping(&self) -> Stop {
        STRATEGIES.iter().find(|(name, _)| *name == self.stopping_strategy).map_or(Stop::FirstExhausted, |(_, stop)| *stop)
    }

    /// Under which keys the rows of data sets have what is not a chat, and whether they are pairs of answers.
    pub fn reading(&self) -> ReadOptions {
        let Self { text_key, prompt_key, completion_key, .. } = self.clone();
        ReadOptions { text_key, prompt_key, completion_key, pairs: Some(self.objective.is_of_pairs()) }
    }

    /// The adapter's part of the settings.
    pub fn lora(&self) -> LoraConfig {
        LoraConfig {
            r: self.r,
            lora_alpha: self.lora_alpha,
            lora_dropout: self.lora_dropout,
            use_rslora: self.use_rslora,
            use_dora: self.use_dora,
            target_modules: self.target_modules.clone(),
            exclude_modules: self.exclude_modules.clone(),
            layers_to_transform: self.layers_to_transform.clone(),
            rank_pattern: self.rank_pattern.clone(),
            alpha_pattern: self.alpha_pattern.clone(),
            modules_to_save: self.modules_to_save.clone(),
            ..LoraConfig::default()
        }
    }

    /// How examples are put into batches.
    pub fn batching(&self) -> Mode {
        match (self.packing, self.group_by_length) {
            (true, _) => Mode::Pack { capacity: self.max_seq_length },
            (_, true) => Mode::GroupByLength,
            _ => Mode::Shuffle,
        }
    }

    /// Makes these the adapter's part of the settings.
    pub fn set_lora(&mut self, lora: &LoraConfig) {
        (self.r, self.lora_alpha, self.lora_dropout) = (lora.r, lora.lora_alpha, lora.lora_dropout);
        (self.use_rslora, self.use_dora) = (lora.use_rslora, lora.use_dora);
        self.target_modules.clone_from(&lora.target_modules);
        self.exclude_modules.clone_from(&lora.exclude_modules);
        self.layers_to_transform.clone_from(&lora.layers_to_transform);
        (self.rank_pattern, self.alpha_pattern) = (lora.rank_pattern.clone(), lora.alpha_pattern.clone());
        self.modules_to_save.clone_from(&lora.modules_to_save);
    }

    /// The Learner's part of the settings. The EMA is off: what is judged and saved are the weights themselves.
    pub fn learner(&self, validated: bool) -> LearnerConfig {
        let schedule = UpdateSchedule {
            lr: self.learning_rate,
            min_lr_ratio: self.min_lr_ratio,
            decay: self.lr_scheduler_type,
            warmup_steps: self.warmup_steps,
            warmup_ratio: self.warmup_ratio,
            momentum: self.adam_beta1.unwrap_or(self.momentum),
            batch: self.batch_size * self.ranks,
            accumulate: self.gradient_accumulation_steps,
        };
        LearnerConfig {
            patience: self.early_stopping_patience,
            optimizer: self.optim.into(),
            // Lion has a constant of its own.
            beta2: self.is_adam().then_some(self.adam_beta2),
            eps: self.precision.epsilon(self.adam_epsilon, Self::default().adam_epsilon),
            loss_scaling: self.precision.loss_scaling(&self.loss_scale),
            trains_f16: self.precision == RunPrecision::Fp16Pure,
            max_grad_norm: self.max_grad_norm,
            ranks: self.ranks,
            wire: self.wire,
            seed: self.seed,
            workers: self.workers,
            val: validated,
            eval_steps: (self.eval_steps > 0 && validated).then_some(self.eval_steps),
            checkpoint_minutes: self.checkpoint_minutes,
            keep_checkpoints: self.keep_checkpoints,
            log_every: self.logging_steps,
            profile: self.profile,
            ..LearnerConfig::new(self.epochs, Schedule::Updates(schedule))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn with(key: &str, value: Value) -> Result<SftConfig, SettingsError> {
        let values = [(key.to_string(), value)].into_iter().collect();
        SftConfig::from_layers(&[Layer { origin: "x.yaml".into(), values }])
    }

    #[test]
    fn values_out_of_range_are_named() {
        let wrong = [
            ("momentum", [json!(1), json!(-0.1)]),
            ("lora_alpha", [json!(0), json!(-8)]),
            ("min_lr_ratio", [json!(-0.1), json!(1.1)]),
            ("warmup_ratio", [json!(-0.1), json!(3)]),
            ("loraplus_lr_ratio", [json!(0), json!(-1)]),
            ("learning_rate", [json!(-1), json!(-0.5)]),
            ("alpha_pattern", [json!({ "q_proj": 0 }), json!({ "q_proj": -1 })]),
        ];
        for (key, values) in wrong {
            for value in values {
                let error = with(key, value.clone()).unwrap_err().to_string();
                assert!(error.starts_with(&format!("settings: {key}")), "{key} {value}: {error}");
            }
        }
        let data =
            |weights: [f64; 2]| SftConfig { data: vec!["a".into(), "b".into()], data_weights: weights.into(), ..SftConfig::default() };
        assert!(data([1000.0, 0.5]).validate().is_ok());
        for weight in [0.0, -1.0, f64::INFINITY, 1000.1, 1e300] {
            assert!(data([1.0, weight]).validate().unwrap_err().to_string().contains("data_weights"));
        }
        for (key, value) in [("momentum", json!(0)), ("min_lr_ratio", json!(1)), ("warmup_ratio", json!(1)), ("warmup_ratio", json!(0))] {
            assert!(with(key, value).is_ok(), "{key}");
        }
    }

    #[test]
    fn adams_constants_reach_the_optimizer_and_no_other_takes_them() {
        let plain = SftConfig::default().learner(false);
        assert_eq!((plain.beta2, plain.eps), (Some(0.999), 1e-8));
        let eps = |precision, adam_epsilon| SftConfig { precision, adam_epsilon, ..SftConfig::default() }.learner(false).eps;
        assert_eq!(
            [eps(RunPrecision::Fp16, 1e-8), eps(RunPrecision::Fp16Pure, 1e-8), eps(RunPrecision::Fp16Pure, 1e-6)],
            [1e-8, 1e-4, 1e-6]
        );
        let values = [("adam_beta1", json!(0.8)), ("adam_beta2", json!(0.95)), ("adam_epsilon", json!(1e-6))];
        let layer = |optim: &str| {
            let values = values.clone().into_iter().chain([("optim", json!(optim))]).map(|(key, value)| (key.to_string(), value)).collect();
            SftConfig::from_layers(&[Layer { origin: "x.yaml".into(), values }])
        };
        let learner = layer("Adam").unwrap().learner(false);
        let Schedule::Updates(schedule) = &learner.schedule else { panic!("{:?}", learner.schedule) };
        assert_eq!((schedule.momentum, learner.beta2, learner.eps), (0.8, Some(0.95), 1e-6));
        assert!(layer("Lion").unwrap_err().to_string().contains("Adam's"));
        assert_eq!(with("optim", json!("Lion")).unwrap().learner(false).beta2, None);
        for (key, value) in [("adam_beta1", 1.0), ("adam_beta2", -0.1), ("adam_epsilon", 0.0)] {
            assert!(with(key, json!(value)).unwrap_err().to_string().starts_with(&format!("settings: {key}")), "{key}");
        }
    }

    #[test]
    fn values_of_files_are_those_of_the_command_line() {
        let text = |key: &str, number: u32| serde_json::to_value(with(key, json!(number)).unwrap()).unwrap()[key].clone();
        assert_eq!([text("device", 0), text("loss_scale", 128), text("concept_layers", 8)], ["0", "128", "8"]);
        let names = |names: &[&str]| Targets::Names(names.iter().map(ToString::to_string).collect());
        assert_eq!(with("target_modules", json!("q_proj")).unwrap().target_modules, names(&["q_proj"]));
        assert_eq!(with("target-modules", json!("q_proj,mlp.up_proj")).unwrap().target_modules, names(&["q_proj", "mlp.up_proj"]));
        assert_eq!(with("exclude_modules", json!("q_proj")).unwrap().exclude_modules, names(&["q_proj"]));
        for text in [ALL_LINEAR, r".*\.mlp\..*"] {
            assert_eq!(with("target_modules", json!(text)).unwrap().target_modules, Targets::Pattern(text.into()));
        }
    }
}
