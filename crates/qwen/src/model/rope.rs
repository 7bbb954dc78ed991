//! Rotary positions that are scaled, for texts longer than a model was pre-trained on: `linear` and `dynamic` (NTK-aware), YaRN (Peng et al.
//! 2023), `llama3` (Llama 3.1's) and LongRoPE (Ding et al. 2024), under the names and with the formulas of transformers.
//!
//! All of them change the frequencies `θ^(-2j/d)`, whatever the length of a text; YaRN and LongRoPE scale cosines and sines too.

use std::f64::consts::PI;

use serde_json::{Map, Value, json};

use super::error::ConfigError;

/// How the frequencies of rotary positions are scaled.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Every frequency divided by `factor`.
    Linear {
        /// s.
        factor: f64,
    },
    /// θ grows with the longest text of a batch, once that is longer than `max_position_embeddings`.
    Dynamic {
        /// s.
        factor: f64,
    },
    /// Frequencies of long waves divided by `factor`, those of short ones kept, those between blended.
    Llama3 {
        /// s.
        factor: f64,
        /// Waves longer than `original / low_freq_factor` tokens are long.
        low_freq_factor: f64,
        /// Waves shorter than `original / high_freq_factor` tokens are short.
        high_freq_factor: f64,
        /// Tokens of the texts in pre-training.
        original: usize,
    },
    /// Coordinates that turn less than `beta_slow` times in a text of pre-training are divided by `factor`, those that turn more than
    /// `beta_fast` times kept, with a ramp between.
    Yarn {
        /// s.
        factor: f64,
        /// Tokens of the texts in pre-training.
        original: usize,
        /// On cosines and sines.
        attention_factor: f64,
        /// Turns from which a frequency is kept.
        beta_fast: f64,
        /// Turns up to which it is divided by s.
        beta_slow: f64,
        /// The ramp begins and ends at whole coordinates.
        truncate: bool,
    },
    /// Each frequency divided by a number of its own: one set for batches of texts up to `original` tokens, one for longer ones.
    LongRope {
        /// d / 2 divisors.
        short: Vec<f64>,
        /// d / 2 divisors.
        long: Vec<f64>,
        /// On cosines and sines.
        attention_factor: f64,
        /// Tokens of the texts in pre-training.
        original: usize,
    },
}

/// What a description of frequencies rests on.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    /// θ.
    pub theta: f64,
    /// d: coordinates of a head.
    pub dim: usize,
    /// `max_position_embeddings`.
    pub longest: usize,
}

impl RopeScaling {
    /// What `rope_scaling` or `rope_parameters` of a `config.json` say; `None` where nothing is scaled. `original` is the configuration's own
    /// `original_max_position_embeddings`, which goes before the one among the parameters.
    ///
    /// # Errors
    /// A type that is not built here, a number that is missing, not finite or not above 0, divisors of another count than d / 2.
    pub(crate) fn read(parameters: &Map<String, Value>, original: Option<usize>, of: Rotation) -> Result<Option<Self>, ConfigError> {
        let kind = ["rope_type", "type"].iter().find_map(|key| parameters.get(*key)).and_then(Value::as_str).unwrap_or("default");
        let optional = |key: &str| match parameters.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value
                .as_f64()
                .filter(|x| x.is_finite() && *x > 0.0)
                .map(Some)
                .ok_or_else(|| ConfigError::Malformed(format!("rope scaling {kind}: {key} is {value}, and must be a number above 0"))),
        };
        let missing = |key: &str| ConfigError::Malformed(format!("rope scaling {kind}: there is no {key}"));
        let need = |key: &str| optional(key)?.ok_or_else(|| missing(key));
        let inside = optional("original_max_position_embeddings")?.map(|n| n as usize);
        let original = original.or(inside).unwrap_or(of.longest);
        let stretch = of.longest as f64 / original.max(1) as f64;
        Ok(Some(match kind {
            "default" => return Ok(None),
            "linear" => Self::Linear { factor: need("factor")? },
            "dynamic" if of.dim < 4 => return Err(ConfigError::Unsupported("rope scaling dynamic needs heads of 4 or more".into())),
            "dynamic" => Self::Dynamic { factor: need("factor")? },
            "llama3" => {
                let (low, high) = (need("low_freq_factor")?, need("high_freq_factor")?);
                if low >= high {
                    let what = format!("rope scaling llama3: low_freq_factor {low} is not below high_freq_factor {high}");
                    return Err(ConfigError::Malformed(what));
                }
                Self::Llama3 { factor: need("factor")?, low_freq_factor: low, high_freq_factor: high, original }
            }
            "yarn" => {
                let factor = optional("factor")?.unwrap_or(stretch);
                let scale = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
                let own = match (optional("mscale")?, optional("mscale_all_dim")?) {
                    (Some(one), Some(all)) => scale(one) / scale(all),
                    _ => scale(1.0),
                };
                Self::Yarn {
                    factor,
                    original,
                    attention_factor: optional("attention_factor")?.unwrap_or(own),
                    beta_fast: optional("beta_fast")?.unwrap_or(32.0),
                    beta_slow: optional("beta_slow")?.unwrap_or(1.0),
                    truncate: parameters.get("truncate").and_then(Value::as_bool).unwrap_or(true),
                }
            }
            "longrope" => {
                let divisors = |key: &str| {
                    let list: Vec<f64> = parameters
                        .get(key)
                        .and_then(Value::as_array)
                        .ok_or_else(|| missing(key))?
                        .iter()
                        .filter_map(Value::as_f64)
                        .collect();
                    match list.len() == of.dim / 2 && list.iter().all(|x| x.is_finite() && *x > 0.0) {
                        true => Ok(list),
                        false => {
                            Err(ConfigError::Malformed(format!("rope scaling longrope: {key} must be {} numbers above 0", of.dim / 2)))
                        }
                    }
                };
                let factor = optional("factor")?.unwrap_or(stretch);
                let own = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() };
                let attention_factor = optional("attention_factor")?.unwrap_or(own);
                Self::LongRope { short: divisors("short_factor")?, long: divisors("long_factor")?, attention_factor, original }
            }
            other => {
                let what = format!("rope scaling of type {other:?} is not supported: there are linear, dynamic, llama3, yarn and longrope");
                return Err(ConfigError::Unsupported(what));
            }
        }))
    }

    /// It under the names of transformers, θ left out.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
            Self::Dynamic { factor } => json!({ "rope_type": "dynamic", "factor": factor }),
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original } => json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": original,
            }),
            Self::Yarn { factor, original, attention_factor, beta_fast, beta_slow, truncate } => json!({
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": original,
                "attention_factor": attention_factor,
                "beta_fast": beta_fast,
                "beta_slow": beta_slow,
                "truncate": truncate,
            }),
            Self::LongRope { short, long, attention_factor, original } => json!({
                "rope_type": "longrope",
                "short_factor": short,
                "long_factor": long,
                "attention_factor": attention_factor,
                "original_max_position_embeddings": original,
            }),
        }
    }

    /// The factor on cosines and sines.
    pub fn attention_factor(&self) -> f64 {
        match self {
            Self::Yarn { attention_factor, .. } | Self::LongRope { attention_factor, .. } => *attention_factor,
            Self::Linear { .. } | Self::Dynamic { .. } | Self::Llama3 { .. } => 1.0,
        }
    }

    /// The scaled frequency of each of the d / 2 rotations, in radians a token, for a batch whose longest text has `tokens`.
    ///
    /// transformers keeps the frequencies that `dynamic` has once grown to until a text is short again; these follow from the batch alone.
    pub fn frequencies(&self, of: Rotation, tokens: usize) -> Vec<f64> {
        let plain = (0..of.dim / 2).map(|j| of.frequency(j));
        match self {
            Self::Linear { factor } => plain.map(|f| f / factor).collect(),
            Self::Dynamic { factor } => {
                let (d, longest) = (of.dim as f64, of.longest as f64);
                let grown = factor * (tokens as f64).max(longest) / longest - (factor - 1.0);
                let theta = of.theta * grown.powf(d / (d - 2.0));
                (0..of.dim / 2).map(|j| Rotation { theta, ..of }.frequency(j)).collect()
            }
            Self::Llama3 { factor, low_freq_factor: low, high_freq_factor: high, original } => plain
                .map(|f| {
                    let waves = *original as f64 * f / (2.0 * PI);
                    let kept = ((waves - low) / (high - low)).clamp(0.0, 1.0);
                    (1.0 - kept) * f / factor + kept * f
                })
                .collect(),
            Self::Yarn { factor, original, beta_fast, beta_slow, truncate, .. } => {
                // The coordinate that turns so often in a text of pre-training.
                let turning = |times: f64| of.dim as f64 * (*original as f64 / (times * 2.0 * PI)).ln() / (2.0 * of.theta.ln());
                let (low, high) = (turning(*beta_fast), turning(*beta_slow));
                let (low, high) = if *truncate { (low.floor(), high.ceil()) } else { (low, high) };
                let (low, high) = (low.max(0.0), high.min(of.dim as f64 - 1.0));
                let width = if low == high { 0.001 } else { high - low };
                let divided = |j: usize| ((j as f64 - low) / width).clamp(0.0, 1.0);
                plain.enumerate().map(|(j, f)| divided(j) * f / factor + (1.0 - divided(j)) * f).collect()
            }
            Self::LongRope { short, long, original, .. } => {
                let divisors = if tokens > *original { long } else { short };
                plain.zip(divisors).map(|(f, divisor)| f / divisor).collect()
            }
        }
    }
}

impl Rotation {
    /// `θ^(-2j/d)`.
    pub fn frequency(self, j: usize) -> f64 {
        1.0 / self.theta.powf(2.0 * j as f64 / self.dim as f64)
    }
}
