//! Small models and runs on the CPU.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::path::Path;

use bellows_chat::{Encoded, Template, TokenType, Tokenizer, Vocabulary};
use bellows_learner::{Decay, Outcome, Rng};
use bellows_qwen::arch::Architecture;
use bellows_qwen::base::{Base, random};
use bellows_qwen::config::SftConfig;
use bellows_qwen::data::SftData;
use bellows_qwen::load::replace;
use bellows_qwen::model::{CausalLm, ModelConfig};
use bellows_qwen::train::{Finetune, FinetuneError};
use bellows_runs::RunDir;
use burn::tensor::{Device, Tensor};

/// Two layers of width 32 and 64 tokens, with grouped heads, biases and a tied head.
pub fn shape() -> ModelConfig {
    ModelConfig {
        architecture: Architecture::Qwen2,
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 8,
        vocab_size: 64,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        rope_scaling: None,
        sliding_window: None,
        tie_word_embeddings: true,
        max_position_embeddings: 512,
        qkv_bias: true,
        qk_norm: false,
        eos_token_ids: Vec::new(),
        generation: serde_json::Map::new(),
        edits: Vec::new(),
    }
}

/// A model of that shape whose biases and norms are not trivial either.
pub fn model() -> CausalLm {
    scatter(random(&shape(), 5, &Device::flex()), |_| true)
}

/// `model` with noise of 0.1 on the parameters `which` picks by name.
pub fn scatter(model: CausalLm, which: impl Fn(&str) -> bool) -> CausalLm {
    let mut old = Vec::new();
    let collect = |name: &str, shape: &[usize], values: Vec<f32>| (name.to_owned(), shape.to_vec(), values);
    bellows_qwen::weights::visit(&model, &mut |name, shape, read| old.push(collect(name, shape, read().unwrap())));
    for (name, linear) in model.linears() {
        let Some(lora) = &linear.lora else { continue };
        for (part, tensor) in [("lora_A", lora.lora_A.val()), ("lora_B", lora.lora_B.val())] {
            let shape = tensor.dims();
            old.push(collect(&format!("{name}.lora.{part}"), &shape, host(tensor)));
        }
    }
    let noisy = |name: &str| {
        let (_, shape, values) = old.iter().find(|(n, ..)| n == name && which(n))?;
        let mut rng = Rng::new(9, name, 0, 0);
        Some((shape.clone(), values.iter().map(|v| v + rng.normal() as f32 * 0.1).collect()))
    };
    replace(model, noisy).unwrap().0
}

/// Examples of these lengths, all tokens but the first third learnt; the first token is the example's number.
pub fn examples(lengths: &[usize]) -> Vec<Encoded> {
    let one = |(i, &length): (usize, &usize)| {
        let mut rng = Rng::new(3, "tokens", 0, i as u64);
        let ids = std::iter::once(i as u32).chain((1..length).map(|_| rng.below(64) as u32)).collect();
        Encoded { ids, trained: (0..length).map(|t| t >= length.div_ceil(3)).collect(), cut: 0 }
    };
    lengths.iter().enumerate().map(one).collect()
}

/// SGD at a constant rate on adapters of rank 4, rows as long as they need to be.
pub fn settings() -> SftConfig {
    SftConfig {
        r: 4,
        lora_alpha: 8.0,
        epochs: 2,
        batch_size: 1,
        gradient_accumulation_steps: 1,
        pad_to_multiple_of: 1,
        max_seq_length: 64,
        learning_rate: 0.05,
        lr_scheduler_type: Decay::Constant,
        warmup_ratio: 0.0,
        ..SftConfig::default()
    }
}

/// A run over `train`, ready to go.
pub fn run(config: SftConfig, model: CausalLm, shape: ModelConfig, train: Vec<Encoded>, valid: Vec<Encoded>, dir: &Path) -> Finetune {
    begun(config, model, shape, train, valid, dir).unwrap()
}

/// The same, if it can begin.
pub fn begun(
    config: SftConfig,
    model: CausalLm,
    shape: ModelConfig,
    train: Vec<Encoded>,
    valid: Vec<Encoded>,
    dir: &Path,
) -> Result<Finetune, FinetuneError> {
    let device = Device::flex();
    let base = Base { model, config: shape, tokenizer: tokenizer(), content: None, added: 0 };
    let pairs = config.objective.is_of_pairs();
    let data = SftData { train: train.into(), valid: valid.into(), pairs, ..SftData::default() };
    let dir = RunDir::create(dir, "run", false).unwrap();
    Finetune::new(config, base, data, Template::ChatMl, &device, dir)
}

/// The same to its end.
pub fn train(config: SftConfig, model: CausalLm, shape: ModelConfig, train: Vec<Encoded>, valid: Vec<Encoded>, dir: &Path) -> Finetune {
    let mut run = run(config, model, shape, train, valid, dir);
    assert_eq!(run.run().unwrap().outcome, Outcome::Finished);
    run.save().unwrap();
    run
}

/// The trained tensors of a run, by name.
pub fn ending(run: &mut Finetune) -> Vec<(String, Vec<f32>)> {
    let learner = run.learner();
    let values = learner.layout().values(&learner.ema_model());
    learner.layout().entries.iter().zip(values).map(|(entry, value)| (entry.name.clone(), host(value))).collect()
}

/// One that knows 64 characters.
pub fn tokenizer() -> Tokenizer {
    let tokens: Vec<String> = ('!'..).take(64).map(String::from).collect();
    let (types, pre) = (vec![TokenType::Normal; tokens.len()], "qwen2".into());
    let (eos, pad) = (Some(1), Some(0));
    Tokenizer::from_gguf_vocab(&Vocabulary { pre, tokens, types, eos, pad, ..Vocabulary::default() }).unwrap()
}

pub fn host<const D: usize>(t: Tensor<D>) -> Vec<f32> {
    t.into_data().try_into_vec_as().unwrap()
}

/// ‖ours − theirs‖ / ‖theirs‖.
pub fn error(ours: &[f32], theirs: &[f32]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut ours.iter().zip(theirs).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    difference / norm(&mut theirs.iter().map(|&x| f64::from(x)))
}
