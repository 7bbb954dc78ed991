//! Scaled rotary positions in a GGUF: llama.cpp knows `linear` and YaRN by metadata, and for the Llama layout a divisor for each frequency in
//! the tensor `rope_freqs.weight`, which is how it has Llama 3's.

use bellows_weights::gguf::{Gguf, Value};

use crate::arch::Architecture;
use crate::model::rope::{RopeScaling, Rotation};
use crate::model::{ConfigError, ModelConfig};

/// The tensor of divisors, `[d / 2]`.
pub(crate) const FREQS: &str = "rope_freqs.weight";

/// Whether llama.cpp looks for [`FREQS`] in files of a family.
fn has_freqs(architecture: Architecture) -> bool {
    architecture.gguf_name() == "llama"
}

/// What a file says of scaling.
///
/// # Errors
/// A kind that is not built here, numbers that are missing.
pub(crate) fn read(file: &Gguf, architecture: Architecture, of: Rotation) -> Result<Option<RopeScaling>, ConfigError> {
    let value = |key: &str| file.metadata().get(&format!("{}.rope.scaling.{key}", architecture.gguf_name()));
    let kind = value("type").and_then(|v| v.as_str()).unwrap_or("none");
    let mut parameters = serde_json::Map::new();
    if let Some(factor) = value("factor").and_then(Value::as_f32) {
        parameters.insert("factor".into(), f64::from(factor).into());
    }
    let original = value("original_context_length").and_then(Value::as_u64).map(|n| n as usize);
    match kind {
        "linear" | "yarn" => {
            parameters.insert("rope_type".into(), kind.into());
            RopeScaling::read(&parameters, original, of)
        }
        "none" if has_freqs(architecture) && file.tensors().contains_key(FREQS) => {
            let divisors = file.tensor_f32(FREQS).map_err(|e| ConfigError::Malformed(e.to_string()))?;
            let divisors: Vec<f64> = divisors.into_iter().map(f64::from).collect();
            let wrong = divisors.len() != of.dim / 2 || divisors.iter().any(|x| !(x.is_finite() && *x > 0.0));
            if wrong {
                return Err(ConfigError::Malformed(format!("{FREQS} must be {} numbers above 0", of.dim / 2)));
            }
            // The same divisors at every length.
            Ok(Some(RopeScaling::LongRope { short: divisors.clone(), long: divisors, attention_factor: 1.0, original: of.longest }))
        }
        "none" => Ok(None),
        other => {
            Err(ConfigError::Unsupported(format!("rope scaling of type {other:?} is not supported in a GGUF: there are linear and yarn")))
        }
    }
}

/// A model's scaling as a GGUF has it.
#[derive(Default)]
pub(crate) struct Stored {
    /// Keys behind `{architecture}.rope.scaling.`.
    pub(crate) metadata: Vec<(&'static str, Value)>,
    /// [`FREQS`].
    pub(crate) freqs: Option<Vec<f32>>,
    /// What llama.cpp will do otherwise, in a sentence.
    pub(crate) line: Option<String>,
}

/// The scaling of a model as a GGUF has it.
///
/// # Errors
/// One that llama.cpp computes in another way.
pub(crate) fn stored(config: &ModelConfig) -> Result<Stored, ConfigError> {
    let Some(scaling) = &config.rope_scaling else { return Ok(Stored::default()) };
    let refuse =
        |what: &str| Err(ConfigError::Unsupported(format!("llama.cpp has no rope scaling like this model's ({what}): no GGUF is written")));
    let typed = |kind: &str, factor: f64| vec![("type", kind.into()), ("factor", Value::F32(factor as f32))];
    let rotation = config.rotation();
    Ok(match scaling {
        RopeScaling::Linear { factor } => Stored { metadata: typed("linear", *factor), ..Stored::default() },
        RopeScaling::Yarn { factor, original, .. } => {
            let mut plain = serde_json::json!({ "rope_type": "yarn", "factor": factor });
            let plain = plain.as_object_mut().map(std::mem::take).unwrap_or_default();
            if RopeScaling::read(&plain, Some(*original), rotation).ok().flatten().as_ref() != Some(scaling) {
                return refuse("yarn with constants of its own");
            }
            let mut metadata = typed("yarn", *factor);
            metadata.push(("original_context_length", Value::U32(*original as u32)));
            Stored { metadata, ..Stored::default() }
        }
        RopeScaling::Dynamic { .. } => {
            let longest = config.max_position_embeddings;
            let line = format!("llama.cpp has no dynamic rope scaling: texts longer than {longest} tokens are read otherwise there");
            Stored { line: Some(line), ..Stored::default() }
        }
        RopeScaling::LongRope { short, long, attention_factor, .. } if short != long || *attention_factor != 1.0 => {
            return refuse("longrope");
        }
        RopeScaling::LongRope { .. } | RopeScaling::Llama3 { .. } if !has_freqs(config.architecture) => {
            return refuse(&format!("llama3 in the layout {}", config.architecture.model_type()));
        }
        RopeScaling::LongRope { .. } | RopeScaling::Llama3 { .. } => {
            let scaled = scaling.frequencies(rotation, 0);
            let freqs = scaled.iter().enumerate().map(|(j, f)| (rotation.frequency(j) / f) as f32);
            Stored { freqs: Some(freqs.collect()), ..Stored::default() }
        }
    })
}
