//! `config.json` of a checkpoint, as written by transformers before and since version 5.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::ConfigError;
use super::rope::{RopeScaling, Rotation};
use crate::arch::Architecture;
use crate::provenance::{EDITS, Edit};

/// The shape of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// h.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Size of a head: not always h / heads.
    pub head_dim: usize,
    /// Rows of the embedding, padding included.
    pub vocab_size: usize,
    /// ε of the norms.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// How they are scaled for long texts.
    pub rope_scaling: Option<RopeScaling>,
    /// Tokens that a token sees, itself included; all if `None`.
    pub sliding_window: Option<usize>,
    /// The embedding is the output head.
    pub tie_word_embeddings: bool,
    /// Longest sequence the model was made for.
    pub max_position_embeddings: usize,
    /// q, k and v have a bias.
    pub qkv_bias: bool,
    /// Query and key heads are normalised.
    pub qk_norm: bool,
    /// Tokens that end a text.
    pub eos_token_ids: Vec<u32>,
    /// What `generation_config.json` says: how the model's makers have it speak. Empty where there is none.
    pub generation: Map<String, Value>,
    /// What was done to the weights by hand.
    pub edits: Vec<Edit>,
}

#[derive(Deserialize)]
struct Raw {
    model_type: String,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    rms_norm_eps: f64,
    rope_theta: Option<f64>,
    rope_parameters: Option<Value>,
    rope_scaling: Option<Value>,
    partial_rotary_factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
    tie_word_embeddings: Option<bool>,
    max_position_embeddings: usize,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    hidden_act: Option<String>,
    use_sliding_window: Option<bool>,
    sliding_window: Option<usize>,
    eos_token_id: Option<Value>,
    quantization_config: Option<Value>,
    /// What MLX calls the same, in older files alone.
    quantization: Option<Value>,
    #[serde(rename = "bellows.edits", default)]
    edits: Vec<Edit>,
}

/// One id, a list of them, or none.
fn ids(value: Option<&Value>) -> Vec<u32> {
    let list = match value {
        Some(Value::Array(list)) => list.as_slice(),
        Some(one) => std::slice::from_ref(one),
        None => &[],
    };
    list.iter().filter_map(|id| id.as_u64()?.try_into().ok()).collect()
}

/// The method by which the weights are stored in few bits, if they are. They are not where nothing is said of it, or both forms of bitsandbytes
/// are off.
fn quantised(raw: &Raw) -> Option<&str> {
    let mut said = [&raw.quantization_config, &raw.quantization].into_iter().flatten().filter_map(Value::as_object);
    let fields = said.find(|fields| !fields.is_empty())?;
    if ["load_in_4bit", "load_in_8bit"].iter().all(|form| fields.get(*form) == Some(&Value::Bool(false))) {
        return None;
    }
    let unnamed = if raw.quantization.is_some() { "MLX" } else { "its quantization_config names no method" };
    Some(fields.get("quant_method").and_then(Value::as_str).unwrap_or(unnamed))
}

/// More layers than any model has.
const MOST_LAYERS: usize = 10_000;

impl ModelConfig {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// What is missing, contradictory, or would be computed wrongly if it were ignored.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let raw: Raw = serde_json::from_str(text).map_err(|e| ConfigError::Malformed(e.to_string()))?;
        let architecture =
            Architecture::from_model_type(&raw.model_type).ok_or_else(|| ConfigError::Architecture(raw.model_type.clone()))?;
        let unsupported = |what: String| Err(ConfigError::Unsupported(what));
        if let Some(method) = quantised(&raw) {
            let instead = "name the original model, and train with --base-dtype nf4 where memory is short";
            return unsupported(format!("this checkpoint is quantised ({method}): {instead}"));
        }
        if raw.use_sliding_window == Some(true) {
            return unsupported("use_sliding_window is true: sliding-window attention is not supported".into());
        }
        if let Some(act) = raw.hidden_act.filter(|act| act != "silu") {
            return unsupported(format!("hidden_act is {act:?}: only silu is supported"));
        }
        if raw.mlp_bias == Some(true) || (raw.attention_bias == Some(true) && architecture != Architecture::Qwen2) {
            return unsupported("biases in the MLP or in o_proj are not supported".into());
        }
        // Before version 5 of transformers the one, since then the other; θ and the part of a head that is rotated moved in there with it.
        let mut parameters = raw.rope_parameters.as_ref().and_then(Value::as_object).cloned().unwrap_or_default();
        parameters.extend(raw.rope_scaling.as_ref().and_then(Value::as_object).cloned().unwrap_or_default());
        let among = |key: &str| parameters.get(key).and_then(Value::as_f64);
        if let Some(part) = among("partial_rotary_factor").or(raw.partial_rotary_factor).filter(|part| *part != 1.0) {
            return unsupported(format!("partial_rotary_factor is {part}: heads that are rotated in part are not supported"));
        }
        let head_dim = raw.head_dim.unwrap_or(raw.hidden_size / raw.num_attention_heads.max(1));
        let rope_theta = among("rope_theta").or(raw.rope_theta).unwrap_or(10_000.0);
        let rotation = Rotation { theta: rope_theta, dim: head_dim, longest: raw.max_position_embeddings };
        let config = Self {
            architecture,
            hidden_size: raw.hidden_size,
            intermediate_size: raw.intermediate_size,
            num_hidden_layers: raw.num_hidden_layers,
            num_attention_heads: raw.num_attention_heads,
            num_key_value_heads: raw.num_key_value_heads.unwrap_or(raw.num_attention_heads),
            head_dim,
            vocab_size: raw.vocab_size,
            rms_norm_eps: raw.rms_norm_eps,
            rope_theta,
            rope_scaling: RopeScaling::read(&parameters, raw.original_max_position_embeddings, rotation)?,
            sliding_window: raw.sliding_window.filter(|_| architecture.windowed()),
            tie_word_embeddings: raw.tie_word_embeddings.unwrap_or(false),
            max_position_embeddings: raw.max_position_embeddings,
            qkv_bias: architecture.qkv_bias(),
            qk_norm: architecture.qk_norm(),
            eos_token_ids: ids(raw.eos_token_id.as_ref()),
            generation: Map::new(),
            edits: raw.edits,
        };
        config.check()?;
        Ok(config)
    }

    /// This shape with what `generation_config.json` says: its tokens end a text too.
    ///
    /// # Errors
    /// Not a JSON object.
    pub fn with_generation(mut self, text: &str) -> Result<Self, ConfigError> {
        self.generation = serde_json::from_str(text).map_err(|e| ConfigError::Malformed(e.to_string()))?;
        let more = ids(self.generation.get("eos_token_id"));
        self.eos_token_ids.extend(more.into_iter().filter(|id| !self.eos_token_ids.contains(id)).collect::<Vec<_>>());
        Ok(self)
    }

    /// What rotary frequencies follow from.
    pub fn rotation(&self) -> Rotation {
        Rotation { theta: self.rope_theta, dim: self.head_dim, longest: self.max_position_embeddings }
    }

    /// That the sizes belong together.
    ///
    /// # Errors
    /// A sentence naming the sizes.
    pub fn check(&self) -> Result<(), ConfigError> {
        let sizes = |what: String| Err(ConfigError::Sizes(what));
        let positive = [
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("vocab_size", self.vocab_size),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, n)| *n == 0) {
            return sizes(format!("{name} is 0"));
        }
        // What is planned of layers is planned one by one, before the weights are seen.
        if self.num_hidden_layers > MOST_LAYERS {
            return sizes(format!("num_hidden_layers is {}", self.num_hidden_layers));
        }
        for (name, x) in [("rms_norm_eps", self.rms_norm_eps), ("rope_theta", self.rope_theta)] {
            if !(x.is_finite() && x > 0.0) {
                return sizes(format!("{name} is {x}"));
            }
        }
        let (heads, kv) = (self.num_attention_heads, self.num_key_value_heads);
        if !heads.is_multiple_of(kv) {
            return sizes(format!("{heads} query heads cannot share {kv} key heads evenly"));
        }
        if self.sliding_window == Some(0) {
            return sizes("sliding_window is 0".into());
        }
        if !self.head_dim.is_multiple_of(2) {
            return sizes(format!("head_dim {} is odd: rotary positions need pairs", self.head_dim));
        }
        Ok(())
    }

    /// That `stored` values can fill a model of these sizes: asked before anything is allocated for it.
    ///
    /// # Errors
    /// A sentence naming both numbers.
    pub fn fits(&self, stored: usize) -> Result<(), ConfigError> {
        // In floating point, where no product of sizes overflows.
        let [h, i, v, d] = [self.hidden_size, self.intermediate_size, self.vocab_size, self.head_dim].map(|n| n as f64);
        let (heads, kv) = (self.num_attention_heads as f64, self.num_key_value_heads as f64);
        let matrices = v * h + self.num_hidden_layers as f64 * h * (2.0 * d * (heads + kv) + 3.0 * i);
        if matrices > stored as f64 {
            return Err(ConfigError::Sizes(format!("the sizes ask for {matrices:.4e} values, and the weights hold {stored}")));
        }
        Ok(())
    }

    /// `config.json` for a directory that transformers loads.
    pub fn to_json(&self, dtype: &str) -> Value {
        let eos = match self.eos_token_ids.as_slice() {
            [] => Value::Null,
            [one] => Value::from(*one),
            many => Value::from(many.to_vec()),
        };
        let mut json = serde_json::json!({
            "architectures": [self.architecture.class_name()],
            "model_type": self.architecture.model_type(),
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": self.tie_word_embeddings,
            "max_position_embeddings": self.max_position_embeddings,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "use_cache": true,
            "torch_dtype": dtype,
            "eos_token_id": eos,
        });
        if self.architecture.windowed() {
            json["sliding_window"] = self.sliding_window.into();
        }
        if let Some(scaling) = &self.rope_scaling {
            json["rope_scaling"] = scaling.to_json();
        }
        if let (Value::Object(json), Value::Object(own)) = (&mut json, self.architecture.config_fields()) {
            json.extend(own);
            if !self.edits.is_empty() {
                json.insert(EDITS.into(), serde_json::json!(self.edits));
            }
        }
        json
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn weights_in_few_bits_are_refused_by_the_name_of_their_method() {
        let plain: Value = serde_json::from_str(include_str!("../../tests/golden/qwen2/model/config.json")).unwrap();
        let read = |fields: &[(&str, Value)]| {
            let mut config = plain.clone();
            fields.iter().for_each(|(key, value)| config[*key] = value.clone());
            ModelConfig::from_json(&config.to_string())
        };
        let refused = |fields: &[(&str, Value)], method: &str| {
            let error = read(fields).unwrap_err().to_string();
            assert!(error.starts_with(&format!("this checkpoint is quantised ({method}): name the original")), "{error}");
        };
        for method in ["bitsandbytes", "gptq", "awq", "fp8", "compressed-tensors", "mxfp4"] {
            let config = json!({ "quant_method": method, "load_in_4bit": true, "load_in_8bit": false });
            refused(&[("quantization_config", config)], method);
        }
        let bits = json!({ "bits": 4, "group_size": 64 });
        refused(&[("quantization_config", bits.clone())], "its quantization_config names no method");
        refused(&[("quantization", bits.clone())], "MLX");
        refused(&[("quantization", bits.clone()), ("quantization_config", bits)], "MLX");
        let off = json!({ "quant_method": "bitsandbytes", "load_in_4bit": false, "load_in_8bit": false });
        for nothing in [Value::Null, json!({}), off] {
            assert_eq!(read(&[("quantization_config", nothing)]), read(&[]));
        }
    }
}
