//! What a `config.json` means against transformers (golden/layouts.py): rotary positions, scaled and not, in the layouts that are built here.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use crate::support::{error, host};
use bellows_chat::{TokenType, Tokenizer, Vocabulary};
use bellows_qwen::base::Base;
use bellows_qwen::export::{write_gguf, write_transformers};
use bellows_qwen::load::replace;
use bellows_qwen::model::pass::Pass;
use bellows_qwen::model::{CausalLm, ModelConfig};
use bellows_qwen::weights::visit;
use bellows_weights::gguf::{self, Gguf, Preset};
use bellows_weights::{DType, WeightsError};
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde_json::Value;

fn cases() -> Vec<Value> {
    serde_json::from_str(include_str!("golden/layouts.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// Element `i` of parameter `number` of the script.
fn element(number: usize, i: usize) -> f32 {
    let mut h = (i as u64 + 1 + 1_000_003 * number as u64).wrapping_mul(2_654_435_761) & 0xffff_ffff;
    h ^= h >> 15;
    h = h.wrapping_mul(2_246_822_519) & 0xffff_ffff;
    h ^= h >> 13;
    (h as f64 / 4_294_967_296.0 - 0.5) as f32
}

/// The script's model.
fn model(config: &ModelConfig) -> CausalLm {
    let model = CausalLm::new(config, &Device::flex());
    let mut shapes = Vec::new();
    visit(&model, &mut |name, shape, _| shapes.push((name.to_owned(), shape.to_vec())));
    shapes.sort();
    let drawn = |name: &str| {
        let number = shapes.iter().position(|(n, _)| n == name)?;
        let shape = shapes[number].1.clone();
        let scaled = |i| if name.contains("norm") { 1.0 + 0.2 * element(number, i) } else { 0.6 * element(number, i) };
        Some((shape.clone(), (0..shape.iter().product()).map(scaled).collect()))
    };
    replace(model, drawn).unwrap().0
}

/// Logits of the script's positions, one after the other.
fn logits(model: &CausalLm, config: &ModelConfig, case: &Value) -> Vec<f32> {
    let ids: Vec<i32> = numbers(&case["ids"]).iter().map(|&id| id as i32).collect();
    let shape = [1, ids.len()];
    let positions: Vec<i32> = (0..shape[1] as i32).collect();
    let pass = Pass::new(shape, &positions, &vec![0; shape[1]], config, &Device::flex());
    let all = host(model.forward(Tensor::<2, Int>::from_data(TensorData::new(ids, shape), &Device::flex()), &pass));
    numbers(&case["at"]).iter().flat_map(|&at| all[at as usize * config.vocab_size..][..config.vocab_size].to_vec()).collect()
}

fn golden(case: &Value) -> Vec<f32> {
    case["logits"].as_array().unwrap().iter().flat_map(numbers).map(|x| x as f32).collect()
}

#[test]
fn every_layout_computes_what_transformers_computes() {
    let mut wrong = Vec::new();
    // What is no number is off too.
    let off = |e: f64, limit: f64| e.is_nan() || e > limit;
    for case in cases() {
        let name = case["name"].as_str().unwrap().to_owned();
        let config = ModelConfig::from_json(&case["config"].to_string()).unwrap();
        let e = error(&logits(&model(&config), &config, &case), &golden(&case));
        wrong.extend(off(e, 5e-6).then(|| format!("{name}: logits {e:e}")));
        let Some(scaling) = &config.rope_scaling else { continue };
        let ours = scaling.frequencies(config.rotation(), case["ids"].as_array().unwrap().len());
        let apart = ours.iter().zip(numbers(&case["frequencies"])).map(|(ours, theirs)| (ours / theirs - 1.0).abs());
        let far = apart.fold(0.0, |most: f64, e| if e.is_nan() { f64::INFINITY } else { most.max(e) });
        wrong.extend(off(far, 1e-6).then(|| format!("{name}: frequencies {far:e}")));
        let (ours, theirs) = (scaling.attention_factor(), case["factor"].as_f64().unwrap());
        wrong.extend(off((ours - theirs).abs(), 1e-9).then(|| format!("{name}: factor {ours} for {theirs}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// As many tokens as the script's models have rows.
fn tokenizer() -> Tokenizer {
    let tokens: Vec<String> = ('!'..).take(24).map(String::from).collect();
    let (types, pre, eos) = (vec![TokenType::Normal; tokens.len()], "qwen2".into(), Some(1));
    Tokenizer::from_gguf_vocab(&Vocabulary { pre, tokens, types, eos, ..Vocabulary::default() }).unwrap()
}

#[test]
fn a_scaling_survives_a_directory_and_a_gguf_or_is_refused() {
    let (dir, device) = (tempfile::tempdir().unwrap(), Device::flex());
    let mut refused = Vec::new();
    for case in cases() {
        let config = ModelConfig::from_json(&case["config"].to_string()).unwrap();
        let (model, tokenizer, name) = (model(&config), tokenizer(), case["name"].as_str().unwrap());
        write_transformers(dir.path(), &model, &config, &tokenizer, DType::F32).unwrap();
        let back = Base::open(dir.path(), &device).unwrap();
        assert_eq!(back.config.rope_scaling, config.rope_scaling, "{name}");
        let file = dir.path().join("m.gguf");
        match write_gguf(&file, &model, &config, &tokenizer, Preset::F16, "m") {
            Ok(lines) => {
                assert_eq!(lines.iter().any(|line| line.contains("dynamic")), name.starts_with("dynamic"), "{name}: {lines:?}");
                assert_eq!(
                    lines.iter().any(|line| line.contains("the last 7 alone")),
                    config.sliding_window.is_some(),
                    "{name}: {lines:?}"
                );
                let back = Base::open(&file, &device).unwrap();
                // A file knows no dynamic scaling and no window, and f16 rounds.
                let e = error(&logits(&back.model, &back.config, &case), &golden(&case));
                assert_eq!(e < 5e-3, !["dynamic, long", "mistral with a window"].contains(&name), "{name}: {e:e}");
            }
            Err(error) => refused.push((name.to_owned(), error.to_string())),
        }
    }
    let names: Vec<&str> = refused.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["yarn with constants", "yarn with a factor", "longrope, short", "longrope, long"]);
    assert!(refused.iter().all(|(_, error)| error.contains("no GGUF is written")), "{refused:?}");
}

#[test]
fn a_gguf_whose_heads_are_rotated_in_part_is_refused() {
    let (dir, case) = (tempfile::tempdir().unwrap(), cases().into_iter().find(|case| case["name"] == "mistral with a window").unwrap());
    let config = ModelConfig::from_json(&case["config"].to_string()).unwrap();
    let [plain, path] = ["plain.gguf", "m.gguf"].map(|name| dir.path().join(name));
    write_gguf(&plain, &model(&config), &config, &tokenizer(), Preset::F16, "m").unwrap();
    let file = Gguf::open(&plain).unwrap();
    let key = format!("{}.rope.dimension_count", config.architecture.gguf_name());
    let shape = |rotated: Option<usize>| {
        let mut metadata = file.metadata().clone();
        assert!(metadata.shift_remove(&key).is_some(), "we say it ourselves");
        metadata.extend(rotated.map(|n| (key.clone(), gguf::Value::U32(n as u32))));
        let out = std::fs::File::create(&path).unwrap();
        gguf::write::<WeightsError>(out, &metadata, file.tensors(), |name| file.tensor_f32(name)).unwrap();
        Base::shape(&path).map(|shape| shape.head_dim).map_err(|error| error.to_string())
    };
    assert_eq!([None, Some(config.head_dim)].map(shape), [Ok(config.head_dim), Ok(config.head_dim)]);
    let error = shape(Some(config.head_dim / 2)).unwrap_err();
    assert!(error.contains("heads that are rotated in part are not supported") && error.contains("m.gguf"), "{error}");
}

/// A window is the same in packed rows, and token by token.
#[test]
fn a_window_moves_with_the_token_that_looks() {
    let case = cases().into_iter().find(|case| case["name"] == "mistral with a window").unwrap();
    let config = ModelConfig::from_json(&case["config"].to_string()).unwrap();
    let (model, device) = (model(&config), Device::flex());
    let ids: Vec<i32> = numbers(&case["ids"]).iter().map(|&id| id as i32).collect();
    let n = ids.len();
    let of = |ids: Vec<i32>, shape| Tensor::<2, Int>::from_data(TensorData::new(ids, shape), &device);
    let positions: Vec<i32> = (0..2).flat_map(|_| 0..n as i32).collect();
    let documents: Vec<i32> = (0..2 * n).map(|i| i32::from(i >= n)).collect();
    let pass = Pass::new([1, 2 * n], &positions, &documents, &config, &device);
    let both = host(model.forward(of([ids.clone(), ids.clone()].concat(), [1, 2 * n]), &pass));
    let (one, two) = both.split_at(n * config.vocab_size);
    assert!(error(two, one) < 1e-6);
    let mut caches = vec![bellows_qwen::model::pass::KvCache::default(); config.num_hidden_layers];
    let mut last = Vec::new();
    for (past, id) in ids.into_iter().enumerate() {
        last = host(model.next_logits(of(vec![id], [1, 1]), &Pass::after(past, 1, 1, past + 1, &config, &device), &mut caches));
    }
    assert!(error(&last, &one[(n - 1) * config.vocab_size..]) < 1e-5);
}

#[test]
fn what_cannot_be_computed_is_refused_with_its_name() {
    let with = |key: &str, value: Value| {
        let mut config = cases()[0]["config"].clone();
        config[key] = value;
        ModelConfig::from_json(&config.to_string()).map_err(|e| e.to_string())
    };
    let scaling = |value: Value| with("rope_scaling", value).unwrap_err();
    assert!(with("rope_scaling", Value::Null).is_ok());
    for (wrong, part) in [
        (scaling(serde_json::json!({ "rope_type": "axial" })), "\"axial\" is not supported"),
        (scaling(serde_json::json!({ "rope_type": "linear" })), "linear: there is no factor"),
        (scaling(serde_json::json!({ "rope_type": "linear", "factor": -1 })), "factor is -1"),
        (scaling(serde_json::json!({ "rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4 })), "not below"),
        (scaling(serde_json::json!({ "rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0] })), "8 numbers"),
        (with("partial_rotary_factor", 0.5.into()).unwrap_err(), "partial_rotary_factor is 0.5"),
        (with("rope_parameters", serde_json::json!({ "partial_rotary_factor": 0.75 })).unwrap_err(), "partial_rotary_factor is 0.75"),
    ] {
        assert!(wrong.contains(part) && !wrong.contains("remove"), "{wrong}");
    }
}
