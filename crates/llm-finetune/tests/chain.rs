//! A user's way with a real model, program by program: a plan, training in four bits that is killed and goes on, a merged model, a GGUF with a Modelfile, an
//! answer. SmolLM2-135M is fetched when the test runs; it is skipped where it cannot be.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test may panic, and shares a file")]

#[path = "../../chat/tests/support/assets.rs"]
mod assets;

use crate::program;
use serde_json::Value;

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

#[test]
fn from_a_plan_to_an_answer_of_smollm() {
    let Some(folder) = assets::asset("smollm2", &[FILE]) else { return };
    let model = folder.join(FILE).display().to_string();
    let dir = tempfile::tempdir().unwrap();
    let (set, runs) = (dir.path().join("set"), dir.path().join("runs"));
    std::fs::create_dir(&set).unwrap();
    let chats: Vec<&str> = include_str!("../../qwen/tests/smollm/chats.jsonl").lines().collect();
    for (file, chats) in [("train.jsonl", &chats[..4]), ("valid.jsonl", &chats[4..5])] {
        std::fs::write(set.join(file), chats.join("\n")).unwrap();
    }
    let run = |args: &[&str]| {
        let (code, out, error) = program::run(dir.path(), args);
        assert_eq!(code, 0, "{args:?}: {out}{error}");
        out
    };
    let settings = ["--model", &model, "--data", "set", "--base-dtype", "nf4", "--max-seq-length", "64", "--device", "cpu"];
    let planned: Value = serde_json::from_str(&run(&[&["plan", "--json"], &settings[..]].concat())).unwrap();

    // A checkpoint after every step; the second one is not finished.
    let train = ["--epochs", "1", "--gradient-accumulation-steps", "1", "--checkpoint-minutes", "0", "--project", "runs", "--name"];
    let train = |name| [&settings[..], &train, &[name]].concat();
    let mut killed = program::program(dir.path(), &train("killed"));
    assert_eq!(killed.env("BELLOWS_FAULT", "kill:save:2").output().unwrap().status.code(), None, "it was to be killed");
    let out = run(&["--resume", "runs/killed"]);
    let held =
        out.lines().find_map(|line| line.strip_prefix("memory: ")?.split_once(" GB at most").map(|(gb, _)| gb.parse::<f64>().unwrap()));
    if let Some(held) = held {
        let off = planned["peak_gb"].as_f64().unwrap() / held - 1.0;
        assert!(off.abs() < 0.15, "{planned}: {held} GB were held");
    }
    run(&train("whole"));
    let adapter = |name: &str| std::fs::read(runs.join(name).join("adapter/adapter_model.safetensors")).unwrap();
    assert!(adapter("killed") == adapter("whole"), "killed and resumed it ends in another adapter");

    let of_run = ["--model", &model, "--adapter", "runs/killed/adapter", "--out"];
    run(&[&["merge", "--dtype", "f32"], &of_run[..], &["merged"]].concat());
    run(&[&["export", "--quant", "q8_0"], &of_run[..], &["chat.gguf"]].concat());
    let modelfile = std::fs::read_to_string(dir.path().join("chat.Modelfile")).unwrap();
    assert!(modelfile.starts_with("FROM ./chat.gguf\n") && modelfile.contains("TEMPLATE "), "{modelfile}");
    let answer = |model: &str| {
        let asked = ["generate", "--model", model, "--prompt", "What should I bring home from Coldharbor?"];
        run(&[&asked[..], &["--temperature", "0", "--max-new-tokens", "16", "--device", "cpu"]].concat())
    };
    let [merged, exported] = ["merged", "chat.gguf"].map(answer);
    assert!(merged.split_whitespace().count() > 4, "{merged}");
    // Rounded to 8 bits it may end otherwise.
    let beginning = |text: &str| text.split_whitespace().take(3).map(String::from).collect::<Vec<_>>();
    assert_eq!(beginning(&merged), beginning(&exported), "{merged}{exported}");
}
