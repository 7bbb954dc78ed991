//! Text from a model: one token after another, keys and values of what came before kept.

use bellows_learner::Rng;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::model::pass::{KvCache, Pass};
use crate::model::{CausalLm, ModelConfig};

/// How the next token is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Most tokens to add.
    pub max_new_tokens: usize,
    /// Logits are divided by this; 0 takes the likeliest token.
    pub temperature: f64,
    /// Only the likeliest k tokens; 0 takes all.
    pub top_k: usize,
    /// Only the likeliest tokens that together reach this probability.
    pub top_p: f64,
    /// Logits of tokens that were there before are divided by this where positive and multiplied where negative (Keskar et al. 2019).
    pub repetition_penalty: f64,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { max_new_tokens: 256, temperature: 0.7, top_k: 20, top_p: 0.8, repetition_penalty: 1.0, seed: 0 }
    }
}

/// Why no text comes.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// A setting of [`Sampling`].
    #[error("{name} is {value}, and must be {range}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: f64,
        /// What it may be.
        range: &'static str,
    },
    /// Nothing to go on with.
    #[error("the prompt is empty: a model needs a token to go on with")]
    Empty,
    /// The device cannot hand the logits back.
    #[error("reading token {step} back from the device: {reason}")]
    Device {
        /// The token, from 0.
        step: usize,
        /// Why not.
        reason: String,
    },
}

impl Sampling {
    /// Whether every setting is in its range.
    ///
    /// # Errors
    /// [`GenerateError::Setting`].
    pub fn check(&self) -> Result<(), GenerateError> {
        let Self { temperature, top_p, repetition_penalty, .. } = *self;
        let settings = [
            ("temperature", temperature, temperature >= 0.0, "at least 0"),
            ("top_p", top_p, top_p > 0.0 && top_p <= 1.0, "above 0 and at most 1"),
            ("repetition_penalty", repetition_penalty, repetition_penalty > 0.0, "above 0"),
        ];
        match settings.into_iter().find(|&(_, value, fits, _)| !(fits && value.is_finite())) {
            Some((name, value, _, range)) => Err(GenerateError::Setting { name, value, range }),
            None => Ok(()),
        }
    }
}

/// Continues `prompt` until a token of `stop`, the limit, or `false` from `each`, which gets every new token. Returns the new tokens,
/// without the one that stopped it.
///
/// # Errors
/// See [`GenerateError`].
pub fn generate(
    model: &CausalLm,
    config: &ModelConfig,
    prompt: &[u32],
    sampling: &Sampling,
    stop: &[u32],
    device: &Device,
    mut each: impl FnMut(u32) -> bool,
) -> Result<Vec<u32>, GenerateError> {
    sampling.check()?;
    if prompt.is_empty() {
        return Err(GenerateError::Empty);
    }
    let mut caches = vec![KvCache::default(); config.num_hidden_layers];
    let (mut all, mut past) = (prompt.to_vec(), 0);
    for step in 0..sampling.max_new_tokens {
        let fresh: Vec<i32> = all[past..].iter().map(|&id| id as i32).collect();
        let n = fresh.len();
        let pass = Pass::after(past, 1, n, config, device);
        let ids = Tensor::<2, Int>::from_data(TensorData::new(fresh, [1, n]), device);
        let logits = model.next_logits(ids, &pass, &mut caches).try_into_vec_as::<f32>();
        let logits = logits.map_err(|e| GenerateError::Device { step, reason: e.to_string() })?;
        past = all.len();
        let next = choose(&logits, &all, sampling, step);
        if stop.contains(&next) {
            break;
        }
        all.push(next);
        if !each(next) {
            break;
        }
    }
    Ok(all.split_off(prompt.len()))
}

/// The next token under `sampling`: draw number `step` of its seed.
pub fn choose(logits: &[f32], before: &[u32], sampling: &Sampling, step: usize) -> u32 {
    let mut logits: Vec<f64> = logits.iter().map(|&x| f64::from(x)).collect();
    if sampling.repetition_penalty != 1.0 {
        let mut seen = before.to_vec();
        seen.sort_unstable();
        seen.dedup();
        for logit in seen.iter().filter_map(|&id| Some(id as usize).filter(|&id| id < logits.len())).collect::<Vec<_>>() {
            let x = &mut logits[logit];
            *x = if *x > 0.0 { *x / sampling.repetition_penalty } else { *x * sampling.repetition_penalty };
        }
    }
    let mut order: Vec<usize> = (0..logits.len()).collect();
    // Equal logits keep the order of their ids.
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    if sampling.temperature <= 0.0 {
        return order.first().map_or(0, |&id| id as u32);
    }
    if sampling.top_k > 0 {
        order.truncate(sampling.top_k);
    }
    let best = order.first().map_or(0.0, |&id| logits[id]);
    let weights: Vec<f64> = order.iter().map(|&id| ((logits[id] - best) / sampling.temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut kept = weights.len();
    let mut sum = 0.0;
    for (i, weight) in weights.iter().enumerate() {
        sum += weight / total;
        if sum >= sampling.top_p {
            kept = i + 1;
            break;
        }
    }
    let mass: f64 = weights[..kept].iter().sum();
    let mut left = Rng::new(sampling.seed, "sample", 0, step as u64).unit() * mass;
    for (weight, &id) in weights[..kept].iter().zip(&order) {
        left -= weight;
        if left < 0.0 {
            return id as u32;
        }
    }
    order[kept - 1] as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greedy() -> Sampling {
        Sampling { temperature: 0.0, ..Sampling::default() }
    }

    #[test]
    fn greedy_takes_the_likeliest_and_the_penalty_counts() {
        let logits = [1.0, 3.0, 2.9, -1.0];
        assert_eq!(choose(&logits, &[], &greedy(), 0), 1);
        assert_eq!(choose(&logits, &[1, 1], &Sampling { repetition_penalty: 1.5, ..greedy() }, 0), 2);
    }

    #[test]
    fn settings_out_of_range_and_an_empty_prompt_are_refused() {
        assert!(Sampling::default().check().is_ok() && greedy().check().is_ok());
        let wrong = [
            ("temperature", Sampling { temperature: -1.0, ..greedy() }),
            ("temperature", Sampling { temperature: f64::NAN, ..greedy() }),
            ("top_p", Sampling { top_p: 0.0, ..greedy() }),
            ("top_p", Sampling { top_p: 1.1, ..greedy() }),
            ("repetition_penalty", Sampling { repetition_penalty: 0.0, ..greedy() }),
            ("repetition_penalty", Sampling { repetition_penalty: f64::INFINITY, ..greedy() }),
        ];
        for (setting, sampling) in wrong {
            let error = sampling.check().unwrap_err();
            assert!(matches!(error, GenerateError::Setting { name, .. } if name == setting), "{error}");
        }
        let device = Device::flex();
        let base = crate::base::Base::tiny(["a b"], 0, &device).unwrap();
        let none = generate(&base.model, &base.config, &[], &greedy(), &[], &device, |_| true);
        assert!(matches!(none, Err(GenerateError::Empty)));
    }

    #[test]
    fn draws_follow_the_probabilities_within_what_is_allowed() {
        let logits = [2.0f32.ln(), 1.0f32.ln(), 1.0f32.ln(), -20.0];
        let count = |sampling: &Sampling| {
            let mut counts = [0; 4];
            (0..4000).for_each(|step| counts[choose(&logits, &[], sampling, step) as usize] += 1);
            counts
        };
        let free = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, ..Sampling::default() };
        let counts = count(&free);
        assert!((1850..2150).contains(&counts[0]) && (850..1150).contains(&counts[1]), "{counts:?}");
        assert_eq!(count(&Sampling { top_k: 1, ..free.clone() }), [4000, 0, 0, 0]);
        assert_eq!(count(&Sampling { top_p: 0.6, ..free.clone() })[2..], [0, 0], "0.5 + 0.25 reaches 0.6");
        assert_eq!(choose(&logits, &[], &free, 7), choose(&logits, &[], &free, 7));
    }
}
