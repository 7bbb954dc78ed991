//! What a GGUF leaves unsaid of its tokens is as llama.cpp takes it, but for how text is cut, which must be said, and every end that it names ends an answer.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use bellows_qwen::base::Base;
use bellows_qwen::export::write_gguf;
use bellows_weights::WeightsError;
use bellows_weights::gguf::{self, Gguf, Preset, Value};
use burn::tensor::Device;

/// Writes a small model with these facts of its tokens; without those of which there is no value.
fn written(path: &Path, facts: &[(&str, Option<Value>)]) {
    let base = Base::tiny(["a b"], 0, &Device::flex()).unwrap();
    let plain = path.with_extension("plain");
    write_gguf(&plain, &base.model, &base.config, &base.tokenizer, Preset::F16, "m").unwrap();
    let file = Gguf::open(&plain).unwrap();
    let mut metadata = file.metadata().clone();
    for (key, value) in facts {
        let key = format!("tokenizer.ggml.{key}");
        match value {
            Some(value) => drop(metadata.insert(key, value.clone())),
            None => drop(metadata.shift_remove(&key)),
        }
    }
    let out = std::fs::File::create(path).unwrap();
    gguf::write::<WeightsError>(out, &metadata, file.tensors(), |name| file.tensor_f32(name)).unwrap();
}

#[test]
fn a_part_of_a_model_is_told_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let [plain, path] = ["plain.gguf", "m-00001-of-00002.gguf"].map(|name| dir.path().join(name));
    written(&plain, &[]);
    let file = Gguf::open(&plain).unwrap();
    let mut metadata = file.metadata().clone();
    metadata.insert("split.count".into(), Value::U32(2));
    let out = std::fs::File::create(&path).unwrap();
    gguf::write::<WeightsError>(out, &metadata, file.tensors(), |name| file.tensor_f32(name)).unwrap();
    for error in [Base::shape(&path).err(), Base::open(&path, &Device::flex()).err()] {
        let error = error.unwrap().to_string();
        assert!(error.contains("one of 2 files of a model") && error.contains("--merge"), "{error}");
    }
    assert!(Base::shape(&plain).is_ok());
}

#[test]
fn texts_of_llama_3_begin_with_its_first_token_unless_the_file_says_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let (path, bos) = (dir.path().join("m.gguf"), 5);
    let cases = [("llama-bpe", None, true), ("llama-bpe", Some(false), false), ("qwen2", None, false), ("qwen2", Some(true), true)];
    for (pre, said, begins) in cases {
        let facts = [("pre", Some(Value::from(pre))), ("bos_token_id", Some(Value::U32(bos))), ("add_bos_token", said.map(Value::Bool))];
        written(&path, &facts);
        assert_eq!(Base::tokenizer(&path).unwrap().leading_bos(), begins.then_some(bos), "{pre} {said:?}");
    }
}

#[test]
fn the_ends_of_turns_and_of_calls_are_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let ends = || Base::shape(&path).unwrap().eos_token_ids;
    written(&path, &[("eot_token_id", Some(Value::U32(7))), ("eom_token_id", Some(Value::U32(9)))]);
    let eos = Base::tokenizer(&path).unwrap().eos().unwrap();
    assert_eq!(ends(), [eos, 7, 9]);
    written(&path, &[("eot_token_id", Some(Value::U32(eos)))]);
    assert_eq!(ends(), [eos]);
}

#[test]
fn how_byte_level_text_is_cut_must_be_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    written(&path, &[("pre", None)]);
    let error = Base::tokenizer(&path).unwrap_err().to_string();
    assert!(error.contains("there is no `tokenizer.ggml.pre`") && error.lines().count() == 1, "{error}");
    let scores = vec![0.0f32; Base::shape(&path).unwrap().vocab_size];
    written(&path, &[("pre", None), ("model", Some("llama".into())), ("scores", Some(scores.into()))]);
    assert_eq!(Base::tokenizer(&path).unwrap().bos(), Some(1));
}
