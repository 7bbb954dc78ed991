//! `export --format gguf-lora` and `data preview` as a user meets them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::process::{Command, Output};

use bellows_qwen::adapter::LoraConfig;
use bellows_qwen::base::Base;
use bellows_qwen::export::write_transformers;
use bellows_qwen::peft;
use bellows_weights::DType;
use bellows_weights::gguf::Gguf;
use burn::tensor::Device;

fn run(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llm-finetune"));
    let Output { status, stdout, stderr } = command.current_dir(dir).args(args).env("XDG_CACHE_HOME", dir.join("cache")).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

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
    assert!(out.contains("Saved new/out.gguf and new/Modelfile"), "{out}");
    assert_eq!(Gguf::open(&dir.path().join("new/out.gguf")).unwrap().tensors().len(), 4 * 7 * 2);
    let text = std::fs::read_to_string(dir.path().join("new/Modelfile")).unwrap();
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
