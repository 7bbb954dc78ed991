//! Adapters in files: what selects the maps comes back, and what is missing or does not exist is named. And what is held out of a data set is not learnt.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::support::{self, examples, model, scatter, settings, shape, tokenizer};
use bellows_chat::{Template, Tokenizer};
use bellows_learner::Outcome;
use bellows_qwen::adapter::{LoraConfig, Targets};
use bellows_qwen::base::{Base, random};
use bellows_qwen::config::SftConfig;
use bellows_qwen::data::{Encoding, SftData};
use bellows_qwen::export::{Parameters, write_transformers};
use bellows_qwen::merging::Merging;
use bellows_qwen::model::{CausalLm, ModelConfig};
use bellows_qwen::peft;
use bellows_qwen::storage::BaseDtype;
use bellows_qwen::train::Finetune;
use bellows_runs::RunDir;
use bellows_weights::{DType, Tensors};
use burn::tensor::Device;
use serde_json::{Value, json};

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

/// PEFT trains on whichever names of a list there are.
#[test]
fn a_file_may_name_maps_that_this_model_lacks() {
    let lora = LoraConfig { target_modules: Targets::parse("q_proj,v_proj"), ..LoraConfig::default() };
    let ours = scatter(lora.apply(model(), 1).unwrap(), |name| name.contains(".lora."));
    let dir = tempfile::tempdir().unwrap();
    peft::write(dir.path(), &ours, &lora, None).unwrap();
    let file = dir.path().join("adapter_config.json");
    let mut written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    written["target_modules"] = json!(["q_proj", "v_proj", "query_key_value"]);
    std::fs::write(&file, written.to_string()).unwrap();
    let (config, tensors) = peft::read(dir.path()).unwrap();
    let again = peft::attach(model(), &config, tensors, dir.path()).unwrap();
    assert_eq!(adapted(&again), adapted(&ours));
    let (_, mut tensors) = peft::read(dir.path()).unwrap();
    let beyond = tensors.values().next().unwrap().clone();
    tensors.insert("base_model.model.model.layers.0.self_attn.query_key_value.lora_A.weight".into(), beyond);
    let error = peft::attach(model(), &config, tensors, dir.path()).unwrap_err().to_string();
    assert!(error.contains("query_key_value"), "{error}");
    let own = LoraConfig { target_modules: Targets::parse("q_proj,query_key_value"), ..LoraConfig::default() };
    assert!(own.apply(model(), 1).unwrap_err().to_string().contains("no map is named \"query_key_value\""));
    let pattern = LoraConfig { target_modules: Targets::Pattern("(?!a).*".into()), ..LoraConfig::default() };
    let error = pattern.apply(model(), 1).unwrap_err().to_string();
    assert!(error.contains("look-around") && error.lines().count() == 1, "{error}");
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

    let plain = LoraConfig::default;
    let file = dir.path().join("adapter_config.json").display().to_string();
    for (config, words) in [
        (LoraConfig { r: 0, ..plain() }, "r must be at least 1"),
        (LoraConfig { target_modules: Targets::parse("nope"), ..plain() }, "no map is named \"nope\""),
        (LoraConfig { rank_pattern: [("(".to_owned(), 4)].into(), ..plain() }, "is not a regular expression"),
        (LoraConfig { exclude_modules: Targets::Pattern(".*".into()), ..plain() }, "leave out every map that \"all-linear\" names"),
    ] {
        let error = peft::attach(model(), &config, Tensors::new(), dir.path()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{file}: ")) && error.contains(words), "{error}");
    }
}

/// Where it lies is nothing to a run, whose checkpoints have its weights; that there is one, and of what form, is.
#[test]
fn a_run_goes_on_with_its_adapter_elsewhere_and_with_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let adapter = |name: &str, alpha: Option<f64>| {
        let alpha_pattern = alpha.into_iter().map(|alpha| ("q_proj".to_owned(), alpha)).collect();
        let lora = LoraConfig { alpha_pattern, ..settings().lora() };
        let folder = dir.path().join(name);
        peft::write(&folder, &lora.apply(model(), 1).unwrap(), &lora, None).unwrap();
        folder.to_string_lossy().into_owned()
    };
    let on = |adapter: Option<String>| {
        let base = Base { model: model(), config: shape(), tokenizer: tokenizer(), content: None, added: 0 };
        let data = SftData { train: examples(&[5, 9, 13]).into(), ..SftData::default() };
        let run = RunDir::create(dir.path(), "run", true).unwrap();
        Finetune::new(SftConfig { adapter, ..settings() }, base, data, Template::ChatMl, &Device::flex(), run).unwrap()
    };
    let mut first = on(Some(adapter("began", None)));
    first.learner().stop_when(Arc::new(AtomicBool::new(true)));
    assert_eq!(first.run().unwrap().outcome, Outcome::Interrupted);
    on(Some(adapter("moved", None))).learner().resume().unwrap();
    for other in [None, Some(adapter("other", Some(2.0)))] {
        let error = on(other).learner().resume().unwrap_err().to_string();
        assert!(error.contains("the adapter it began with has changed"), "{error}");
    }
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

#[cfg(unix)]
#[test]
fn settings_are_a_file_within_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let [pipe, long] = ["pipe", "long"].map(|name| dir.path().join(name));
    std::os::unix::fs::symlink("/dev/null", &pipe).unwrap();
    std::fs::File::create(&long).unwrap().set_len((16 << 20) + 1).unwrap();
    for (path, words) in [(pipe, "is not a regular file"), (long, "at most 16777216 are allowed")] {
        let error = peft::read_config(&path).unwrap_err().to_string();
        assert!(error.starts_with(&path.display().to_string()) && error.contains(words), "{error}");
    }
}

/// As in PEFT.
#[test]
fn a_map_that_is_trained_whole_gets_no_lora() {
    let lora = LoraConfig { modules_to_save: vec!["down_proj".into()], ..LoraConfig::default() };
    let ours = scatter(lora.apply(model(), 1).unwrap(), |name| lora.trains(name));
    assert!(adapted(&ours).len() == 2 * 6 && adapted(&ours).iter().all(|name| !name.ends_with("down_proj")));
    let dir = tempfile::tempdir().unwrap();
    peft::write(dir.path(), &ours, &lora, None).unwrap();
    let (config, tensors) = peft::read(dir.path()).unwrap();
    let saved: Vec<&str> = tensors.keys().filter(|key| key.contains("down_proj")).map(String::as_str).collect();
    assert_eq!(saved, [0, 1].map(|i| format!("base_model.model.model.layers.{i}.mlp.down_proj.weight")));
    let again = peft::attach(model(), &config, tensors, dir.path()).unwrap();
    assert!(peft::tensors(&again, &config).unwrap() == peft::tensors(&ours, &lora).unwrap());
}

#[test]
fn what_changes_the_base_or_the_forward_pass_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("adapter_config.json");
    let read = |key: &str, value: &Value| {
        let mut config = peft::config_json(&LoraConfig::default(), None);
        config[key] = value.clone();
        std::fs::write(&path, config.to_string()).unwrap();
        peft::read_config(&path)
    };
    let init = "init_lora_weights";
    for (key, value) in [
        (init, json!("pissa")),
        (init, json!("pissa_niter_4")),
        (init, json!("olora")),
        (init, json!("loftq")),
        (init, json!("corda")),
        (init, json!("eva")),
        ("layers_pattern", json!("h")),
        ("layers_pattern", json!(["h"])),
        ("alora_invocation_tokens", json!([1, 2])),
        ("use_qalora", json!(true)),
        ("layer_replication", json!([[0, 1]])),
        ("use_bdlora", json!({ "nblocks": 2 })),
        ("bias", json!("all")),
        ("lora_bias", json!(true)),
    ] {
        let error = read(key, &value).unwrap_err().to_string();
        assert_eq!(error, format!("{}: {key} is {value}: not supported", path.display()));
    }
    for (key, value) in [
        (init, json!(true)),
        (init, json!(false)),
        (init, json!("gaussian")),
        (init, json!("orthogonal")),
        (init, json!(null)),
        ("layers_pattern", json!([])),
        ("use_qalora", json!(false)),
        ("qalora_group_size", json!(16)),
    ] {
        assert_eq!(read(key, &value).map(|lora| lora.r).map_err(|e| e.to_string()), Ok(16), "{key} {value}");
    }
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
    let open = |config: &SftConfig| {
        let options = config.encoding().unwrap();
        SftData::open(
            config,
            std::slice::from_ref(&path),
            Encoding { options: &options, tokenizer: &tokenizer, template: &Template::ChatMl },
            &mut |_, _| {},
        )
        .unwrap()
    };
    let data = open(&config);
    assert!(data.valid.len() > 5 && data.train.len() > 3 * 15, "{} {}: nothing was split", data.train.len(), data.valid.len());
    assert!(data.valid.iter().all(|held| data.train.iter().all(|learnt| learnt.unwrap().ids != held.as_ref().unwrap().ids)));

    let few = open(&SftConfig { max_samples: 7, val_size: 0.0, data_weights: Vec::new(), ..config });
    assert_eq!((few.train.len(), few.valid.len()), (7, 0));
}

/// Beside a base in four bits; what is trained whole, and DoRA's magnitudes, are the run's.
#[test]
fn what_is_merged_in_files_is_what_is_merged_in_memory() {
    let (dir, device, shape) = (tempfile::tempdir().unwrap(), Device::flex(), shape());
    let at = |name: &str| dir.path().join(name);
    write_transformers(&at("base"), &model(), &shape, &tokenizer(), DType::F32).unwrap();
    for (use_dora, saved) in [(false, &["embed_tokens", "norm"][..]), (true, &[])] {
        let modules_to_save = saved.iter().map(ToString::to_string).collect();
        let lora = LoraConfig { r: 2, use_dora, modules_to_save, ..LoraConfig::default() };
        let trained = |name: &str| name.ends_with("lora_B") || lora.trains(name);
        let whole = scatter(lora.apply(model(), 1).unwrap(), trained);
        let stored = Base::open_as(&at("base"), BaseDtype::Nf4, &device).unwrap().model;
        let narrow = peft::attach(stored, &lora, peft::tensors(&whole, &lora).unwrap(), dir.path()).unwrap();
        write_transformers(&at("memory"), &whole, &shape, &tokenizer(), DType::F32).unwrap();
        let merging = Merging::open(&at("base"), (&narrow, &shape), &lora, &device).unwrap();
        write_transformers(&at("files"), &merging, &shape, &tokenizer(), DType::F32).unwrap();
        let written = |name: &str| std::fs::read(at(name).join("model.safetensors")).unwrap();
        assert!(written("files") == written("memory") && written("files") != written("base"), "DoRA {use_dora}");
    }
}

/// Nothing else loads such a model, either. Norms and biases have more values than the 8 rows, so that the sizes are none that the file cannot hold.
#[test]
fn rows_that_are_not_those_of_the_configuration_are_not_merged() {
    let (dir, device) = (tempfile::tempdir().unwrap(), Device::flex());
    let shape = ModelConfig { tie_word_embeddings: false, ..shape() };
    write_transformers(dir.path(), &random(&shape, 5, &device), &shape, &tokenizer(), DType::F32).unwrap();
    let path = dir.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"vocab_size\": 64", "\"vocab_size\": 72")).unwrap();
    let base = Base::without_weights(dir.path(), &device).unwrap();
    let alone = LoraConfig::default();
    let brings = LoraConfig { modules_to_save: vec!["embed_tokens".into()], ..LoraConfig::default() };
    for (adapter, name) in [(&alone, "model.embed_tokens.weight"), (&alone, "lm_head.weight"), (&brings, "lm_head.weight")] {
        let merging = Merging::open(dir.path(), (&base.model, &base.config), adapter, &device).unwrap();
        let error = merging.values(name).unwrap_err().to_string();
        assert!(error.contains("has shape [64, 32] where the configuration asks for [72, 32]"), "{name}: {error}");
    }
}

/// As PEFT saves the embeddings where the tokenizer grew, whatever is trained: the file's rows are merged, not the model's, and a run's adapter has them too.
#[test]
fn what_an_adapter_brings_besides_is_merged_and_kept() {
    let (dir, device, shape) = (tempfile::tempdir().unwrap(), Device::flex(), shape());
    let at = |name: &str| dir.path().join(name);
    write_transformers(&at("base"), &model(), &shape, &tokenizer(), DType::F32).unwrap();
    let brought = ["model.embed_tokens.weight", "model.layers.1.input_layernorm.weight"].map(String::from);
    for use_dora in [false, true] {
        let lora = LoraConfig { r: 4, lora_alpha: 8.0, use_dora, brought: brought.clone().into(), ..LoraConfig::default() };
        let whole = scatter(lora.apply(model(), 1).unwrap(), |name| name.ends_with("lora_B") || lora.keeps(name));
        peft::write(&at("adapter"), &whole, &lora, None).unwrap();
        let (read, tensors) = peft::read(&at("adapter")).unwrap();
        assert!(read.modules_to_save.is_empty() && read.brought == lora.brought, "{:?}", read.brought);
        write_transformers(&at("memory"), &whole, &shape, &tokenizer(), DType::F32).unwrap();
        let written = |name: &str| std::fs::read(at(name).join("model.safetensors")).unwrap();
        for base in [Base::open_as(&at("base"), BaseDtype::Nf4, &device), Base::without_weights(&at("base"), &device)] {
            let opened = peft::attach(base.unwrap().model, &read, tensors.clone(), dir.path()).unwrap();
            let merging = Merging::open(&at("base"), (&opened, &shape), &read, &device).unwrap();
            write_transformers(&at("files"), &merging, &shape, &tokenizer(), DType::F32).unwrap();
            assert!(written("files") == written("memory"), "DoRA {use_dora}");
        }
        // A run that goes on from it leaves them as they are, and in its own adapter.
        let config = SftConfig { adapter: Some(at("adapter").display().to_string()), ..support::settings() };
        let mut run =
            support::run(config, model(), shape.clone(), support::examples(&[9, 12]), Vec::new(), &at(&format!("runs-{use_dora}")));
        run.run().unwrap();
        let saved = peft::read(&run.save().unwrap()).unwrap().1;
        for name in brought.iter().map(|name| format!("base_model.model.{name}")) {
            assert!(saved[&name] == tensors[&name], "{name}");
        }
        assert!(saved.iter().any(|(name, tensor)| name.contains("lora_B") && *tensor != tensors[name]));
    }
}

#[test]
fn to_merge_in_files_is_to_look_at_no_weight() {
    let (dir, device, shape) = (tempfile::tempdir().unwrap(), Device::flex(), shape());
    write_transformers(&dir.path().join("base"), &model(), &shape, &tokenizer(), DType::F32).unwrap();
    for use_dora in [false, true] {
        let lora = LoraConfig { use_dora, ..LoraConfig::default() };
        let tensors = peft::tensors(&lora.apply(model(), 1).unwrap(), &lora).unwrap();
        let base = Base::without_weights(&dir.path().join("base"), &device).unwrap();
        let opened = peft::attach(base.model, &lora, tensors, dir.path()).unwrap();
        let merging = Merging::open(&dir.path().join("base"), (&opened, &shape), &lora, &device).unwrap();
        write_transformers(&dir.path().join("merged"), &merging, &shape, &tokenizer(), DType::F32).unwrap();
        assert!(opened.linears().all(|(_, linear)| linear.lora.is_some() && !linear.weight.has_values()), "DoRA {use_dora}");
        assert!(!opened.model.embed_tokens.weight.is_initialized());
    }
}
