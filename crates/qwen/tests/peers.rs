//! What is written here is read by the programs it is written for: PEFT, transformers, gguf, llama.cpp.
//!
//! Needs `BELLOWS_PEERS_PYTHON`, a Python with torch, transformers, peft, gguf and llama_cpp; skipped without it.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic, and says what it skips")]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use crate::support::{host, scatter};
use bellows_chat::{Conversation, Message, RenderOptions, Role, Template, Tokenizer};
use bellows_qwen::adapter::{LoraConfig, Targets};
use bellows_qwen::arch::Architecture;
use bellows_qwen::base::{Base, random};
use bellows_qwen::export::{write_gguf, write_transformers};
use bellows_qwen::generate::{Sampling, generate};
use bellows_qwen::model::pass::Pass;
use bellows_qwen::model::rope::RopeScaling;
use bellows_qwen::model::{CausalLm, ModelConfig};
use bellows_qwen::{peft, weights};
use bellows_weights::gguf::{Gguf, Preset};
use bellows_weights::{DType, Tensor as FileTensor, Tensors, to_safetensors};
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde_json::json;

const TEXTS: [&str; 5] = [
    "The fire glows orange; at 1,100 degrees the iron is soft.",
    "fn main() { println!(\"{}\", 12345); }",
    "  two  spaces\n\n\ttab, I'll can't WE'RE",
    "naïve café e\u{301}, 你好，世界 🦀",
    "<|im_start|>user\nHello<|im_end|>\n",
];
const TOKENS: usize = 24;
/// The case with these positions: of a model that was trained on texts shorter than the prompt is.
const SCALED: &str = "llama3-scaled";
const LLAMA3: RopeScaling = RopeScaling::Llama3 { factor: 4.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original: 8 };

#[test]
fn peers_read_what_is_written() {
    let Some(python) = std::env::var_os("BELLOWS_PEERS_PYTHON") else {
        writeln!(std::io::stderr(), "skipped: BELLOWS_PEERS_PYTHON names no Python with torch, transformers, peft, gguf and llama_cpp")
            .unwrap();
        return;
    };
    let lora = LoraConfig { r: 4, lora_alpha: 8.0, ..LoraConfig::default() };
    let some = Targets::Names(vec!["q_proj".into(), "down_proj".into()]);
    let cases = [
        ("qwen2", Architecture::Qwen2, true, lora.clone()),
        ("qwen2-rslora", Architecture::Qwen2, false, LoraConfig { use_rslora: true, ..lora.clone() }),
        (
            "qwen2-saved",
            Architecture::Qwen2,
            true,
            LoraConfig { modules_to_save: vec!["embed_tokens".into(), "norm".into()], ..lora.clone() },
        ),
        ("qwen2-saved-map", Architecture::Qwen2, true, LoraConfig { modules_to_save: vec!["down_proj".into()], ..lora.clone() }),
        ("qwen3-dora", Architecture::Qwen3, true, LoraConfig { use_dora: true, ..lora.clone() }),
        ("qwen3-part", Architecture::Qwen3, false, LoraConfig { target_modules: some, layers_to_transform: vec![1], ..lora.clone() }),
        ("llama", Architecture::Llama, true, lora.clone()),
        (SCALED, Architecture::Llama, false, lora.clone()),
        ("mistral", Architecture::Mistral, false, lora),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (name, architecture, tied, lora) in cases {
        let scaling = (name == SCALED).then_some(LLAMA3);
        write_case(&dir.path().join(name), (architecture, scaling), tied, &lora);
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers.py");
    let output = Command::new(python).arg(script).arg(dir.path()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("9 cases agree"), "{out}\n{err}");
    println!("{out}");
}

/// Base, adapter, merged model and GGUFs of a random model, and what we make of them.
fn write_case(dir: &Path, (architecture, rope_scaling): (Architecture, Option<RopeScaling>), tied: bool, lora: &LoraConfig) {
    let device = Device::flex();
    let tokenizer = {
        let mut tokenizer = Tokenizer::byte_level(TEXTS, 200).unwrap();
        tokenizer.set_chat_template(Template::Qwen25.source().into());
        tokenizer
    };
    let config = ModelConfig {
        architecture,
        hidden_size: 128,
        intermediate_size: 96,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        // Of these only Qwen3 has heads that together are wider than the model.
        head_dim: if architecture == Architecture::Qwen3 { 64 } else { 32 },
        vocab_size: tokenizer.len().next_multiple_of(32),
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        rope_scaling,
        sliding_window: None,
        tie_word_embeddings: tied,
        max_position_embeddings: 256,
        qkv_bias: architecture.qkv_bias(),
        qk_norm: architecture.qk_norm(),
        eos_token_ids: tokenizer.id("<|im_end|>").into_iter().collect(),
        generation: serde_json::Map::new(),
        edits: Vec::new(),
    };
    let base = scatter(random(&config, 1, &device), |_| true);
    let whole = |name: &str| name.ends_with("lora_B") || !lora.modules_to_save.is_empty() && lora.trains(name);
    let model = scatter(lora.apply(base.clone(), 1).unwrap(), whole);
    write_transformers(&dir.join("base"), &base, &config, &tokenizer, DType::F32).unwrap();
    peft::write(&dir.join("adapter"), &model, lora, Some("base")).unwrap();
    let merged = weights::merge(model.clone());
    write_transformers(&dir.join("merged"), &merged, &config, &tokenizer, DType::F32).unwrap();

    let prompt = tokenizer.encode(TEXTS[0], true).unwrap();
    let tensor = |t: Tensor<3>| FileTensor::from_f32(t.dims().to_vec(), &host(t));
    let mut ours = Tensors::new();
    for (name, model) in [("adapter", &model), ("merged", &merged)] {
        ours.insert(name.into(), tensor(logits(model, &config, &prompt)));
    }
    let mut greedy = BTreeMap::new();
    for preset in [Preset::F16, Preset::Q8_0] {
        let path = dir.join(format!("{}.gguf", preset.name()));
        write_gguf(&path, &merged, &config, &tokenizer, preset, "case").unwrap();
        let file = Gguf::open(&path).unwrap();
        for (name, info) in file.tensors() {
            ours.insert(format!("{}/{name}", preset.name()), FileTensor::from_f32(info.shape.clone(), &file.tensor_f32(name).unwrap()));
        }
        let read = Base::open(&path, &device).unwrap();
        let sampling = Sampling { max_new_tokens: TOKENS, temperature: 0.0, ..Sampling::default() };
        greedy.insert(preset.name(), generate(&read.model, &read.config, &prompt, &sampling, &[], &device, |_| true).unwrap());
        assert_eq!(read.tokenizer.encode(TEXTS[3], true).unwrap(), tokenizer.encode(TEXTS[3], true).unwrap());
    }
    std::fs::write(dir.join("ours.safetensors"), to_safetensors(&ours, &BTreeMap::new()).unwrap()).unwrap();

    let chats = [vec![("user", TEXTS[0]), ("assistant", TEXTS[3]), ("user", "And?")], vec![("system", "Be brief."), ("user", TEXTS[2])]];
    let rendered = chats.clone().map(|chat| {
        let messages = chat.into_iter().map(|(role, content)| Message::new(role_of(role), content)).collect();
        let options = RenderOptions { generation_prompt: true, ..RenderOptions::default() };
        let pieces = Template::Qwen25.pieces(&Conversation { messages, ..Conversation::default() }, options).unwrap();
        pieces.into_iter().map(|piece| piece.text).collect::<String>()
    });
    let chats = chats.map(|chat| chat.into_iter().map(|(role, content)| json!({ "role": role, "content": content })).collect::<Vec<_>>());
    let ids = TEXTS.map(|text| tokenizer.encode(text, true).unwrap());
    let facts = json!({ "texts": TEXTS, "ids": ids, "prompt": prompt, "greedy": greedy, "chats": chats, "rendered": rendered });
    std::fs::write(dir.join("ours.json"), facts.to_string()).unwrap();
}

fn role_of(name: &str) -> Role {
    match name {
        "system" => Role::System,
        "user" => Role::User,
        _ => Role::Assistant,
    }
}

fn logits(model: &CausalLm, config: &ModelConfig, ids: &[u32]) -> Tensor<3> {
    let (device, n) = (Device::flex(), ids.len());
    let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    let positions: Vec<i32> = (0..n as i32).collect();
    let pass = Pass::new([1, n], &positions, &vec![0; n], config, &device);
    model.forward(Tensor::<2, Int>::from_data(TensorData::new(ids, [1, n]), &device), &pass)
}
