//! `merge`, `export` and `data preview` as a user meets them, and the code of a run whose result cannot be saved.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use crate::program::run;
use bellows_qwen::adapter::LoraConfig;
use bellows_qwen::base::{Base, random};
use bellows_qwen::export::{write_gguf, write_transformers};
use bellows_qwen::grow::{add_tokens, adopt};
use bellows_qwen::load::replace;
use bellows_qwen::peft;
use bellows_weights::gguf::{self, Gguf, Preset, TensorInfo};
use bellows_weights::{BlockType, Checkpoint, DType, WeightsError, read};
use burn::tensor::Device;

#[test]
fn an_adapter_alone_becomes_a_gguf_and_a_modelfile() {
    let dir = tempfile::tempdir().unwrap();
    let base = Base::tiny(["What is 2 plus 3?"], 0, &Device::flex()).unwrap();
    write_transformers(&dir.path().join("model"), &base.model, &base.config, &base.tokenizer, DType::F32).unwrap();
    let adapter = |name: &str, config: &LoraConfig| {
        let model = config.apply(base.model.clone(), 0).unwrap();
        peft::write(&dir.path().join(name), &model, config, Some("model")).unwrap();
    };
    adapter("adapter", &LoraConfig::default());
    adapter("dora", &LoraConfig { use_dora: true, ..LoraConfig::default() });

    let export = |more: &[&str]| {
        run(dir.path(), &[&["export", "--model", "model", "--format", "gguf-lora", "--out", "new/out.gguf"], more].concat())
    };
    let (code, out, error) = export(&["--adapter", "adapter", "--system", "Be brief."]);
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("Saved new/out.gguf and new/out.Modelfile"), "{out}");
    assert_eq!(Gguf::open(&dir.path().join("new/out.gguf")).unwrap().tensors().len(), 4 * 7 * 2);
    let text = std::fs::read_to_string(dir.path().join("new/out.Modelfile")).unwrap();
    let from = dir.path().join("model").canonicalize().unwrap();
    assert!(text.starts_with(&format!("FROM {}\nADAPTER ./out.gguf\n", from.display())) && text.contains("Be brief."), "{text}");

    for (args, word) in [
        (&["--adapter", "dora"][..], "DoRA"),
        (&[], "--adapter"),
        (&["--adapter", "adapter", "--quant", "q8_0"], "leave out --quant"),
        (&["--adapter", "nowhere"], "nowhere"),
    ] {
        let (code, _, error) = export(args);
        assert!(code == 2 && error.contains(word), "{args:?}: {code} {error}");
    }
}

#[test]
fn a_preview_in_a_pipe_marks_what_is_learnt_without_colours() {
    let dir = tempfile::tempdir().unwrap();
    let row = |q: &str, a: &str| format!("{{\"prompt\": \"{q}\", \"completion\": \"{a}\"}}\n");
    let rows: String = (0..20).map(|i| row(&format!("one more than {i}? "), &format!("{}", i + 1))).collect();
    std::fs::write(dir.path().join("train.jsonl"), rows + &row(&"long ".repeat(30), "yes")).unwrap();
    std::fs::write(dir.path().join("valid.jsonl"), row("two more than 3? ", "5")).unwrap();
    let args =
        ["data", "preview", "--model", "tiny", "--data", ".", "--examples", "2", "--max-seq-length", "32", "--truncation", "keep_end"];
    let (code, out, error) = run(dir.path(), &args);
    assert_eq!(code, 0, "{error}");
    for part in [
        "what is learnt is in ⟦⟧",
        "example 2 of 21",
        "⟦",
        "truncated  4.8 %",
        "padding at batch size",
        "as set     21 batches",
        "validation 1 examples",
    ] {
        assert!(out.contains(part), "no {part:?} in\n{out}");
    }
    assert!(!out.contains('\u{1b}'), "{out:?}");
}

#[test]
fn a_preview_of_pairs_counts_pairs() {
    let dir = tempfile::tempdir().unwrap();
    let rows = (0..6).map(|i| format!("{{\"prompt\": \"after {i}? \", \"chosen\": \"{}\", \"rejected\": \"no idea\"}}\n", i + 1));
    std::fs::write(dir.path().join("pairs.jsonl"), rows.collect::<String>()).unwrap();
    let of = ["data", "preview", "--model", "tiny", "--data", "pairs.jsonl", "--objective", "dpo"];
    let (code, out, error) = run(dir.path(), &[&of[..], &["--batch-size", "4", "--val-size", "1", "--examples", "1"]].concat());
    assert_eq!(code, 0, "{error}");
    for part in ["1 of 5, chosen", "1 of 5, rejected", "pairs      5, of which 5 kept", "as set     2 batches", "validation 1 pairs"] {
        assert!(out.contains(part), "no {part:?} in\n{out}");
    }
    assert!(!out.contains("pair 2 of 5") && !out.contains("packing"), "{out}");
}

#[test]
fn the_model_itself_and_files_of_others_are_not_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let base = Base::tiny(["What is 2 plus 3?"], 0, &Device::flex()).unwrap();
    write_transformers(&dir.path().join("model"), &base.model, &base.config, &base.tokenizer, DType::F32).unwrap();
    std::fs::create_dir(dir.path().join("out")).unwrap();
    std::fs::write(dir.path().join("out/Modelfile"), "mine").unwrap();
    let weights = || std::fs::read(dir.path().join("model/model.safetensors")).unwrap();
    let before = weights();
    let (code, _, error) = run(dir.path(), &["merge", "--model", "model", "--out", "./out/../model", "--dtype", "f16"]);
    assert!(code == 2 && error.contains("is the model itself"), "{code} {error}");
    assert_eq!(weights(), before);
    assert_eq!(run(dir.path(), &["merge", "--model", "model", "--out", "other"]).0, 0);

    let lora = LoraConfig::default();
    let adapted = lora.apply(base.model.clone(), 0).unwrap();
    peft::write(&dir.path().join("adapter"), &adapted, &lora, Some("model")).unwrap();
    let adapter = || std::fs::read(dir.path().join("adapter/adapter_model.safetensors")).unwrap();
    let learnt = adapter();
    for (verb, out, why) in [
        ("merge", "adapter", "holds an adapter"),
        ("export", "adapter/adapter_model.safetensors", "is a file of the model or of the adapter"),
        ("export", "model/model.safetensors", "is a file of the model or of the adapter"),
    ] {
        let (code, _, error) = run(dir.path(), &[verb, "--model", "model", "--adapter", "adapter", "--out", out]);
        assert!(code == 2 && error.contains(why), "{verb} {out}: {code} {error}");
    }
    assert!(weights() == before && adapter() == learnt && !dir.path().join("adapter/config.json").exists());

    assert_eq!(run(dir.path(), &["export", "--model", "model", "--out", "out/a.gguf"]).0, 0);
    assert_eq!(std::fs::read_to_string(dir.path().join("out/Modelfile")).unwrap(), "mine");
    assert!(std::fs::read_to_string(dir.path().join("out/a.Modelfile")).unwrap().starts_with("FROM ./a.gguf\n"));
    let (code, _, error) = run(dir.path(), &["export", "--model", "out/a.gguf", "--quant", "f16", "--out", "out/a.gguf"]);
    assert!(code == 2 && error.contains("is the model itself"), "{code} {error}");
    for name in ["tiny-0.5b-a", "tiny-0.5b-b"] {
        assert_eq!(run(dir.path(), &["export", "--model", "model", "--out", &format!("out/{name}")]).0, 0);
    }
    for name in ["tiny-0.5b-a", "tiny-0.5b-b"] {
        let text = std::fs::read_to_string(dir.path().join(format!("out/{name}.Modelfile"))).unwrap();
        assert!(text.starts_with(&format!("FROM ./{name}\n")), "{text}");
    }
}

/// With the tokenizer of the adapter, which has more tokens than the model has rows, or a model that was cut to the tokens there are, as
/// `resize_token_embeddings` does.
#[test]
fn an_adapter_with_other_rows_is_merged_as_it_was_trained() {
    let (dir, device) = (tempfile::tempdir().unwrap(), Device::flex());
    let at = |name: &str| dir.path().join(name);
    for (tied, many) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut base = Base::tiny(["What is 2 plus 3?"], 0, &device).unwrap();
        base.config.tie_word_embeddings = tied;
        base.model = random(&base.config, 0, &device);
        write_transformers(&at("model"), &base.model, &base.config, &base.tokenizer, DType::F32).unwrap();
        let rows = base.config.vocab_size;
        if many {
            let tokens: Vec<String> = (0..rows).map(|i| format!("<word {i}>")).collect();
            add_tokens(&mut base, &tokens).unwrap();
        } else {
            let (tokenizer, tokens) = (base.tokenizer.clone(), base.tokenizer.len());
            adopt(&mut base, tokenizer, tokens);
        }
        assert_ne!(base.config.vocab_size, rows);
        // The embedding is trained, or as PEFT saves it of its own accord; a head of its own is not in the file.
        let lora = match many {
            true => LoraConfig { modules_to_save: vec!["embed_tokens".into()], ..LoraConfig::default() },
            false => LoraConfig { brought: ["model.embed_tokens.weight".to_owned()].into(), ..LoraConfig::default() },
        };
        let model = lora.apply(base.model, 0).unwrap();
        let waves = |shape: [usize; 2]| (shape.to_vec(), (0..shape[0] * shape[1]).map(|i| (i as f32).sin()).collect());
        let moved = |name: &str| match name {
            "model.embed_tokens.weight" => Some(waves([base.config.vocab_size, 128])),
            _ => name.ends_with("v_proj.lora.lora_B").then(|| waves([64, 16])),
        };
        let model = replace(model, moved).unwrap().0;
        std::fs::remove_dir_all(at("adapter")).ok();
        peft::write(&at("adapter"), &model, &lora, Some("model")).unwrap();
        // Fewer rows need no other tokenizer, and PEFT saves none.
        if many {
            base.tokenizer.save(&at("adapter")).unwrap();
        }
        write_transformers(&at("whole"), &model, &base.config, &base.tokenizer, DType::F32).unwrap();
        write_gguf(&at("whole.gguf"), &model, &base.config, &base.tokenizer, Preset::Q8_0, "whole").unwrap();

        let args = ["--model", "model", "--adapter", "adapter", "--out"];
        for (verb, out) in [("merge", &["merged", "--dtype", "f32"][..]), ("export", &["merged.gguf"])] {
            let (code, _, error) = run(dir.path(), &[&[verb], &args[..], out].concat());
            assert_eq!(code, 0, "{verb}, tied {tied}, many {many}: {error}");
        }
        let [ours, theirs] = ["merged", "whole"].map(|name| read(&at(name).join("model.safetensors")).unwrap().tensors);
        let differ: Vec<_> = theirs.iter().filter(|(name, tensor)| ours.get(*name) != Some(*tensor)).map(|(name, _)| name).collect();
        assert!(differ.is_empty() && ours.len() == theirs.len(), "tied {tied}, many {many}: {differ:?}");
        let [ours, theirs] = ["merged.gguf", "whole.gguf"].map(|name| Gguf::open(&at(name)).unwrap());
        assert_eq!(ours.tensors(), theirs.tensors());
        for name in theirs.tensors().keys() {
            assert!(ours.tensor_bytes(name).unwrap() == theirs.tensor_bytes(name).unwrap(), "{name}, tied {tied}, many {many}");
        }
    }
}

#[test]
fn a_merge_to_f16_tells_what_it_cut() {
    let dir = tempfile::tempdir().unwrap();
    let mut base = Base::tiny(["What is 2 plus 3?"], 0, &Device::flex()).unwrap();
    let large = |name: &str| (name == "model.norm.weight").then(|| (vec![128], [vec![1e6, -65504.0, -1e5], vec![1.0; 125]].concat()));
    base.model = replace(base.model, large).unwrap().0;
    write_transformers(&dir.path().join("model"), &base.model, &base.config, &base.tokenizer, DType::F32).unwrap();
    for (dtype, told) in [("f16", "warning: model.norm.weight: 2 values beyond ±65504 were cut\n"), ("f32", ""), ("bf16", "")] {
        let (code, out, error) = run(dir.path(), &["merge", "--model", "model", "--out", "merged", "--dtype", dtype]);
        assert_eq!((code, out), (0, format!("{told}Saved merged in {dtype}\n")), "{error}");
    }
}

/// By `merge` without a type, and at the end of a run.
#[test]
fn a_merged_model_has_the_type_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let base = Base::tiny(["What is 2 plus 3?"], 0, &Device::flex()).unwrap();
    for (name, dtype) in [("f16", DType::F16), ("bf16", DType::BF16), ("f32", DType::F32)] {
        write_transformers(&at(name), &base.model, &base.config, &base.tokenizer, dtype).unwrap();
    }
    for (name, preset) in [("f16.gguf", Preset::F16), ("q8_0.gguf", Preset::Q8_0)] {
        write_gguf(&at(name), &base.model, &base.config, &base.tokenizer, preset, "tiny").unwrap();
    }
    let is = |folder: &str, dtype: DType| {
        let files = Checkpoint::open(&at(folder)).unwrap();
        assert!(files.tensors().all(|(_, spec)| spec.dtype == dtype), "{folder}: {:?}", files.tensors().next());
    };
    let types = [("f16", DType::F16), ("bf16", DType::BF16), ("f32", DType::F32), ("f16.gguf", DType::F16), ("q8_0.gguf", DType::BF16)];
    for (model, dtype) in types {
        let (code, out, error) = run(dir.path(), &["merge", "--model", model, "--out", "merged"]);
        let name = dtype.to_string().to_lowercase();
        assert_eq!((code, out), (0, format!("Saved merged in {name}\n")), "{model}: {error}");
        is("merged", dtype);
    }
    std::fs::write(at("rows.jsonl"), "{\"prompt\": \"one more than 2? \", \"completion\": \"3\"}\n").unwrap();
    let train = ["--data", "rows.jsonl", "--epochs", "1", "--max-seq-length", "32", "--device", "cpu", "--save-merged"];
    for (model, stored, dtype) in [("bf16", "auto", DType::BF16), ("f16", "nf4", DType::F16)] {
        let (code, out, error) = run(dir.path(), &[&train[..], &["--model", model, "--base-dtype", stored, "--name", model]].concat());
        assert!(code == 0 && out.contains(&format!("Saved runs/sft/{model}/merged in {model}\n")), "{out}{error}");
        is(&format!("runs/sft/{model}/merged"), dtype);
    }
}

#[test]
fn a_gguf_with_tensors_that_would_go_unused_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let base = Base::tiny(["What is 2 plus 3?"], 0, &Device::flex()).unwrap();
    let path = dir.path().join("model.gguf");
    write_gguf(&path, &base.model, &base.config, &base.tokenizer, Preset::Q8_0, "tiny").unwrap();
    let file = Gguf::open(&path).unwrap();
    // Llama 3's scaled rotary frequencies, a bias that the decoder has no place for, a head of its own (which it has).
    for (extra, shape, code) in
        [("rope_freqs.weight", vec![16], 2), ("blk.1.attn_output.bias", vec![128], 2), ("output.weight", vec![0; 2], 0)]
    {
        let shape = if code == 0 { file.tensors()["token_embd.weight"].shape.clone() } else { shape };
        let mut infos = file.tensors().clone();
        infos.insert(extra.into(), TensorInfo { kind: BlockType::F32, shape: shape.clone() });
        let out = std::fs::File::create(dir.path().join("extra.gguf")).unwrap();
        let values = |name: &str| if name == extra { Ok(vec![1.0; shape.iter().product()]) } else { file.tensor_f32(name) };
        gguf::write::<WeightsError>(out, file.metadata(), &infos, values).unwrap();
        let (found, _, error) = run(dir.path(), &["merge", "--model", "extra.gguf", "--out", "merged"]);
        assert_eq!(found, code, "{extra}: {error}");
        assert!(code == 0 || error.contains("extra.gguf") && error.contains(extra), "{error}");
    }
}

#[test]
fn a_wrong_tokenizer_is_the_users_and_a_failing_disk_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let base = Base::tiny(["What is 2 plus 3?"], 0, &Device::flex()).unwrap();
    let model = dir.path().join("model");
    write_transformers(&model, &base.model, &base.config, &base.tokenizer, DType::F32).unwrap();
    for taken in ["tokenizer.json", "config.json", "model.safetensors"] {
        std::fs::create_dir_all(dir.path().join(taken).join(taken)).unwrap();
        let (code, _, error) = run(dir.path(), &["merge", "--model", "model", "--out", taken]);
        assert!(code == 1 && error.contains(taken), "{code} {error}");
    }
    let text = std::fs::read_to_string(model.join("tokenizer.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["pre_tokenizer"] = serde_json::json!({ "type": "WhitespaceSplit" });
    std::fs::write(model.join("tokenizer.json"), json.to_string()).unwrap();
    let (code, _, error) = run(dir.path(), &["export", "--model", "model", "--out", "m.gguf"]);
    assert!(code == 2 && error.contains("tokenizer"), "{code} {error}");
}

#[test]
fn a_result_that_cannot_be_saved_is_code_3() {
    let dir = tempfile::tempdir().unwrap();
    let rows: String = (0..4).map(|i| format!("{{\"prompt\": \"one more than {i}? \", \"completion\": \"{}\"}}\n", i + 1)).collect();
    std::fs::write(dir.path().join("rows.jsonl"), rows).unwrap();
    let merged: &[&str] = &["--base-dtype", "nf4", "--save-merged"];
    for (method, place, more) in [("lora", "adapter", merged), ("full", "model", &[])] {
        // A file where the directory of the result belongs.
        std::fs::create_dir_all(dir.path().join("runs").join(method)).unwrap();
        std::fs::write(dir.path().join("runs").join(method).join(place), "").unwrap();
        let train = ["--model", "tiny", "--data", "rows.jsonl", "--epochs", "1", "--max-seq-length", "32", "--device", "cpu"];
        let (code, _, error) =
            run(dir.path(), &[&train[..], &["--method", method, "--project", "runs", "--name", method, "--exist-ok"], more].concat());
        let last = error.lines().last().unwrap_or_default();
        assert!(code == 3 && last.starts_with("error: ") && last.contains(&format!("runs/{method}/{place}")), "{code} {error}");
        // It is merged all the same: from the run, not from what lies where its adapter should.
        assert_eq!(dir.path().join(format!("runs/{method}/merged/model.safetensors")).exists(), !more.is_empty());
    }
}

/// What the new run does not write would be taken for its own.
#[test]
fn what_the_run_before_has_left_is_set_aside_but_for_what_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let base = Base::tiny(["one more than 2? "], 0, &Device::flex()).unwrap();
    write_transformers(&dir.path().join("model"), &base.model, &base.config, &base.tokenizer, DType::F32).unwrap();
    let rows: String = (0..4).map(|i| format!("{{\"prompt\": \"one more than {i}? \", \"completion\": \"{}\"}}\n", i + 1)).collect();
    std::fs::write(dir.path().join("rows.jsonl"), rows).unwrap();
    let at = |name: &str| dir.path().join("runs/sft/train").join(name);
    let train = |more: &[&str]| {
        let args = ["--model", "model", "--data", "rows.jsonl", "--epochs", "1", "--max-seq-length", "32", "--device", "cpu", "--exist-ok"];
        let (code, out, error) = run(dir.path(), &[&args[..], more].concat());
        assert_eq!(code, 0, "{error}");
        out
    };
    let out = train(&["--val-size", "1", "--save-merged", "--save-gguf", "q8_0"]);
    assert!(!out.contains("set aside"), "{out}");
    std::fs::write(at("mine.gguf"), "of the user").unwrap();

    // Its adapter is where the next one begins, also when that is resumed.
    let out = train(&["--adapter", "runs/sft/train/adapter"]);
    assert_eq!(out.matches(" are set aside: they are called NAME.abandoned").count(), 1, "{out}");
    for name in ["merged", "model-q8_0.gguf", "model-q8_0.Modelfile", "weights/best.safetensors"] {
        assert!(!at(name).exists() && at(&format!("{name}.abandoned")).exists(), "{name}");
    }
    assert!(at("mine.gguf").exists() && at("weights/last.safetensors").exists() && !at("adapter.abandoned").exists());
    let learnt = std::fs::read(at("adapter/adapter_model.safetensors")).unwrap();
    train(&[]);
    assert!(std::fs::read(at("adapter.abandoned/adapter_model.safetensors")).unwrap() == learnt);
    let (code, out, error) = run(dir.path(), &["--resume", "runs/sft/train"]);
    assert!(code == 0 && !out.contains("set aside") && at("adapter/adapter_model.safetensors").exists(), "{code} {out}{error}");
}

/// Before a device is asked, which is to prove the adapter's own ranks.
#[test]
fn a_run_whose_adapter_is_gone_says_how_it_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (base, lora) = (Base::tiny(["one more than 2? "], 0, &Device::flex()).unwrap(), LoraConfig::default());
    write_transformers(&dir.path().join("model"), &base.model, &base.config, &base.tokenizer, DType::F32).unwrap();
    peft::write(&dir.path().join("adapter"), &lora.apply(base.model, 0).unwrap(), &lora, Some("model")).unwrap();
    let rows: String = (0..4).map(|i| format!("{{\"prompt\": \"one more than {i}? \", \"completion\": \"{}\"}}\n", i + 1)).collect();
    std::fs::write(dir.path().join("rows.jsonl"), rows).unwrap();
    let args = ["--model", "model", "--adapter", "adapter", "--data", "rows.jsonl", "--epochs", "1", "--max-seq-length", "32"];
    let (code, _, error) = run(dir.path(), &[&args[..], &["--device", "cpu"]].concat());
    assert_eq!(code, 0, "{error}");
    std::fs::rename(dir.path().join("adapter"), dir.path().join("elsewhere")).unwrap();
    let resume = |more: &[&str]| run(dir.path(), &[&["--resume", "runs/sft/train"], more].concat());
    let (code, out, error) = resume(&[]);
    assert!(code == 2 && error.contains("there is no adapter/adapter_config.json any more") && error.contains("--adapter DIR"), "{error}");
    assert!(!out.contains("device: "), "{out}");
    let (code, _, error) = resume(&["--adapter", "elsewhere"]);
    assert_eq!(code, 0, "{error}");
}

#[test]
fn a_preview_names_ten_faulty_rows() {
    let dir = tempfile::tempdir().unwrap();
    let good = "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
    let preview = || run(dir.path(), &["data", "preview", "--model", "tiny", "--data", "rows.jsonl"]);
    // Of two kinds: no JSON, and a chat without an answer.
    let silent = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n";
    std::fs::write(dir.path().join("rows.jsonl"), format!("{good}{{\n{good}{silent}")).unwrap();
    let (code, out, error) = preview();
    assert!(code == 2 && error.contains("rows.jsonl:2") && error.contains("rows.jsonl:4"), "{error}");
    assert!(error.ends_with("error: 2 rows cannot be used\n") && out.is_empty(), "{error}");
    std::fs::write(dir.path().join("rows.jsonl"), good.to_owned() + &"{\n".repeat(12)).unwrap();
    let (code, _, error) = preview();
    assert!(code == 2 && error.contains("rows.jsonl:11") && !error.contains("rows.jsonl:12"), "{error}");
    assert!(error.ends_with("10 rows cannot be used, and there may be more\n"), "{error}");
}

#[test]
fn a_benchmark_times_what_it_was_asked_for_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for (flag, value) in [("--batch", "0"), ("--seq", "1"), ("--rank", "0"), ("--steps", "0")] {
        let (code, _, error) = run(dir.path(), &["benchmark", "--size", "tiny", flag, value]);
        assert!(code == 2 && error.contains(&format!("{flag} is {value}, and must be at least")), "{code} {error}");
    }
    let (code, _, error) = run(dir.path(), &["benchmark", "--size", "tiny", "--seq", "2", "--rank", "4000000000"]);
    assert!(code == 2 && error.contains("r is 4000000000"), "{code} {error}");
}
