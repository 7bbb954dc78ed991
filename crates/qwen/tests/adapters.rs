//! Adapters in files: what selects the maps comes back, and what is missing or does not exist is named. And what is held out of a data set is not learnt.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use bellows_chat::{Template, Tokenizer};
use bellows_qwen::adapter::{LoraConfig, Targets};
use bellows_qwen::config::SftConfig;
use bellows_qwen::data::SftData;
use bellows_qwen::model::CausalLm;
use bellows_qwen::peft;
use support::{model, scatter};

fn adapted(model: &CausalLm) -> Vec<String> {
    model.linears().filter(|(_, linear)| linear.lora.is_some()).map(|(name, _)| name).collect()
}

/// Name endings would put adapters on the other layer too.
#[test]
fn an_expression_comes_back_as_the_maps_it_found() {
    let lora = LoraConfig { target_modules: Targets::Pattern(r"model\.layers\.1\.mlp\..*".into()), ..LoraConfig::default() };
    let ours = scatter(lora.apply(model(), 1).unwrap(), |name| name.contains(".lora."));
    let dir = tempfile::tempdir().unwrap();
    peft::write(dir.path(), &ours, &lora, None).unwrap();
    let (config, tensors) = peft::read(dir.path()).unwrap();
    let again = peft::attach(model(), &config, tensors, dir.path()).unwrap();
    assert_eq!(adapted(&again), ["gate_proj", "up_proj", "down_proj"].map(|map| format!("model.layers.1.mlp.{map}")));
    assert!(peft::tensors(&again, &config).unwrap() == peft::tensors(&ours, &lora).unwrap());
}

#[test]
fn what_is_missing_or_does_not_exist_is_named() {
    let far = LoraConfig { layers_to_transform: vec![0, 9], ..LoraConfig::default() };
    let error = far.apply(model(), 1).unwrap_err().to_string();
    assert!(error.contains("there is no layer 9, this model has 2"), "{error}");

    let lora = LoraConfig { modules_to_save: vec!["model.norm".into()], ..LoraConfig::default() };
    let dir = tempfile::tempdir().unwrap();
    peft::write(dir.path(), &lora.apply(model(), 1).unwrap(), &lora, None).unwrap();
    let (config, mut tensors) = peft::read(dir.path()).unwrap();
    assert!(tensors.remove("base_model.model.model.norm.weight").is_some(), "{:?}", tensors.keys().last());
    let error = peft::attach(model(), &config, tensors, dir.path()).unwrap_err().to_string();
    assert!(error.contains("no tensor base_model.model.model.norm.weight"), "{error}");
}

/// A layer given as a number, as PEFT also writes it.
#[test]
fn one_layer_may_be_a_number() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("adapter_config.json");
    std::fs::write(&path, r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "layers_to_transform": 1}"#)
        .unwrap();
    assert_eq!(peft::read_config(&path).unwrap().layers_to_transform, [1]);
}

#[test]
fn no_row_is_learnt_and_judged_by() {
    let dir = tempfile::tempdir().unwrap();
    let text: String = (0..20).map(|i| format!("{{\"text\": \"{i} {}\"}}\n", "word ".repeat(3 * i))).collect();
    let path = dir.path().join("rows.jsonl");
    std::fs::write(&path, &text).unwrap();
    let config = SftConfig {
        data: vec![path.display().to_string()],
        data_weights: vec![3.0],
        val_size: 5.0,
        truncation: "split".into(),
        max_seq_length: 40,
        ..SftConfig::default()
    };
    let tokenizer = Tokenizer::byte_level([text.as_str()], 300).unwrap();
    let open =
        |config: &SftConfig| SftData::open(config, &config.encoding().unwrap(), &tokenizer, &Template::ChatMl, &mut |_, _| {}).unwrap();
    let data = open(&config);
    assert!(data.valid.len() > 5 && data.train.len() > 3 * 15, "{} {}: nothing was split", data.train.len(), data.valid.len());
    assert!(data.valid.iter().all(|held| data.train.iter().all(|learnt| learnt.ids != held.ids)));

    let few = open(&SftConfig { max_samples: 7, val_size: 0.0, data_weights: Vec::new(), ..config });
    assert_eq!((few.train.len(), few.valid.len()), (7, 0));
}
