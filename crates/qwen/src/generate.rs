//! Text from a model: one token after another, keys and values of what came before kept.

use std::cmp::Ordering;

use bellows_chat::{Template, Tokenizer};
use bellows_exit::{Coded, Exit};
use bellows_learner::Rng;
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde_json::{Map, Value};

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

impl Coded for GenerateError {
    fn exit(&self) -> Exit {
        match self {
            Self::Setting { .. } | Self::Empty => Exit::Usage,
            Self::Device { .. } => Exit::Failed,
        }
    }
}

impl Sampling {
    /// What a model's `generation_config.json` asks for, as transformers reads it. Where it says neither that nor whether to draw, the
    /// defaults.
    pub fn of(generation: &Map<String, Value>) -> Self {
        let number = |key: &str| generation.get(key).and_then(Value::as_f64);
        let draws = generation.get("do_sample").and_then(Value::as_bool);
        let plain = match draws {
            Some(true) => Self { temperature: 1.0, top_k: 50, top_p: 1.0, ..Self::default() },
            _ => Self::default(),
        };
        Self {
            temperature: if draws == Some(false) { 0.0 } else { number("temperature").unwrap_or(plain.temperature) },
            top_k: generation.get("top_k").and_then(Value::as_u64).map_or(plain.top_k, |k| k as usize),
            top_p: number("top_p").unwrap_or(plain.top_p),
            repetition_penalty: number("repetition_penalty").unwrap_or(plain.repetition_penalty),
            ..plain
        }
    }

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

/// The tokens that end an answer: those the model names, its tokenizer's, the end of a turn in the `template` that it answers in, and that of ChatML,
/// which base models know too.
pub fn stop_ids(shape: &ModelConfig, tokenizer: &Tokenizer, template: Option<&Template>) -> Vec<u32> {
    let turn = template.and_then(Template::end_of_turn).and_then(|token| tokenizer.id(&token));
    shape.eos_token_ids.iter().copied().chain(tokenizer.eos()).chain(turn).chain(tokenizer.id("<|im_end|>")).collect()
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
    let (most, limit) = (prompt.len() + sampling.max_new_tokens, config.max_position_embeddings);
    if most > limit {
        tracing::warn!("prompt and answer may have {most} tokens, and the model was made for at most {limit}");
    }
    let mut reader = Reader { model, config, device, caches: vec![KvCache::default(); config.num_hidden_layers], past: 0 };
    let mut all = prompt.to_vec();
    for step in 0..sampling.max_new_tokens {
        let logits = reader.read(&all[reader.past..], AT_ONCE).ok_or(GenerateError::Empty)?.try_into_vec_as::<f32>();
        let logits = logits.map_err(|e| GenerateError::Device { step, reason: e.to_string() })?;
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

/// Tokens that are read at once: scores and mask take memory in proportion to these times all that were read before.
const AT_ONCE: usize = 512;

/// A model that has read `past` tokens.
struct Reader<'a> {
    model: &'a CausalLm,
    config: &'a ModelConfig,
    device: &'a Device,
    caches: Vec<KvCache>,
    past: usize,
}

impl Reader<'_> {
    /// Reads `tokens`, so many at once. The logits of the token after them, `[1, vocabulary]`; `None` if there are none.
    fn read(&mut self, tokens: &[u32], at_once: usize) -> Option<Tensor<2>> {
        let longest = self.past + tokens.len();
        let part = |part: &[u32]| {
            let pass = Pass::after(self.past, 1, part.len(), longest, self.config, self.device);
            let ids: Vec<i32> = part.iter().map(|&id| id as i32).collect();
            let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, part.len()]), self.device);
            self.past += part.len();
            self.model.next_logits(ids, &pass, &mut self.caches)
        };
        tokens.chunks(at_once).map(part).last()
    }
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
    let Some(likeliest) = (0..logits.len()).min_by(|a, b| likelier(&logits, a, b)) else { return 0 };
    if sampling.temperature <= 0.0 {
        return likeliest as u32;
    }
    let mut order: Vec<usize> = (0..logits.len()).collect();
    if sampling.top_k > 0 && sampling.top_k < order.len() {
        rank(&mut order, &logits, sampling.top_k);
        order.truncate(sampling.top_k);
    }
    let weight = |id: usize| ((logits[id] - logits[likeliest]) / sampling.temperature).exp();
    let total: f64 = order.iter().map(|&id| weight(id)).sum();
    // A sorted vocabulary is rarely needed: a few tokens reach top_p.
    let mut sorted = order.len().min(64);
    let kept = loop {
        rank(&mut order, &logits, sorted);
        let mut sum = 0.0;
        let reached = order[..sorted].iter().position(|&id| {
            sum += weight(id) / total;
            sum >= sampling.top_p
        });
        match reached {
            Some(last) => break last + 1,
            None if sorted == order.len() => break sorted,
            None => sorted = order.len().min(8 * sorted),
        }
    };
    let mass: f64 = order[..kept].iter().map(|&id| weight(id)).sum();
    let mut left = Rng::new(sampling.seed, "sample", 0, step as u64).unit() * mass;
    for &id in &order[..kept] {
        left -= weight(id);
        if left < 0.0 {
            return id as u32;
        }
    }
    order[kept - 1] as u32
}

/// The likelier token first; of equal ones the one with the smaller id.
fn likelier(logits: &[f64], a: &usize, b: &usize) -> Ordering {
    logits[*b].total_cmp(&logits[*a]).then(a.cmp(b))
}

/// Puts the likeliest `n` tokens of `order` first, in order.
fn rank(order: &mut [usize], logits: &[f64], n: usize) {
    if n < order.len() {
        order.select_nth_unstable_by(n, |a, b| likelier(logits, a, b));
    }
    order[..n].sort_unstable_by(|a, b| likelier(logits, a, b));
}

#[cfg(test)]
mod tests {
    use bellows_chat::Jinja;
    use serde_json::json;

    use super::*;
    use crate::model::rope::RopeScaling;

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
    fn a_model_speaks_as_its_makers_say() {
        let of = |json: serde_json::Value| {
            let Sampling { temperature, top_k, top_p, repetition_penalty, .. } = Sampling::of(json.as_object().unwrap());
            (temperature, top_k, top_p, repetition_penalty)
        };
        assert_eq!(of(json!({ "eos_token_id": 2 })), (0.7, 20, 0.8, 1.0));
        let qwen = json!({ "do_sample": true, "temperature": 0.6, "top_k": 30, "top_p": 0.95, "repetition_penalty": 1.1 });
        assert_eq!(of(qwen), (0.6, 30, 0.95, 1.1));
        assert_eq!(of(json!({ "do_sample": true })), (1.0, 50, 1.0, 1.0));
        assert_eq!(of(json!({ "do_sample": false, "temperature": 0.6, "top_p": 0.95 })).0, 0.0);
        assert_eq!(of(json!({ "temperature": "hot", "top_k": -1 })), (0.7, 20, 0.8, 1.0));
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
    fn a_prompt_read_in_parts_is_the_same_prompt() {
        let device = Device::flex();
        let base = crate::base::Base::tiny(["a b"], 0, &device).unwrap();
        let model = &base.model;
        let prompt: Vec<u32> = (0..23).map(|i| (i * 37 + 5) % 250).collect();
        let logits = |config: &ModelConfig, at_once| {
            let mut reader = Reader { model, config, device: &device, caches: vec![KvCache::default(); config.num_hidden_layers], past: 0 };
            let logits = reader.read(&prompt, at_once).unwrap();
            assert_eq!(reader.past, prompt.len());
            logits.try_into_vec_as::<f32>().unwrap()
        };
        let plain = logits(&base.config, 23);
        let scale = plain.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let same = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 * scale);
        // With scaled frequencies too, of which the whole prompt is longer than the model's texts and its first parts are not.
        let divisors = |more: f64| (0_u8..16).map(|j| 1.0 + more * f64::from(j)).collect();
        let long = RopeScaling::LongRope { short: divisors(0.0), long: divisors(2.0), attention_factor: 1.0, original: 8 };
        for rope_scaling in [None, Some(RopeScaling::Dynamic { factor: 8.0 }), Some(long)] {
            let config = ModelConfig { rope_scaling, max_position_embeddings: 8, ..base.config.clone() };
            let whole = logits(&config, 23);
            assert_eq!(same(&whole, &plain), config.rope_scaling.is_none(), "{:?}", config.rope_scaling);
            for at_once in [1, 5, 22] {
                assert!(same(&logits(&config, at_once), &whole), "{at_once} {:?}", config.rope_scaling);
            }
        }
    }

    /// The definition: the whole vocabulary in order, cut by top_k, then by top_p.
    fn by_sorting_everything(logits: &[f32], sampling: &Sampling, step: usize) -> u32 {
        let logits: Vec<f64> = logits.iter().map(|&x| f64::from(x)).collect();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| likelier(&logits, a, b));
        order.truncate(if sampling.top_k > 0 { sampling.top_k } else { order.len() });
        let weights: Vec<f64> = order.iter().map(|&id| ((logits[id] - logits[order[0]]) / sampling.temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        let reaches = |sum: &mut f64, weight: &f64| {
            *sum += weight / total;
            Some(*sum)
        };
        let kept = weights.iter().scan(0.0, reaches).position(|sum| sum >= sampling.top_p).map_or(weights.len(), |last| last + 1);
        let mut left = Rng::new(sampling.seed, "sample", 0, step as u64).unit() * weights[..kept].iter().sum::<f64>();
        let drawn = weights[..kept].iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        order[drawn.unwrap_or(kept - 1)] as u32
    }

    #[test]
    fn an_answer_ends_with_any_token_that_ends_a_turn() {
        let mut base = crate::base::Base::tiny(["a b"], 0, &Device::flex()).unwrap();
        let [end, turn] = ["<|endoftext|>", "<|im_end|>"].map(|token| base.tokenizer.id(token).unwrap());
        base.config.eos_token_ids = vec![7];
        base.tokenizer.set_eos("<|endoftext|>").unwrap();
        assert_eq!(stop_ids(&base.config, &base.tokenizer, None), [7, end, turn]);
        // Of a template whose turns end otherwise than texts do.
        base.tokenizer.set_eos("<|im_start|>").unwrap();
        let start = base.tokenizer.eos().unwrap();
        let source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|endoftext|>{% endfor %}\
                      {% if add_generation_prompt %}[assistant]{% endif %}";
        let brackets = Template::Jinja(Jinja::new(source, &base.tokenizer).unwrap());
        assert_eq!(stop_ids(&base.config, &base.tokenizer, None), [7, start, turn]);
        assert_eq!(stop_ids(&base.config, &base.tokenizer, Some(&brackets)), [7, start, end, turn]);
    }

    #[test]
    fn sorting_less_draws_the_same() {
        let mut rng = Rng::new(4, "logits", 0, 0);
        for (top_k, top_p) in [(0, 1.0), (0, 0.9), (0, 0.3), (1, 1.0), (20, 0.8), (70, 0.99), (5000, 1.0)] {
            for step in 0..60 {
                // Steep and flat, with ties.
                let scale = [0.5, 2.0, 6.0][step % 3];
                let logits: Vec<f32> = (0..3000).map(|_| ((rng.normal() * scale * 8.0).round() / 8.0) as f32).collect();
                let sampling = Sampling { temperature: 0.9, top_k, top_p, seed: step as u64, ..Sampling::default() };
                assert_eq!(choose(&logits, &[], &sampling, step), by_sorting_everything(&logits, &sampling, step), "{sampling:?}");
            }
        }
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
