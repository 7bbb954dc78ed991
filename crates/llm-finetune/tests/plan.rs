//! `plan` as a user meets it: the run that would begin, with all that is known of it beforehand.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use crate::program::{program, run};
use bellows_qwen::adapter::{LoraConfig, Targets};
use bellows_qwen::base::{Base, random};
use bellows_qwen::export::write_transformers;
use bellows_qwen::load::replace;
use bellows_qwen::model::ModelConfig;
use bellows_qwen::peft;
use bellows_weights::DType;
use burn::tensor::Device;
use serde_json::Value;

/// GB that two runs of the same kind may be apart, less than a copy: the allocator keeps up to 0.06 between what is in use, one time in four.
#[cfg(target_os = "linux")]
const NOISE: f64 = 0.07;

/// A tiny model in the folder `model`.
fn model(dir: &Path) -> Base {
    let base = Base::tiny(["What is 2 plus 3?"], 0, &Device::flex()).unwrap();
    write_transformers(&dir.join("model"), &base.model, &base.config, &base.tokenizer, DType::F32).unwrap();
    base
}

/// A model of 29 million parameters (116 MB in f32) in the folder `model`, and `rows.jsonl` to learn.
fn large(dir: &Path) {
    let base = model(dir);
    let shape = ModelConfig {
        hidden_size: 512,
        intermediate_size: 1536,
        num_hidden_layers: 8,
        num_attention_heads: 8,
        head_dim: 64,
        vocab_size: 8192,
        ..base.config
    };
    write_transformers(&dir.join("model"), &random(&shape, 0, &Device::flex()), &shape, &base.tokenizer, DType::F32).unwrap();
    let rows: String = (0..4).map(|i| format!("{{\"prompt\": \"one more than {i}? \", \"completion\": \"{}\"}}\n", i + 1)).collect();
    std::fs::write(dir.join("rows.jsonl"), rows).unwrap();
}

/// GB that a run says it has held and has planned.
fn held_and_planned(out: &str) -> (f64, f64) {
    let line = out.lines().find(|line| line.contains(" GB at most, ")).unwrap_or_else(|| panic!("{out}"));
    let mut numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// The plan of a run on it.
fn plan(dir: &Path, more: &[&str]) -> Value {
    let plain = ["plan", "--model", "model", "--device", "cpu", "--json"];
    let (code, out, error) = run(dir, &[&plain[..], more].concat());
    assert_eq!(code, 0, "{error}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn a_run_that_goes_on_from_an_adapter_is_planned_with_its_ranks_and_targets() {
    let dir = tempfile::tempdir().unwrap();
    let base = model(dir.path());
    let own = LoraConfig {
        r: 2,
        target_modules: Targets::parse("q_proj,v_proj"),
        rank_pattern: [("v_proj".into(), 3)].into(),
        ..LoraConfig::default()
    };
    peft::write(&dir.path().join("adapter"), &own.apply(base.model, 0).unwrap(), &own, Some("model")).unwrap();
    let named = plan(dir.path(), &["--r", "2", "--target-modules", "q_proj,v_proj", "--rank-pattern", "v_proj=3"]);
    let (going_on, plain) = (plan(dir.path(), &["--adapter", "adapter"]), plan(dir.path(), &[]));
    for term in ["adapters_gb", "optimizer_gb", "activations_gb", "workspace_gb"] {
        assert_eq!(going_on[term], named[term], "{term}");
        assert_ne!(plain[term], named[term], "{term}");
    }
    for (more, part) in [(&["--adapter", "nowhere"][..], "nowhere"), (&["--adapter", "adapter", "--r", "4"], "leave r to the adapter")] {
        let args = ["plan", "--model", "model", "--device", "cpu"];
        let (code, _, error) = run(dir.path(), &[&args[..], more].concat());
        assert!(code == 2 && error.contains(part), "{code} {error}");
    }
}

/// What stands beside the settings of a preset.
#[test]
fn the_figures_of_the_presets_are_those_of_the_plan() {
    let dir = tempfile::tempdir().unwrap();
    let cases: [(&str, &str, &str, &[&str], &str); 10] = [
        ("dorothy", "1.5B", "RX 6700 XT", &["--gradient-checkpointing", "off"], "14.6 GB"),
        ("dorothy", "1.5B", "RX 6700 XT", &[], "(7.6 GB on one of"),
        ("dorothy", "1.5B", "RX 6700 XT", &["--gradient-checkpointing", "all"], "6.0 with all"),
        ("dorothy", "1.5B", "RX 6700 XT", &["--gradient-checkpointing", "all", "--base-dtype", "nf4"], "nf4 it is 4.1"),
        ("dorothy", "1.5B", "RX 6700 XT", &["--base-dtype", "nf4"], "to 7.6 GB"),
        ("worldmodel", "3B", "RX 5600 XT", &["--base-dtype", "f32"], "would take 14.7 GB"),
        ("worldmodel", "3B", "RX 5600 XT", &["--base-dtype", "bf16"], "as on disk, 9.9"),
        ("worldmodel", "3B", "RX 5600 XT", &[], "in NF4 it is 5.1"),
        ("paper_r64", "0.5B", "RX 5600 XT", &[], "batches of 8 are 7.7 GB"),
        ("paper_r64", "0.5B", "RX 5600 XT", &["--batch-size", "4"], "batches of 4 (5.3 GB"),
    ];
    for (preset, size, card, more, told) in cases {
        let plain = ["plan", "--config", preset, "--size", size, "--card", card, "--json"];
        let (code, out, error) = run(dir.path(), &[&plain[..], more].concat());
        assert_eq!(code, 0, "{error}");
        let peak = serde_json::from_str::<Value>(&out).unwrap()["peak_gb"].as_f64().unwrap();
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../models/{preset}.yaml"));
        assert!(std::fs::read_to_string(file).unwrap().contains(told), "{preset}: {told} is not there");
        assert!(told.contains(&format!("{peak:.1}")), "{preset} {more:?}: {peak} GB where {told} is told");
    }
}

/// Rows that cannot be used and a device are not looked at where the model is not there.
#[test]
fn a_model_that_is_not_there_is_told_of_first() {
    let dir = tempfile::tempdir().unwrap();
    model(dir.path());
    std::fs::write(dir.path().join("rows.jsonl"), "{\"neither\": \"chat nor text\"}\n").unwrap();
    let said = |args: &[&str]| {
        let (code, _, error) = run(dir.path(), &[args, &["--data", "rows.jsonl", "--device", "cpu"]].concat());
        assert!(code == 2 && error.lines().filter(|line| line.starts_with("error")).count() == 1, "{args:?}: {code} {error}");
        error
    };
    for args in [&["--model", "nowhere"][..], &["plan", "--model", "nowhere"]] {
        let error = said(args);
        assert!(error.contains("nowhere") && !error.contains("device:") && !error.contains("rows.jsonl"), "{error}");
    }
    // The rows are what is wrong as long as the model is whole; of one without weights there is a plan, and no run.
    assert!(said(&["--model", "model"]).contains("rows.jsonl"));
    std::fs::remove_file(dir.path().join("model/model.safetensors")).unwrap();
    let error = said(&["--model", "model"]);
    assert!(error.contains("model.safetensors") && !error.contains("device:") && !error.contains("rows.jsonl"), "{error}");
    assert!(plan(dir.path(), &[])["peak_gb"].as_f64().unwrap() > 0.0);
    assert!(!dir.path().join("runs").exists());
}

/// A file in f32 whose values bf16 holds, as those of many published models: it is kept in bf16, and planned so. One matrix that is not is f32.
#[test]
fn a_base_is_planned_as_it_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let base = model(dir.path());
    let write = |name: &str, dtype| write_transformers(&dir.path().join(name), &base.model, &base.config, &base.tokenizer, dtype).unwrap();
    write("model", DType::BF16);
    let narrow = plan(dir.path(), &["--max-seq-length", "64"]);
    let wide = |change: &dyn Fn(&str) -> bool| {
        let rounded = Base::open(&dir.path().join("model"), &Device::flex()).unwrap();
        let changed = |name: &str| {
            let mut found = None;
            bellows_qwen::weights::visit(&rounded.model, &mut |other, shape, read| {
                let nudged = |v: f32| f32::from_bits(v.to_bits() | 1);
                if other == name && change(name) {
                    found = Some((shape.to_vec(), read().unwrap().into_iter().map(nudged).collect()));
                }
            });
            found
        };
        let (changed, _) = replace(rounded.model.clone(), changed).unwrap();
        write_transformers(&dir.path().join("f32"), &changed, &rounded.config, &rounded.tokenizer, DType::F32).unwrap();
        let (code, out, error) = run(dir.path(), &["plan", "--model", "f32", "--device", "cpu", "--json", "--max-seq-length", "64"]);
        assert_eq!(code, 0, "{error}");
        1e9 * serde_json::from_str::<Value>(&out).unwrap()["weights_gb"].as_f64().unwrap()
    };
    let narrow = 1e9 * narrow["weights_gb"].as_f64().unwrap();
    let more = |bytes: f64, values: f64, what: &str| assert!((bytes - narrow - 2.0 * values).abs() < 1.0, "{what}: {bytes} for {narrow}");
    more(wide(&|_| false), 0.0, "all of them");
    more(wide(&|name| name == "model.layers.1.mlp.up_proj.weight"), 352.0 * 128.0, "but one of a layer");
    more(wide(&|name| name.contains("embed")), (base.config.vocab_size * 128) as f64, "but the embedding");
}

/// What is merged at the end is merged in the files: the base is not in memory a second time, beside the one that was trained.
#[test]
#[cfg(target_os = "linux")]
fn a_run_that_writes_its_model_holds_no_more_than_one_that_does_not() {
    let dir = tempfile::tempdir().unwrap();
    large(dir.path());
    let held = |more: &[&str]| -> (f64, f64) {
        let train = [
            "--model",
            "model",
            "--data",
            "rows.jsonl",
            "--base-dtype",
            "nf4",
            "--epochs",
            "1",
            "--max-seq-length",
            "64",
            "--device",
            "cpu",
        ];
        let (code, out, error) = run(dir.path(), &[&train[..], more].concat());
        assert_eq!(code, 0, "{error}");
        held_and_planned(&out)
    };
    let (trained, _) = held(&["--name", "trained"]);
    let (written, planned) = held(&["--name", "written", "--save-merged", "--save-gguf", "f16"]);
    assert!(written < trained + 0.04 && written < 1.15 * planned, "{written} GB, {trained} without files, {planned} planned");
    let files = ["merged/model.safetensors", "model-f16.gguf"];
    assert!(files.iter().all(|file| dir.path().join("runs/sft/written").join(file).exists()));
}

/// Of full fine-tuning most is weights, gradients and moments, a copy of any of which is 116 MB: nothing that is read back may stay beside what it fills.
#[test]
#[cfg(target_os = "linux")]
fn a_resumed_run_of_a_large_model_holds_no_more_than_it_did() {
    let dir = tempfile::tempdir().unwrap();
    large(dir.path());
    let train = ["--model", "model", "--data", "rows.jsonl", "--method", "full", "--base-dtype", "f32", "--epochs", "3"];
    let train = [&train[..], &["--max-seq-length", "64", "--device", "cpu", "--name"]].concat();
    let (code, out, error) = run(dir.path(), &[&train[..], &["whole"]].concat());
    assert_eq!(code, 0, "{error}");
    let (whole, _) = held_and_planned(&out);
    let mut killed = program(dir.path(), &[&train[..], &["cut"]].concat());
    assert_eq!(killed.env("BELLOWS_FAULT", "kill:save:2").output().unwrap().status.code(), None);
    let config = std::fs::read_to_string(dir.path().join("runs/sft/cut/config.yaml")).unwrap();
    assert!(config.lines().any(|line| line.starts_with("gradient_checkpointing:") && !line.contains("auto")), "settled once: {config}");
    let (code, out, error) = run(dir.path(), &["--resume", "runs/sft/cut"]);
    assert!(code == 0 && out.contains("3 epochs completed"), "{out}{error}");
    let (resumed, _) = held_and_planned(&out);
    assert!(resumed <= whole + NOISE, "{resumed} GB resumed, {whole} in one");
}

/// Bases in few bits, without the table of the tokenizer, which a benchmark has none of.
#[test]
#[cfg(target_os = "linux")]
fn a_base_in_few_bits_is_planned_as_it_is_held() {
    const TOKENIZER: f64 = 0.065;
    let dir = tempfile::tempdir().unwrap();
    for base in ["bf16", "int8", "nf4"] {
        let shape = ["--size", "tiny", "--base-dtype", base, "--json"];
        let number = |args: &[&str], key: &str| -> f64 {
            let (code, out, error) = run(dir.path(), &[args, &shape].concat());
            assert_eq!(code, 0, "{error}");
            serde_json::from_str::<Value>(out.lines().last().unwrap()).unwrap()[key].as_f64().unwrap()
        };
        // A benchmark counts in units of 10^6 KiB.
        let held = 1.024
            * number(&["benchmark", "--batch", "2", "--seq", "512", "--rank", "16", "--steps", "1", "--targets", "all-linear"], "peak_gb");
        let plan = ["plan", "--batch-size", "2", "--max-seq-length", "512", "--gradient-accumulation-steps", "1", "--device", "cpu"];
        let planned = number(&[&plan[..], &["--gradient-checkpointing", "off"]].concat(), "peak_gb") - TOKENIZER;
        assert!((planned / held - 1.0).abs() < 0.15, "{base}: {planned} GB planned, {held} held");
    }
}
