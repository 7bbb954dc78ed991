//! `eval` as a user and a script meet it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use crate::program::run;
use bellows_qwen::adapter::LoraConfig;
use bellows_qwen::base::Base;
use bellows_qwen::export::write_transformers;
use bellows_qwen::load::replace;
use bellows_qwen::peft;
use bellows_weights::DType;
use burn::tensor::Device;
use serde_json::Value;

#[test]
fn a_model_is_judged_before_and_after_an_adapter() {
    let dir = tempfile::tempdir().unwrap();
    let base = Base::tiny(["What is 2 plus 3? It is 5."], 0, &Device::flex()).unwrap();
    write_transformers(&dir.path().join("model"), &base.model, &base.config, &base.tokenizer, DType::F32).unwrap();
    let lora = LoraConfig::default();
    let model = lora.apply(base.model, 0).unwrap();
    let shifted =
        |name: &str| name.ends_with("v_proj.lora.lora_B").then(|| (vec![64, 16], (0..1024).map(|i| (i % 7) as f32 * 0.05).collect()));
    peft::write(&dir.path().join("adapter"), &replace(model, shifted).unwrap().0, &lora, Some("model")).unwrap();
    let rows = [
        r#"{"messages": [{"role": "user", "content": "What is 2 plus 3?"}, {"role": "assistant", "content": "5."}]}"#,
        r#"{"text": "It is 5."}"#,
        r#"{"prompt": "What is 2 plus 3?", "answer": "nobody says this"}"#,
        r#"{"prompt": "What is 2 plus 3?", "choices": ["5.", "It is 3."], "answer": "A"}"#,
    ];
    std::fs::write(dir.path().join("rows.jsonl"), rows.join("\n")).unwrap();
    let eval = |more: &[&str]| {
        let plain =
            ["eval", "--model", "model", "--device", "cpu", "--data", "rows.jsonl", "--chat-template", "chatml", "--max-new-tokens", "3"];
        run(dir.path(), &[&plain, more].concat())
    };
    let (code, out, error) = eval(&["--adapter", "adapter", "--json"]);
    assert_eq!(code, 0, "{error}");
    let json: Value = serde_json::from_str(&out).unwrap();
    for part in ["base", "adapted"] {
        let scores = &json[part];
        let (loss, perplexity) = (scores["loss"].as_f64().unwrap(), scores["perplexity"].as_f64().unwrap());
        assert!((perplexity / loss.exp() - 1.0).abs() < 1e-12 && (5.0..8.0).contains(&loss), "{json}");
        assert_eq!(scores["exact_match"], serde_json::json!({ "right": 0, "rows": 1 }), "{json}");
        assert_eq!(scores["choice"]["rows"], 1, "{json}");
    }
    assert_ne!(json["base"]["loss"], json["adapted"]["loss"]);
    assert_eq!(json["base"]["tokens"], json["adapted"]["tokens"]);

    // One model, for a person; the same numbers.
    let (code, out, _) = eval(&[]);
    let loss = format!("{:.4}", json["base"]["loss"].as_f64().unwrap());
    assert!(code == 0 && out.lines().any(|line| line.starts_with("loss") && line.ends_with(&loss)), "{out}");
    assert!(out.contains("exact match       0.0 % (0 of 1, ") && !out.contains("adapter"), "{out}");
    // Two files are one: the same rows twice have the same loss.
    let twice = ["eval", "--model", "model", "--device", "cpu", "--data", "rows.jsonl,rows.jsonl", "--chat-template", "chatml", "--json"];
    let (code, out, error) = run(dir.path(), &twice);
    assert_eq!(code, 0, "{error}");
    let both: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(both["base"]["tokens"].as_u64().unwrap(), 2 * json["base"]["tokens"].as_u64().unwrap());
    assert!((both["base"]["loss"].as_f64().unwrap() / json["base"]["loss"].as_f64().unwrap() - 1.0).abs() < 1e-6, "{both}");
    assert_eq!(both["base"]["choice"]["rows"], 2);
    // A folder as training takes it: judged by what it was not trained with.
    for folder in ["set", "pieces/data"] {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        std::fs::write(dir.path().join(folder).join("train.jsonl"), rows[1]).unwrap();
    }
    std::fs::write(dir.path().join("set/test.jsonl"), rows.join("\n")).unwrap();
    for piece in 0..2 {
        std::fs::write(dir.path().join(format!("pieces/data/validation-0000{piece}-of-00002.jsonl")), rows.join("\n")).unwrap();
    }
    for (folder, same) in [("set", &json["base"]), ("pieces", &both["base"])] {
        let args = ["eval", "--model", "model", "--device", "cpu", "--data", folder, "--chat-template", "chatml", "--max-new-tokens", "3"];
        let (code, out, error) = run(dir.path(), &[&args[..], &["--json"]].concat());
        assert_eq!(code, 0, "{error}");
        let scores: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&scores["base"]["tokens"], &scores["base"]["choice"]["rows"]), (&same["tokens"], &same["choice"]["rows"]), "{folder}");
    }
    // Nothing was too long.
    std::fs::write(dir.path().join("gaps.jsonl"), [rows[1], r#"{"text": ""}"#, r#"{"text": ""}"#].join("\n")).unwrap();
    let (code, _, error) =
        run(dir.path(), &["eval", "--model", "model", "--device", "cpu", "--data", "gaps.jsonl", "--chat-template", "chatml"]);
    assert!(code == 0 && error.contains("2 rows without a character of text were left out"), "{code} {error}");
    assert!(!error.contains("max_seq_length"), "{error}");
    for (args, part) in [
        (&["eval", "--model", "model"][..], "--data"),
        (&["eval", "--data", "rows.jsonl"], "--model"),
        (&["eval", "--model", "model", "--data", "nowhere.jsonl"], "nowhere.jsonl"),
        (&["eval", "--model", "model", "--data", "rows.jsonl", "--adapter", "nowhere"], "nowhere"),
    ] {
        let (code, _, error) = run(dir.path(), args);
        assert!(code == 2 && error.contains(part), "{args:?}: {code} {error}");
    }
}
