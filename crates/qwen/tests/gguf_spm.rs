//! A Llama model with a tokenizer of SentencePiece as GGUF: read back here, and in llama.cpp (`BELLOWS_PEERS_PYTHON`), it says the same.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic, and says what it skips")]

use std::io::Write;
use std::path::Path;
use std::process::Command;

use crate::support::{scatter, shape};
use bellows_chat::Tokenizer;
use bellows_qwen::arch::Architecture;
use bellows_qwen::base::{Base, random};
use bellows_qwen::export::write_gguf;
use bellows_qwen::generate::{Sampling, generate};
use bellows_qwen::model::ModelConfig;
use bellows_weights::gguf::{Gguf, Preset};
use burn::tensor::Device;
use serde_json::{Value, json};

/// Tokenises the texts of golden.json and goes on with the prompt: `model.gguf golden.json ours.json`.
const PEER: &str = r#"
import json, sys
from llama_cpp import Llama
model, golden, ours = sys.argv[1], *(json.load(open(path)) for path in sys.argv[2:])
llama = Llama(model, n_ctx=256, n_threads=1, verbose=False)
for text, want in zip(golden["texts"], golden["prepend"]):
    got = llama.tokenize(text.encode(), add_bos=False, special=True)
    assert got == want, (text, got, want)
assert llama.tokenize(b"the iron", add_bos=True) == [1, *llama.tokenize(b"the iron", add_bos=False)]
assert (llama.token_bos(), llama.token_eos()) == (1, 2)
assert llama.metadata["tokenizer.chat_template"] == ours["template"]
got = []
for token in llama.generate(ours["prompt"], temp=0.0, repeat_penalty=1.0):
    got.append(token)
    if len(got) == len(ours["new"]):
        break
assert got == ours["new"], (got, ours["new"])
said = llama.detokenize(got, prev_tokens=ours["prompt"], special=True).decode(errors="replace")
assert said == ours["text"], (said, ours["text"])
print(len(golden["texts"]), "texts,", len(got), "tokens agree")
"#;

#[test]
fn a_gguf_reads_and_says_what_the_model_does() {
    let device = Device::flex();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../chat/tests/fixtures/spm");
    let tokenizer = Tokenizer::from_dir(&fixtures).unwrap();
    let config = ModelConfig {
        architecture: Architecture::Llama,
        hidden_size: 128,
        num_attention_heads: 4,
        head_dim: 32,
        vocab_size: 480,
        qkv_bias: false,
        tie_word_embeddings: false,
        ..shape()
    };
    let model = scatter(random(&config, 1, &device), |_| true);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    assert_eq!(write_gguf(&path, &model, &config, &tokenizer, Preset::F16, "spm").unwrap(), Vec::<String>::new());

    let file = Gguf::open(&path).unwrap();
    let value = |key: &str| file.metadata()[&format!("tokenizer.ggml.{key}")].clone();
    assert_eq!((value("model").as_str(), value("add_space_prefix").as_bool()), (Some("llama"), Some(true)));
    assert_eq!((value("add_bos_token").as_bool(), value("add_eos_token").as_bool()), (Some(true), Some(false)));
    assert_eq!(["bos", "eos", "unknown", "padding"].map(|key| value(&format!("{key}_token_id")).as_u64()), [1, 2, 0, 2].map(Some));
    assert_eq!(value("token_type").as_i32s().unwrap()[..4], [2, 3, 3, 6]);
    assert_eq!(value("scores").as_f32s().unwrap().len(), 480);

    let base = Base::open(&path, &device).unwrap();
    let golden: Value = serde_json::from_slice(&std::fs::read(fixtures.join("golden.json")).unwrap()).unwrap();
    for text in golden["texts"].as_array().unwrap().iter().filter_map(Value::as_str) {
        assert_eq!(base.tokenizer.encode(text, true).unwrap(), tokenizer.encode(text, true).unwrap(), "{text}");
    }
    let mut prompt = vec![1];
    prompt.extend(base.tokenizer.encode("The smith heats 🔥", true).unwrap());
    let sampling = Sampling { max_new_tokens: 24, temperature: 0.0, ..Sampling::default() };
    let new = generate(&base.model, &base.config, &prompt, &sampling, &[], &device, |_| true).unwrap();

    let Some(python) = std::env::var_os("BELLOWS_PEERS_PYTHON") else {
        writeln!(std::io::stderr(), "skipped: BELLOWS_PEERS_PYTHON names no Python with llama_cpp").unwrap();
        return;
    };
    let mut stream = base.tokenizer.stream(false);
    let mut text: String = new.iter().map(|&id| stream.push(id)).collect();
    text.push_str(&stream.finish());
    let ours = dir.path().join("ours.json");
    std::fs::write(&ours, json!({"prompt": prompt, "new": new, "text": text, "template": tokenizer.chat_template()}).to_string()).unwrap();
    let output = Command::new(python).args(["-c", PEER]).args([&path, &fixtures.join("golden.json"), &ours]).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("24 tokens agree"), "{out}\n{err}");
    println!("{out}");
}
