//! What a user of llm-finetune meets: the files of a run, mistakes and damaged files with one clear sentence and exit code 2.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{expect_bounds, expect_code, expect_peak, llm_finetune, one_sentence, tiny_chats};
use serde_json::{Value, json};

#[test]
fn the_tiny_preset_makes_every_file() {
    let dir = tempfile::tempdir().unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../datasets/tiny-chat");
    let data = ["--data", data.to_str().unwrap(), "--target-modules", "q_proj,v_proj"];
    let args = [&["--config", "tiny", "--epochs", "1", "--max-samples", "32", "--device", "cpu"][..], &data].concat();
    let (out, _) = expect_code(&mut llm_finetune(dir.path(), &args), 0);
    for words in ["Before training:", "After training:", "parameters are trained", "perplexity", "Results saved to"] {
        assert!(out.contains(words), "no {words:?} in the output:\n{out}");
    }
    let run = dir.path().join("runs/sft/train");
    let files = [
        "config.yaml",
        "results.csv",
        "events.jsonl",
        "adapter/adapter_config.json",
        "adapter/adapter_model.safetensors",
        "adapter/tokenizer.json",
        "merged/config.json",
        "merged/generation_config.json",
        "merged/model.safetensors",
        "merged/tokenizer.json",
        "merged/tokenizer_config.json",
        "model-q8_0.gguf",
        "model-q8_0.Modelfile",
    ];
    for file in files {
        assert!(run.join(file).metadata().is_ok_and(|m| m.len() > 0), "no {file}");
    }
    let csv = std::fs::read_to_string(run.join("results.csv")).unwrap();
    assert_eq!(csv.lines().next().unwrap(), "epoch,time,train/loss,val/loss,val/perplexity,lr/pg0,lr/pg1");
    for line in std::fs::read_to_string(run.join("events.jsonl")).unwrap().lines() {
        assert!(serde_json::from_str::<Value>(line).unwrap()["event"].is_string(), "{line}");
    }
    assert!(std::fs::read_to_string(run.join("model-q8_0.Modelfile")).unwrap().starts_with("FROM ./model-q8_0.gguf"));

    // Each of them answers: the same text from the merged model as from the GGUF's base with the adapter is for a library test.
    for model in ["merged", "model-q8_0.gguf"] {
        let model = run.join(model);
        let args =
            ["generate", "--model", model.to_str().unwrap(), "--prompt", "Add 6 and 5.", "--temperature", "0", "--max-new-tokens", "4"];
        expect_code(&mut llm_finetune(dir.path(), &[&args[..], &["--device", "cpu"]].concat()), 0);
    }

    // The command that made them goes on with them, the preset's values that its flags overrule included.
    let (out, _) = expect_code(&mut llm_finetune(dir.path(), &[&args[..], &["--resume"]].concat()), 0);
    assert!(out.contains("runs/sft/train") && !dir.path().join("runs/sft/train2").exists(), "{out}");
}

/// bf16 is multiplied by few processors and by no GPU here; pure f16 is of the base too, as its run records.
#[test]
fn a_run_says_what_its_precision_comes_to() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let told = |args: &[&str]| {
        let (out, error) = expect_code(&mut llm_finetune(dir.path(), args), 0);
        (out, error.lines().filter(|line| line.starts_with("warning: precision ")).map(String::from).collect::<Vec<_>>())
    };
    let shape = ["benchmark", "--size", "tiny", "--seq", "32", "--steps", "1", "--device", "cpu", "--json", "--precision"];
    let (out, warned) = told(&[&shape[..], &["bf16"]].concat());
    let report: Value = serde_json::from_str(&out).unwrap();
    let multiplies = ["AMX", "AVX-512-BF16"].contains(&report["level"].as_str().unwrap());
    assert_eq!(warned.len(), usize::from(!multiplies), "{report}: {warned:?}");
    assert_eq!(report["precision"], if multiplies { "bf16" } else { "f32" }, "what was computed, beside what was asked for");
    assert!(warned.iter().all(|line| line.ends_with("has no products of bf16, so they are computed in f32")), "{warned:?}");
    let run = ["--config", "tiny.yaml", "--epochs", "1", "--precision"];
    assert_eq!(told(&[&run[..], &["bf16"]].concat()).1, warned, "training says the same");
    let (out, warned) = told(&[&run[..], &["fp16-pure", "--name", "pure"]].concat());
    assert!(out.contains("the base is stored in f16") && warned.is_empty(), "{out}{warned:?}");
    assert!(std::fs::read_to_string(dir.path().join("runs/sft/pure/config.yaml")).unwrap().contains("base_dtype: \"f16\"\n"));
}

#[test]
fn full_fine_tuning_leaves_a_model_that_answers() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let (out, _) = expect_code(&mut llm_finetune(dir.path(), &["--config", "tiny.yaml", "--method", "full", "--epochs", "1"]), 0);
    assert!(out.contains("Saved runs/sft/train/model\n"), "{out}");
    let run = dir.path().join("runs/sft/train");
    for file in ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        assert!(run.join("model").join(file).metadata().is_ok_and(|m| m.len() > 0), "no {file}");
    }
    let [model, best] =
        ["model/model.safetensors", "weights/best.safetensors"].map(|f| bellows_weights::read(&run.join(f)).unwrap().tensors);
    assert!(model == best);
    let args = ["generate", "--model", "runs/sft/train/model", "--prompt", "Say one.", "--max-new-tokens", "4", "--device", "cpu"];
    expect_code(&mut llm_finetune(dir.path(), &args), 0);
}

/// The tokenizer of a made-up model is learnt from what every other model reads too.
#[test]
fn the_tiny_model_takes_every_format() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("table");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("train.csv"), "prompt,completion\nsay it,\"so, it is\"\nsay it again,so it is again\n").unwrap();
    std::fs::write(dir.path().join("lines.txt"), "it is so\nit is so again\n").unwrap();
    for data in ["table", "lines.txt"] {
        let (out, _) = expect_code(&mut llm_finetune(dir.path(), &["data", "preview", "--model", "tiny", "--data", data]), 0);
        assert!(out.contains("example 2 of 2"), "{out}");
    }
}

/// A `test` file is looked at once, at the end, and changes nothing of what is learnt.
#[test]
fn a_folder_of_train_valid_and_test() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let chats = std::fs::read_to_string(dir.path().join("chats.jsonl")).unwrap();
    let part = |skip: usize, take: usize| chats.lines().skip(skip).take(take).map(|line| format!("{line}\n")).collect::<String>();
    std::fs::create_dir(dir.path().join("set")).unwrap();
    let write = |name: &str, text: String| std::fs::write(dir.path().join("set").join(name), text).unwrap();
    write("train.jsonl", part(0, 10));
    write("valid.jsonl", part(10, 2));
    let run = |name: &str| {
        let args = ["--config", "tiny.yaml", "--data", "set", "--val-size", "0", "--name", name];
        let (out, _) = expect_code(&mut llm_finetune(dir.path(), &args), 0);
        (out, std::fs::read(dir.path().join("runs/sft").join(name).join("adapter/adapter_model.safetensors")).unwrap())
    };
    let (without, adapter) = run("without");
    assert!(!without.contains("test"), "{without}");
    // The best model's loss over the same chats is the one that validation found.
    write("test.jsonl", part(10, 2));
    let (with, same) = run("with");
    assert!(with.contains("2 to test with") && adapter == same, "{with}");
    let after = |words: &str| with.lines().find_map(|line| line.strip_prefix(words)).unwrap().split_whitespace().next().unwrap().to_owned();
    assert_eq!(after("test: loss "), after("Lowest validation loss ").trim_end_matches(','));
    let file: Value = serde_json::from_slice(&std::fs::read(dir.path().join("runs/sft/with/test.json")).unwrap()).unwrap();
    let [loss, perplexity] = ["loss", "perplexity"].map(|key| file[key].as_f64().unwrap());
    assert!(format!("{loss:.4}") == after("test: loss ") && (perplexity / loss.exp() - 1.0).abs() < 1e-9, "{file}");
    assert!(file["tokens"].as_u64().unwrap() > 0 && !dir.path().join("runs/sft/without/test.json").exists(), "{file}");
    write("test.jsonl", "{".into());
    let (_, error) = expect_code(&mut llm_finetune(dir.path(), &["--config", "tiny.yaml", "--data", "set", "--val-size", "0"]), 2);
    one_sentence(&error, &["test.jsonl:1"], "a broken test file");
}

#[test]
fn rows_have_the_keys_and_roles_that_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("pairs.jsonl", "{\"question\": \"why\", \"answer\": \"so\"}\n");
    write("body.jsonl", "{\"body\": \"it is so\"}\n");
    write("chat.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"why\"}, {\"role\": \"assistant\", \"content\": \"so\"}]}\n");
    let preview = |args: &[&str]| llm_finetune(dir.path(), &[&["data", "preview", "--model", "tiny", "--data"], args].concat());
    let (pair, _) = expect_code(&mut preview(&["pairs.jsonl", "--prompt-key", "question", "--completion-key", "answer"]), 0);
    assert!(pair.contains("why⟦so"), "{pair}");
    let (body, _) = expect_code(&mut preview(&["body.jsonl", "--text-key", "body"]), 0);
    assert!(body.contains("⟦"), "{body}");
    let (_, error) = expect_code(&mut preview(&["body.jsonl"]), 2);
    assert!(error.contains("body.jsonl:1") && error.contains("`body`"), "{error}");
    let (both, _) = expect_code(&mut preview(&["chat.jsonl", "--roles-to-train", "user,assistant"]), 0);
    assert!(both.contains("⟦why") && both.contains("⟦so"), "{both}");
    let (user, _) = expect_code(&mut preview(&["chat.jsonl", "--roles-to-train", "user"]), 0);
    assert!(user.contains("⟦why") && !user.contains("⟦so"), "{user}");
}

#[test]
fn without_validation_nothing_is_said_about_it() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let (out, _) = expect_code(&mut llm_finetune(dir.path(), &["--config", "tiny.yaml", "--val-size", "0", "--epochs", "1"]), 0);
    assert!(!out.contains("perplexity"), "{out}");
    let csv = std::fs::read_to_string(dir.path().join("runs/sft/train/results.csv")).unwrap();
    let row: Vec<&str> = csv.lines().nth(1).unwrap().split(',').collect();
    assert_eq!((row[3], row[4]), ("", ""), "{csv}");
}

/// What is trained beside NF4 is merged into the values of the file.
#[test]
fn an_adapter_trained_on_nf4_is_merged_into_the_original_weights() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let args = ["--config", "tiny.yaml", "--base-dtype", "nf4", "--epochs", "1", "--save-merged"];
    let (out, _) = expect_code(&mut llm_finetune(dir.path(), &args), 0);
    for words in ["the base is stored in nf4", "merged into the values of the model's file"] {
        assert!(out.contains(words), "no {words:?} in the output:\n{out}");
    }
    let run = dir.path().join("runs/sft/train");
    let [base, merged, adapter] = ["base/model.safetensors", "merged/model.safetensors", "adapter/adapter_model.safetensors"]
        .map(|file| bellows_weights::read(&run.join(file)).unwrap().tensors);
    let map = "model.layers.1.mlp.up_proj";
    let [a, b] = ["A", "B"].map(|half| adapter[&format!("base_model.model.{map}.lora_{half}.weight")].clone());
    let ([rank, input], out) = ([a.shape[0], a.shape[1]], b.shape[0]);
    let (a, b) = (a.to_f32().unwrap(), b.to_f32().unwrap());
    let [base, merged] = [base, merged].map(|tensors| tensors[&format!("{map}.weight")].to_f32().unwrap());
    let mut learnt = 0f32;
    for i in 0..out * input {
        // α / r is 2.
        let branch = 2.0 * (0..rank).map(|k| b[i / input * rank + k] * a[k * input + i % input]).sum::<f32>();
        assert!((merged[i] - base[i] - branch).abs() < 1e-6, "{i}: {} {} {branch}", merged[i], base[i]);
        learnt = learnt.max(branch.abs());
    }
    assert!(learnt > 1e-4, "{learnt}");
    let args = ["--resume", "--base-dtype", "int8"];
    let (_, error) = expect_code(&mut llm_finetune(dir.path(), &args), 2);
    assert!(error.contains("base-dtype") || error.contains("base_dtype"), "{error}");
}

#[test]
fn benchmark_prints_the_keys_of_other_timers() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["benchmark", "--size", "tiny", "--seq", "16", "--rank", "4", "--steps", "1", "--threads", "1"];
    let (text, _) = expect_code(&mut llm_finetune(dir.path(), &[&args[..], &["--targets", "all-linear"]].concat()), 0);
    for words in ["precision: f32 by ", "tiles of ", " GFLOP a step, ", " that the micro-kernel reaches\n"] {
        assert!(text.contains(words), "no {words:?} in\n{text}");
    }
    let (out, _) = expect_code(&mut llm_finetune(dir.path(), &[&args[..], &["--json"]].concat()), 0);
    let report: Value = serde_json::from_str(&out).unwrap();
    for key in ["forward_s", "backward_s", "update_s", "step_s", "tokens_per_s"] {
        assert!(report[key].as_f64().is_some_and(|v| v > 0.0), "{key} in {out}");
    }
    expect_peak(&report["peak_gb"]);
    expect_bounds(&report);
    let said = ["peer", "size", "dtype", "batch", "seq", "rank", "targets", "checkpointing", "threads"].map(|key| report[key].clone());
    let expected = json!(["bellows", "tiny", "f32", 1, 16, 4, "q_proj,k_proj,v_proj,o_proj", false, 1]);
    assert_eq!(json!(said), expected, "{out}");
}

#[test]
fn mistakes_get_one_sentence_and_code_2() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let file = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    file("bad.yaml", "epoch: 3\n");
    let good = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n";
    file("broken.jsonl", &format!("{good}{{\"messages\": [\n"));
    file("role.jsonl", &good.replace("user", "nobody"));
    file("silent.jsonl", &format!("{good}{good}{{\"messages\": [{{\"role\": \"user\", \"content\": \"a\"}}]}}\n"));
    file("empty.jsonl", "");
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    let cases: [(&[&str], &[&str]); 35] = [
        (&[], &["--model"]),
        (&["--data", "chats.jsonl"], &["--model"]),
        (&["--model", "nowhere", "--data", "chats.jsonl"], &["nowhere"]),
        (&["--model", "empty", "--data", "chats.jsonl"], &["empty", "config.json"]),
        (&["--model", "tiny", "--data", "nowhere.jsonl"], &["nowhere.jsonl"]),
        (&["--model", "tiny", "--data", "broken.jsonl"], &["broken.jsonl:2"]),
        (&["--model", "tiny", "--data", "role.jsonl"], &["role.jsonl:1", "nobody"]),
        (&["--model", "tiny", "--data", "silent.jsonl"], &["silent.jsonl:3"]),
        (&["--model", "tiny", "--data", "empty.jsonl"], &["empty.jsonl"]),
        (&["--config", "tiny.yaml", "--epoks", "3"], &["--epoks", "--epochs"]),
        (&["--config", "bad.yaml"], &["bad.yaml", "`epoch`", "`epochs`"]),
        (&["--config", "tiny.yaml", "--epochs", "many"], &["epochs", "many"]),
        (&["--config", "tiny.yaml", "--lora-dropout", "1"], &["lora_dropout"]),
        (&["--config", "tiny.yaml", "--r", "0"], &["r must be"]),
        (&["--config", "tiny.yaml", "--target-modules", "[nosuch]"], &["nosuch"]),
        (&["--config", "tiny.yaml", "--save-gguf", "q9"], &["q9", "q8_0"]),
        (&["--config", "tiny.yaml", "--device", "gpu9"], &["gpu9"]),
        (&["--config", "tiny.yaml", "--momentum", "1"], &["momentum must be"]),
        (&["--config", "tiny.yaml", "--lora-alpha", "0"], &["lora_alpha 0 is not above 0"]),
        (&["--config", "tiny.yaml", "--warmup-ratio", "3"], &["warmup_ratio 3"]),
        (&["--config", "tiny.yaml", "--data-weights", "0"], &["data_weights: 0"]),
        (&["--config", "tiny.yaml", "--r", "4000000000"], &["r is 4000000000", "at most 128"]),
        (&["--config", "tiny.yaml", "--exclude-modules", "nosuch"], &["exclude_modules: no map is named \"nosuch\""]),
        (&["--config", "tiny.yaml", "--rank-pattern", "nosuch=3"], &["rank_pattern: no map is named \"nosuch\""]),
        (&["--config", "tiny.yaml", "--alpha-pattern", "nosuch=3"], &["alpha_pattern: no map is named \"nosuch\""]),
        (&["--config", "tiny.yaml", "--early-stopping-patience", "2", "--val-size", "0"], &["early_stopping_patience needs", "val_size"]),
        (&["--config", "tiny.yaml", "--eval-steps", "2", "--val-size", "0"], &["eval_steps needs", "val_size"]),
        (&["--config", "tiny.yaml", "--roles-to-train", "nobody"], &["roles_to_train \"nobody\"", "assistant"]),
        (&["--config", "tiny.yaml", "--text-key", ""], &["a key of the data is empty"]),
        (&["generate", "--model", "m", "--prompt", "a", "--raw", "--system", "b"], &["--raw", "--system"]),
        (
            &["--config", "tiny.yaml", "--max-seq-length", "6", "--truncation", "drop"],
            &["no example is left to train on: 14 longer than max_seq_length 6"],
        ),
        (&["--config", "tiny.yaml", "--max-seq-length", "3"], &["no example is left to train on: 14 without a learnt token in the 3"]),
        (&["--config", "tiny.yaml", "--tui"], &["--tui needs a terminal"]),
        (&["--resume"], &["no run"]),
        (&["--resume", "runs/sft/none", "--config", "none.yaml"], &["--config none.yaml: there is no such file", "tiny"]),
    ];
    for (args, words) in cases {
        let (_, error) = expect_code(&mut llm_finetune(dir.path(), args), 2);
        one_sentence(&error, words, &format!("{args:?}"));
    }
    assert!(!dir.path().join("runs/sft/train").exists(), "a refused run leaves no directory");
}

/// A trained adapter, the merged model and a GGUF of the tiny model.
fn trained(dir: &Path) -> PathBuf {
    tiny_chats(dir);
    let args = ["--config", "tiny.yaml", "--epochs", "1", "--save-merged", "true", "--save-gguf", "f16", "--name", "t"];
    expect_code(&mut llm_finetune(dir, &args), 0);
    dir.join("runs/sft/t")
}

/// What stands in the way of one file keeps no other from being written, and the code says that the training is saved.
#[test]
fn an_export_that_fails_is_told_and_made_up_for() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    expect_code(&mut llm_finetune(dir.path(), &["--config", "tiny.yaml", "--epochs", "1", "--save-merged", "false", "--name", "t"]), 0);
    let run = dir.path().join("runs/sft/t");
    std::fs::write(run.join("merged"), "in the way").unwrap();
    let again = ["--resume", "runs/sft/t", "--save-merged", "true", "--save-gguf", "f16"];
    let (out, error) = expect_code(&mut llm_finetune(dir.path(), &again), 3);
    assert!(error.contains("merged is not written") && error.contains("error: training is saved, but "), "{error}");
    assert!(error.contains("llm-finetune --resume runs/sft/t"), "{error}");
    assert!(out.contains("model-f16.gguf") && run.join("model-f16.gguf").exists() && run.join("adapter").is_dir(), "{out}");
    std::fs::remove_file(run.join("merged")).unwrap();
    expect_code(&mut llm_finetune(dir.path(), &again), 0);
    assert!(run.join("merged/model.safetensors").exists());
}

/// Runs in 6 GB of address space, most of which the threads take: an allocation that a file asks for shows.
fn bounded(dir: &Path, args: &[&str]) -> Command {
    let run = llm_finetune(dir, args);
    let mut command = Command::new("sh");
    command.current_dir(dir).args(["-c", "ulimit -v 6000000; exec \"$0\" \"$@\""]).arg(run.get_program()).args(run.get_args());
    command.envs(run.get_envs().filter_map(|(k, v)| Some((k, v?)))).stdin(std::process::Stdio::null());
    command
}

#[test]
fn damaged_models_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path());
    let merged = run.join("merged");
    let config: Value = serde_json::from_slice(&std::fs::read(merged.join("config.json")).unwrap()).unwrap();
    let weights = std::fs::read(merged.join("model.safetensors")).unwrap();
    let with = |changes: &[(&str, Value)]| {
        let mut config = config.clone();
        changes.iter().for_each(|(key, value)| config[*key] = value.clone());
        serde_json::to_vec(&config).unwrap()
    };
    let (huge, rows) = (json!(1_u64 << 40), format!("{} rows", config["vocab_size"]));
    let header = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let mut nan = weights.clone();
    nan[8 + header + 400..8 + header + 404].copy_from_slice(&f32::NAN.to_le_bytes());
    let name = "tokenizer.json";
    let tokenizer: Value = serde_json::from_slice(&std::fs::read(merged.join(name)).unwrap()).unwrap();
    let added = |id: usize, content: String| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true
        })
    };
    let known = tokenizer["model"]["vocab"].as_object().unwrap().len() + tokenizer["added_tokens"].as_array().unwrap().len();
    let mut larger = tokenizer;
    larger["added_tokens"].as_array_mut().unwrap().extend((known..known + 400).map(|id| added(id, format!("<{id}>"))));
    let cases: Vec<(&str, Vec<u8>, Vec<&str>)> = vec![
        ("model.safetensors", weights[..weights.len() / 2].to_vec(), vec!["model.safetensors"]),
        ("model.safetensors", weights[..6].to_vec(), vec!["model.safetensors"]),
        ("model.safetensors", nan, vec!["not finite", "model."]),
        ("config.json", b"{".to_vec(), vec!["config.json"]),
        ("config.json", with(&[("model_type", json!("mamba"))]), vec!["mamba", "qwen2"]),
        ("config.json", with(&[("num_hidden_layers", huge.clone())]), vec!["config.json"]),
        ("config.json", with(&[("hidden_size", huge.clone())]), vec!["config.json", "the weights hold"]),
        ("config.json", with(&[("vocab_size", huge.clone())]), vec!["config.json"]),
        ("config.json", with(&[("intermediate_size", json!(u64::MAX))]), vec!["config.json"]),
        ("config.json", with(&[("num_attention_heads", huge.clone()), ("num_key_value_heads", huge.clone())]), vec!["config.json"]),
        ("config.json", with(&[("head_dim", huge)]), vec!["config.json"]),
        ("config.json", with(&[("num_key_value_heads", json!(3))]), vec!["config.json", "3 key heads"]),
        ("config.json", with(&[("hidden_size", json!(64))]), vec!["shape"]),
        (name, serde_json::to_vec(&larger).unwrap(), vec!["tokenizer", &rows]),
        (name, b"[]".to_vec(), vec!["tokenizer.json"]),
    ];
    for (file, bytes, words) in cases {
        let what = format!("{file} of {} bytes, to say {words:?}", bytes.len());
        let old = std::fs::read(merged.join(file)).unwrap();
        std::fs::write(merged.join(file), bytes).unwrap();
        let (_, error) =
            expect_code(&mut bounded(dir.path(), &["--config", "tiny.yaml", "--model", merged.to_str().unwrap(), "--name", "x"]), 2);
        one_sentence(&error, &words, &what);
        std::fs::write(merged.join(file), old).unwrap();
    }
    let gguf = run.join("model-f16.gguf");
    let whole = std::fs::read(&gguf).unwrap();
    for len in [0, 3, 100, whole.len() / 3, whole.len() - 1] {
        std::fs::write(&gguf, &whole[..len]).unwrap();
        let args = ["generate", "--model", gguf.to_str().unwrap(), "--prompt", "a", "--device", "cpu"];
        let (_, error) = expect_code(&mut bounded(dir.path(), &args), 2);
        one_sentence(&error, &["model-f16.gguf"], &format!("GGUF of {len} bytes"));
    }
    // A count of layers that no file could hold.
    let key = b"qwen2.block_count";
    let at = whole.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 4;
    let mut many = whole;
    many[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    std::fs::write(&gguf, many).unwrap();
    let (_, error) =
        expect_code(&mut bounded(dir.path(), &["generate", "--model", gguf.to_str().unwrap(), "--prompt", "a", "--device", "cpu"]), 2);
    one_sentence(&error, &["model-f16.gguf"], "GGUF of 4 billion layers");
    assert!(!dir.path().join("runs/sft/x").exists(), "a refused model leaves no run directory");
}

#[test]
fn adapters_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path());
    let adapter = run.join("adapter");
    let path = adapter.join("adapter_config.json");
    let config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    // The adapter's rank and scaling are not the defaults, and no setting says them.
    let settings = std::fs::read_to_string(dir.path().join("tiny.yaml")).unwrap();
    std::fs::write(dir.path().join("plain.yaml"), settings.replace("r: 4\nlora_alpha: 8\n", "")).unwrap();
    let tune = |flags: &[&str]| {
        let args = ["--config", "plain.yaml", "--epochs", "1", "--name", "x", "--adapter", adapter.to_str().unwrap()];
        bounded(dir.path(), &[&args, flags].concat())
    };
    let cases: [(Value, &[&str], &[&str]); 5] = [
        (json!({ "r": 8 }), &[], &["shape", "lora_A"]),
        (json!({ "r": 1_u64 << 50 }), &[], &["shape", "lora_A"]),
        (json!({ "peft_type": "IA3" }), &[], &["IA3"]),
        (json!({ "target_modules": ["q_proj"] }), &[], &["no place for"]),
        (json!({}), &["--r", "8"], &["r is 8", "has 4"]),
    ];
    for (changes, flags, words) in cases {
        let mut changed = config.clone();
        changes.as_object().unwrap().iter().for_each(|(key, value)| changed[key] = value.clone());
        std::fs::write(&path, serde_json::to_vec(&changed).unwrap()).unwrap();
        let (_, error) = expect_code(&mut tune(flags), 2);
        one_sentence(&error, words, &format!("{changes} {flags:?}"));
    }
    std::fs::write(&path, serde_json::to_vec(&config).unwrap()).unwrap();
    let weights = std::fs::read(adapter.join("adapter_model.safetensors")).unwrap();
    std::fs::write(adapter.join("adapter_model.safetensors"), &weights[..weights.len() - 5]).unwrap();
    let (_, error) = expect_code(&mut tune(&[]), 2);
    one_sentence(&error, &["adapter_model.safetensors"], "a truncated adapter");
    assert!(!dir.path().join("runs/sft/x").exists());
    // Intact, it goes on, with its own rank and with the tokens that were added for it. PEFT writes exclude_modules as a list or as a text.
    std::fs::write(adapter.join("adapter_model.safetensors"), &weights).unwrap();
    let mut tokenizer = read_json(&adapter.join("tokenizer.json"));
    let tokens = tokenizer["added_tokens"].as_array_mut().unwrap();
    let mut added = tokens.last().unwrap().clone();
    (added["id"], added["content"]) = (json!(added["id"].as_u64().unwrap() + 1), json!("<|added|>"));
    tokens.push(added);
    std::fs::write(adapter.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let mut excluding = config.clone();
    excluding["exclude_modules"] = json!(r".*\.nothing");
    std::fs::write(&path, excluding.to_string()).unwrap();
    expect_code(&mut tune(&[]), 0);
    let kept = dir.path().join("runs/sft/x/adapter");
    assert!(std::fs::read_to_string(kept.join("tokenizer.json")).unwrap().contains("<|added|>"));
    assert_eq!(read_json(&kept.join("adapter_config.json"))["exclude_modules"], json!(r".*\.nothing"));
    let yaml = std::fs::read_to_string(dir.path().join("runs/sft/x/config.yaml")).unwrap();
    assert!(yaml.contains("\nr: 4\n"), "{yaml}");
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The tiny model as a base model: its end of text is not that of ChatML, and it has no template. Returns the ids of both ends.
fn base_model(merged: &Path) -> (Value, Value) {
    let tokens = read_json(&merged.join("tokenizer.json"))["added_tokens"].clone();
    let id = |content: &str| tokens.as_array().unwrap().iter().find(|t| t["content"] == content).unwrap()["id"].clone();
    let old = id("<|endoftext|>");
    for (file, changes) in [
        ("tokenizer_config.json", json!({ "eos_token": "<|endoftext|>", "chat_template": null })),
        ("config.json", json!({ "eos_token_id": old })),
    ] {
        let mut changed = read_json(&merged.join(file));
        changes.as_object().unwrap().iter().for_each(|(key, value)| changed[key] = value.clone());
        std::fs::write(merged.join(file), changed.to_string()).unwrap();
    }
    (old, id("<|im_end|>"))
}

#[test]
fn the_template_and_its_end_of_turn_reach_every_output() {
    let dir = tempfile::tempdir().unwrap();
    let model = trained(dir.path()).join("merged");
    let (old, end) = base_model(&model);
    let model = model.to_str().unwrap();
    let qwen = "You are Qwen, created by Alibaba Cloud";
    let args = ["--config", "tiny.yaml", "--model", model, "--chat-template", "qwen2.5", "--epochs", "1", "--name", "b"];
    expect_code(
        &mut llm_finetune(dir.path(), &[&args[..], &["--max-seq-length", "256", "--save-merged", "--save-gguf", "f16"]].concat()),
        0,
    );
    let run = dir.path().join("runs/sft/b");
    let adapter = run.join("adapter");
    let with = ["--model", model, "--adapter", adapter.to_str().unwrap(), "--out"];
    for folder in ["out", "lora"] {
        std::fs::create_dir(dir.path().join(folder)).unwrap();
    }
    for (folder, format) in [("out", "gguf"), ("lora", "gguf-lora")] {
        let folder_alone = [&["export", "--format", format], &with[..], &[folder]].concat();
        let (_, error) = expect_code(&mut llm_finetune(dir.path(), &folder_alone), 2);
        one_sentence(&error, &[folder, "is a folder: name a file in it"], format);
        assert_eq!(std::fs::read_dir(dir.path().join(folder)).unwrap().count(), 0);
    }
    expect_code(&mut llm_finetune(dir.path(), &[&["merge"], &with[..], &["whole"]].concat()), 0);
    expect_code(&mut llm_finetune(dir.path(), &[&["export"], &with[..], &["out/m.gguf"]].concat()), 0);
    let lora = [&["export", "--format", "gguf-lora"], &with[..], &["lora/a.gguf"]].concat();
    expect_code(&mut llm_finetune(dir.path(), &lora), 0);

    let whole = dir.path().join("whole");
    for folder in [&adapter, &run.join("merged"), &whole] {
        let config = read_json(&folder.join("tokenizer_config.json"));
        assert_eq!(config["eos_token"], "<|im_end|>", "{}", folder.display());
        assert!(config["chat_template"].as_str().unwrap().contains(qwen), "{}", folder.display());
    }
    for folder in [&run.join("merged"), &whole] {
        assert_eq!(read_json(&folder.join("generation_config.json"))["eos_token_id"], json!([end, old]), "{}", folder.display());
    }
    for file in [run.join("model-f16.gguf"), dir.path().join("out/m.gguf")] {
        let gguf = bellows_weights::gguf::Gguf::open(&file).unwrap();
        assert_eq!(gguf.metadata()["tokenizer.ggml.eos_token_id"].as_u64(), end.as_u64());
        assert!(gguf.metadata()["tokenizer.chat_template"].as_str().unwrap().contains(qwen));
    }
    for file in [run.join("model-f16"), dir.path().join("out/m"), dir.path().join("lora/a")] {
        let text = std::fs::read_to_string(file.with_extension("Modelfile")).unwrap();
        assert!(text.contains(&format!("SYSTEM \"\"\"{qwen}")), "{text}");
    }
}

#[test]
fn generate_refuses_what_gives_no_text_and_begins_texts_as_training_does() {
    let dir = tempfile::tempdir().unwrap();
    let merged = trained(dir.path()).join("merged");
    let model = merged.to_str().unwrap();
    let generate = |prompt: &str, more: &[&str]| {
        let args = ["generate", "--model", model, "--device", "cpu", "--max-new-tokens", "8", "--prompt", prompt];
        llm_finetune(dir.path(), &[&args[..], more].concat())
    };
    let cases: [(&str, &[&str], &str); 7] = [
        ("", &["--raw"], "--prompt is empty"),
        ("", &[], "--prompt is empty"),
        ("a", &["--stop", "so", "--stop", ""], "--stop is an empty text"),
        ("a", &["--temperature", "-1"], "temperature is -1, and must be at least 0"),
        ("a", &["--temperature", "nan"], "temperature is NaN"),
        ("a", &["--top-p", "0"], "top_p is 0, and must be above 0"),
        ("a", &["--repetition-penalty", "-0.5"], "repetition_penalty is -0.5, and must be above 0"),
    ];
    for (prompt, more, words) in cases {
        let (_, error) = expect_code(&mut generate(prompt, more), 2);
        one_sentence(&error, &[words], &format!("{prompt:?} {more:?}"));
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    // A model whose texts begin with a token: it comes before the prompt unasked.
    let raw = |prompt: &str| expect_code(&mut generate(prompt, &["--raw", "--temperature", "1", "--top-k", "0", "--top-p", "1"]), 0).0;
    let (without, typed) = (raw("Say one"), raw("<|endoftext|>Say one"));
    assert_ne!(without, typed);
    let path = merged.join("tokenizer_config.json");
    let mut config = read_json(&path);
    (config["bos_token"], config["add_bos_token"]) = (json!("<|endoftext|>"), json!(true));
    std::fs::write(&path, config.to_string()).unwrap();
    assert_eq!(raw("Say one"), typed);
}

#[test]
fn a_rate_beyond_reason_ends_with_code_4() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let args = [
        "--config",
        "tiny.yaml",
        "--learning-rate",
        "1e38",
        "--warmup-ratio",
        "0",
        "--optim",
        "SGD",
        "--max-grad-norm",
        "0",
        "--epochs",
        "4",
    ];
    let (out, error) = expect_code(&mut llm_finetune(dir.path(), &args), 4);
    assert!(error.contains("diverged") && out.contains("rollback"), "{out}\n{error}");
}

/// A device that passes a probe may fail a model: with CubeCL as published SwiftShader's matrix products are wrong at some sizes. With ours they are
/// not, and the whole run is trained there.
#[test]
fn a_vulkan_device_computes_rightly_or_is_refused() {
    let Some(icd) = std::env::var_os("BELLOWS_SWIFTSHADER") else {
        eprintln!("skipped: set BELLOWS_SWIFTSHADER to a Vulkan ICD file (.ci/swiftshader prints one)");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let args = ["--config", "tiny.yaml", "--epochs", "1", "--max-samples", "4", "--save-merged", "false", "--device"];
    expect_code(&mut llm_finetune(dir.path(), &[&args[..], &["cpu", "--name", "cpu"]].concat()), 0);
    let output =
        llm_finetune(dir.path(), &[&args[..], &["vulkan:0", "--name", "vulkan"]].concat()).env("VK_DRIVER_FILES", &icd).output().unwrap();
    // It has no f16: what a run would be refused for, its plan says.
    let plan = ["plan", "--size", "tiny", "--precision", "fp16", "--device", "vulkan:0", "--json"];
    let (plan, _) = expect_code(llm_finetune(dir.path(), &plan).env("VK_DRIVER_FILES", &icd), 0);
    let plan: Value = serde_json::from_str(&plan).unwrap();
    assert!(plan["fits"] == false && plan["refused"].as_str().is_some_and(|why| why.contains("has no f16")), "{plan}");
    let base = dir.path().join("runs/sft/cpu/base");
    let said = |device| {
        let args = ["generate", "--model", base.to_str().unwrap(), "--prompt", "Say one.", "--temperature", "0", "--max-new-tokens", "8"];
        let output = llm_finetune(dir.path(), &[&args[..], &["--device", device]].concat()).env("VK_DRIVER_FILES", &icd).output().unwrap();
        let wrong = String::from_utf8_lossy(&output.stderr).contains("computes the model's first layer wrongly");
        (!wrong).then_some(output.stdout)
    };
    assert!(said("vulkan:0").is_none_or(|text| text == said("cpu").unwrap()), "wrong words on vulkan");
    if output.status.code() == Some(2) {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("computes the model's first layer wrongly"), "{said}");
        assert!(!dir.path().join("runs/sft/vulkan").exists());
        return;
    }
    let loss = |name: &str| {
        let text = std::fs::read_to_string(dir.path().join("runs/sft").join(name).join("results.csv")).unwrap();
        text.lines().nth(1).unwrap().split(',').nth(2).unwrap().parse::<f64>().unwrap()
    };
    assert!((loss("cpu") - loss("vulkan")).abs() < 1e-2 * loss("cpu"), "{} {}", loss("cpu"), loss("vulkan"));
}
