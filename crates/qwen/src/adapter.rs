//! Which maps get an adapter, and of what shape: PEFT's settings under PEFT's names.

use std::collections::{BTreeMap, BTreeSet};

use bellows_exit::{Coded, Exit};
use bellows_settings::Kind;
use burn::module::Param;
use burn::tensor::{DType, Tensor};
use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::CausalLm;
use crate::model::layers::MAPS;
use crate::model::lora::{Lora, LoraSpec};
use crate::model::weight::Weight;
use crate::named::{Change, map};

/// The name that stands for every linear map of the layers.
pub const ALL_LINEAR: &str = "all-linear";

/// The embedding's weight.
pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";

/// The output head, which is the embedding in some models.
pub(crate) const HEAD: &str = "lm_head.weight";

/// Settings of a LoRA adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoraConfig {
    /// Rank.
    pub r: usize,
    /// Numerator of the scaling: α / r, or α / √r with `use_rslora`.
    pub lora_alpha: f64,
    /// Probability that an input of the branch is dropped in training.
    pub lora_dropout: f64,
    /// Rank-stabilised scaling.
    pub use_rslora: bool,
    /// Weight decomposition.
    pub use_dora: bool,
    /// Names or name endings (`q_proj`, `mlp.up_proj`), one regular expression that matches whole names, or `all-linear`.
    pub target_modules: Targets,
    /// Names, endings, or one regular expression for whole names, of those that get none all the same.
    pub exclude_modules: Targets,
    /// Layers that get adapters; all if empty.
    pub layers_to_transform: Vec<usize>,
    /// Rank of the maps whose name ends in, or matches, a pattern; the first such pattern counts, in the order
    /// of the alphabet, in which PEFT writes its files.
    pub rank_pattern: BTreeMap<String, usize>,
    /// α of the maps whose name ends in, or matches, a pattern.
    pub alpha_pattern: BTreeMap<String, f64>,
    /// Modules trained whole and saved beside the adapter: `embed_tokens`, `lm_head`. As in PEFT all whose name ends so: `norm` is every norm,
    /// `model.norm` the last one. A map among them gets no LoRA.
    pub modules_to_save: Vec<String>,
    /// An embedding that is also the output head stays so when it is trained. PEFT's files say if not; that is not built here.
    pub ensure_weight_tying: bool,
    /// Parameters that an adapter's file holds though they are of no module to save: with a tokenizer that grew PEFT saves the embeddings. They stand for
    /// those of the model's files, and go along with the adapter.
    #[serde(skip)]
    pub brought: BTreeSet<String>,
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self {
            r: 16,
            lora_alpha: 32.0,
            lora_dropout: 0.0,
            use_rslora: false,
            use_dora: false,
            target_modules: Targets::Pattern(ALL_LINEAR.into()),
            exclude_modules: Targets::Names(Vec::new()),
            layers_to_transform: Vec::new(),
            rank_pattern: BTreeMap::new(),
            alpha_pattern: BTreeMap::new(),
            modules_to_save: Vec::new(),
            ensure_weight_tying: true,
            brought: BTreeSet::new(),
        }
    }
}

/// Maps by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected names of maps, or a pattern")]
pub enum Targets {
    /// `all-linear`, or a regular expression for whole names.
    Pattern(String),
    /// Names or endings.
    Names(Vec<String>),
}

impl Kind for Targets {
    fn value_name() -> String {
        String::list_name()
    }

    fn read(text: &str) -> Value {
        text.into()
    }
}

impl Targets {
    /// What a setting says: names alone, with commas between them, or else an expression.
    pub fn parse(text: &str) -> Self {
        match text.chars().all(|c| c.is_alphanumeric() || "_.,".contains(c)) {
            true => Self::Names(text.split(',').map(String::from).collect()),
            false => Self::Pattern(text.into()),
        }
    }

    /// Whether the map of this name is among them.
    fn hold(&self, name: &str) -> Result<bool, AdapterError> {
        Ok(match self {
            Targets::Pattern(pattern) if pattern == ALL_LINEAR => true,
            Targets::Pattern(pattern) => whole(pattern)?.is_match(name),
            Targets::Names(names) => names.iter().any(|ending| ends_in(name, ending)),
        })
    }
}

impl std::fmt::Display for Targets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pattern(pattern) => f.write_str(pattern),
            Self::Names(names) => f.write_str(&names.join(",")),
        }
    }
}

/// Why an adapter cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// A rank of 0, a dropout outside [0, 1).
    #[error("{0}")]
    Setting(String),
    /// A pattern that is not a regular expression.
    #[error("{pattern:?} is not a regular expression: {reason}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong.
        reason: String,
    },
    /// A name that no map has.
    #[error("target_modules: no map is named {0:?} (there are {all})", all = MAPS.join(", "))]
    NoTarget(String),
    /// Maps that are named, and all of them left out again.
    #[error("target_modules: exclude_modules, modules_to_save or layers_to_transform leave out every map that {0:?} names")]
    Excluded(String),
    /// A part that cannot be trained whole.
    #[error("modules_to_save: {0:?} is none of embed_tokens, lm_head, norm, or a name in a layer")]
    NoModule(String),
    /// The output head of a model whose embedding serves as one.
    #[error("modules_to_save: this model's lm_head is its embed_tokens (tie_word_embeddings): name embed_tokens to train both")]
    Tied,
    /// An adapter whose embedding is no longer the output head.
    #[error(
        "this model's lm_head is its embed_tokens, which the adapter trains apart from it (ensure_weight_tying is false): not supported"
    )]
    Untied,
}

impl Coded for AdapterError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}

/// Whether `name` is `ending`, or ends in `.ending`.
fn ends_in(name: &str, ending: &str) -> bool {
    name.strip_suffix(ending).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

fn whole(pattern: &str) -> Result<Regex, AdapterError> {
    // The parser's picture of the place is behind its last line.
    let bad = |e: regex::Error| {
        let told = e.to_string();
        let reason = told.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        AdapterError::Pattern { pattern: pattern.into(), reason }
    };
    Regex::new(&format!("^(?:{pattern})$")).map_err(bad)
}

/// The value of the first pattern that `name` ends in, or that matches its end.
fn by_pattern<T: Copy>(patterns: &BTreeMap<String, T>, name: &str) -> Result<Option<T>, AdapterError> {
    for (pattern, value) in patterns {
        if ends_in(name, pattern) || whole(&format!("(?:.*\\.)?(?:{pattern})"))?.is_match(name) {
            return Ok(Some(*value));
        }
    }
    Ok(None)
}

impl LoraConfig {
    /// The adapter for map number `stream` of the model, by its name; `None` if it is no target.
    ///
    /// # Errors
    /// Settings that cannot be met.
    pub fn spec(&self, name: &str, layer: usize, stream: u64) -> Result<Option<LoraSpec>, AdapterError> {
        let layers = &self.layers_to_transform;
        let excluded = self.saves(name) || self.exclude_modules.hold(name)?;
        if !self.target_modules.hold(name)? || excluded || !(layers.is_empty() || layers.contains(&layer)) {
            return Ok(None);
        }
        let rank = by_pattern(&self.rank_pattern, name)?.unwrap_or(self.r);
        let alpha = by_pattern(&self.alpha_pattern, name)?.unwrap_or(self.lora_alpha);
        if rank == 0 {
            return Err(AdapterError::Setting("r must be at least 1".into()));
        }
        if !(0.0..1.0).contains(&self.lora_dropout) {
            return Err(AdapterError::Setting(format!("lora_dropout is {}: it must be at least 0 and below 1", self.lora_dropout)));
        }
        let scaling = if self.use_rslora { alpha / (rank as f64).sqrt() } else { alpha / rank as f64 };
        Ok(Some(LoraSpec { rank, scaling, dropout: self.lora_dropout, dora: self.use_dora, stream }))
    }

    /// Puts fresh adapters on the model's targets and unfreezes `modules_to_save`.
    ///
    /// # Errors
    /// A target or module that the model does not have, or settings that cannot be met.
    pub fn apply(&self, model: CausalLm, seed: u64) -> Result<CausalLm, AdapterError> {
        if let Targets::Names(names) = &self.target_modules
            && let Some(name) = names.iter().find(|n| !model.linears().any(|(name, _)| ends_in(&name, n)))
        {
            return Err(AdapterError::NoTarget(name.clone()));
        }
        self.apply_with(model, |spec, weight, _| Ok::<_, AdapterError>(Lora::new(spec, &weight.stored(), seed))).map(settled)
    }

    /// The same with adapters from `make`, which gets the map's weight and name. A list of targets may name some that this model lacks, as those of other
    /// programs do: what a file has beyond the model's places is its reader's to refuse.
    ///
    /// # Errors
    /// Those of [`apply`](Self::apply) but for that, and those of `make`.
    pub fn apply_with<E: From<AdapterError>>(
        &self,
        mut model: CausalLm,
        mut make: impl FnMut(LoraSpec, &Weight, &str) -> Result<Lora, E>,
    ) -> Result<CausalLm, E> {
        let (layers, mut any) = (model.model.layers.len(), false);
        if let Some(layer) = self.layers_to_transform.iter().find(|layer| **layer >= layers) {
            let reason = format!("layers_to_transform: there is no layer {layer}, this model has {layers}, counted from 0");
            return Err(AdapterError::Setting(reason).into());
        }
        let per_layer = model.linears().count() / layers.max(1);
        for (i, (name, linear)) in model.linears_mut().enumerate() {
            if let Some(spec) = self.spec(&name, i / per_layer.max(1), i as u64)? {
                linear.lora = Some(make(spec, &linear.weight, &name)?);
                any = true;
            }
        }
        if !any {
            let (targets, text) = (&self.target_modules, self.target_modules.to_string());
            let named = model.linears().any(|(name, _)| targets.hold(&name).unwrap_or_default());
            let error = if named { AdapterError::Excluded(text) } else { AdapterError::NoTarget(text) };
            return Err(error.into());
        }
        Ok(self.unfreeze(model)?)
    }

    /// Whether a parameter is trained: it is an adapter's, or of a module to save.
    pub fn trains(&self, parameter: &str) -> bool {
        let module = parameter.rsplit_once('.').map_or(parameter, |(module, _)| module);
        parameter.contains(".lora.") || self.saves(module)
    }

    /// Whether a parameter is the adapter's to keep: it is trained, or came with its file.
    pub fn keeps(&self, parameter: &str) -> bool {
        self.trains(parameter) || self.brought.contains(parameter)
    }

    /// Whether a module is one to save.
    pub(crate) fn saves(&self, module: &str) -> bool {
        self.modules_to_save.iter().any(|name| module.ends_with(name))
    }

    /// Whether the embedding is trained of a model whose output head it is too.
    pub fn trains_tied(&self, model: &CausalLm) -> bool {
        model.lm_head.is_none() && self.trains(EMBEDDING)
    }

    fn unfreeze(&self, model: CausalLm) -> Result<CausalLm, AdapterError> {
        for name in &self.modules_to_save {
            if name == "lm_head" && model.lm_head.is_none() {
                return Err(AdapterError::Tied);
            }
        }
        if self.trains_tied(&model) && !self.ensure_weight_tying {
            return Err(AdapterError::Untied);
        }
        if let Some((name, _)) = model.linears().find(|(name, linear)| self.saves(name) && matches!(linear.weight, Weight::Blocks(_))) {
            let reason = format!(
                "modules_to_save: {name} is stored in blocks, and what is trained whole is f32: another base_dtype, or a LoRA on it"
            );
            return Err(AdapterError::Setting(reason));
        }
        let mut found = vec![false; self.modules_to_save.len()];
        let model = train_where(model, |parameter| {
            let module = parameter.rsplit_once('.').map_or(parameter, |(module, _)| module);
            let hits = self.modules_to_save.iter().zip(&mut found).filter(|(name, _)| module.ends_with(name.as_str()));
            hits.map(|(_, found)| *found = true).count() > 0
        });
        match self.modules_to_save.iter().zip(found).find(|(_, found)| !found) {
            Some((name, _)) => Err(AdapterError::NoModule(name.clone())),
            None => Ok(model),
        }
    }
}

/// The model with adapters that have looked at the weights they stand beside, where there are any: of a model that is only written there are none.
pub(crate) fn settled(mut model: CausalLm) -> CausalLm {
    for (_, linear) in model.linears_mut() {
        if let Some(lora) = linear.lora.as_mut().filter(|_| linear.weight.has_values()) {
            lora.stand_beside(&linear.weight.stored());
        }
    }
    model
}

/// Asks for gradients of the parameters whose names `chosen` picks; those of adapters stay as they are.
pub fn train_where(model: CausalLm, chosen: impl FnMut(&str) -> bool) -> CausalLm {
    struct Unfreeze<F>(F);
    impl<F: FnMut(&str) -> bool> Change for Unfreeze<F> {
        fn change<const D: usize>(&mut self, name: &str, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if name.contains(".lora.") || !(self.0)(name) {
                return param;
            }
            // What is trained is f32, whatever it was read as.
            param.map(|weight| weight.cast(DType::F32)).set_require_grad(true)
        }
    }
    map(model, &mut Unfreeze(chosen))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(config: &LoraConfig, name: &str, layer: usize) -> Option<usize> {
        config.spec(name, layer, 0).unwrap().map(|s| s.rank)
    }

    #[test]
    fn targets_are_endings_expressions_or_everything() {
        let names = |n: &[&str]| Targets::Names(n.iter().map(ToString::to_string).collect());
        let config = |target_modules| LoraConfig { target_modules, ..LoraConfig::default() };
        assert_eq!(Targets::read("7,v_proj"), "7,v_proj", "what it means is for `parse` to say");
        let (q, up) = ("model.layers.3.self_attn.q_proj", "model.layers.11.mlp.up_proj");
        assert_eq!(ranks(&config(names(&["q_proj"])), q, 3), Some(16));
        assert_eq!(ranks(&config(names(&["q_proj"])), up, 11), None);
        assert_eq!(ranks(&config(names(&["proj"])), q, 3), None, "only whole parts of a name count");
        assert_eq!(ranks(&config(Targets::Pattern(r".*\.mlp\..*".into())), up, 11), Some(16));
        assert_eq!(ranks(&config(Targets::Pattern("mlp".into())), up, 11), None, "an expression matches the whole name");
        let all = LoraConfig {
            exclude_modules: names(&["up_proj"]),
            layers_to_transform: vec![3, 11],
            rank_pattern: [("q_proj".into(), 4), (r"layers\.1.*\.down_proj".into(), 2)].into(),
            ..LoraConfig::default()
        };
        assert_eq!((ranks(&all, q, 3), ranks(&all, up, 11), ranks(&all, q, 4)), (Some(4), None, None));
        assert_eq!(ranks(&all, "model.layers.11.mlp.down_proj", 11), Some(2));
        let both = LoraConfig { rank_pattern: [("q_proj".into(), 4), (r"layers\.3\..*".into(), 2)].into(), ..LoraConfig::default() };
        assert_eq!(ranks(&both, q, 3), Some(2), "the first in the alphabet, as in PEFT's files");
        let odd = LoraConfig { exclude_modules: Targets::Pattern(r".*\.3\..*".into()), ..LoraConfig::default() };
        assert_eq!((ranks(&odd, q, 3), ranks(&odd, up, 11)), (None, Some(16)));
        let wrong = config(Targets::Pattern("(".into()));
        assert!(wrong.spec(q, 0, 0).unwrap_err().to_string().starts_with("\"(\" is not a regular expression"));
    }

    #[test]
    fn scaling_is_pefts() {
        let config = LoraConfig { r: 4, lora_alpha: 8.0, ..LoraConfig::default() };
        assert_eq!(config.spec("a.q_proj", 0, 0).unwrap().unwrap().scaling, 2.0);
        let stable = LoraConfig { use_rslora: true, alpha_pattern: [("q_proj".into(), 6.0)].into(), ..config };
        assert_eq!(stable.spec("a.q_proj", 0, 0).unwrap().unwrap().scaling, 3.0);
    }
}
