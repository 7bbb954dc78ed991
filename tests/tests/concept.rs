//! `llm-finetune concept` and the chain of `--concept`: files, mistakes, and a kill in every stage.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use serde_json::Value;
use support::{expect_code, llm_finetune, tiny_chats, wait_for};

/// A small model in `dir/base`, prompt sets in `dir/sets`, chats beside them.
fn world(dir: &Path) {
    tiny_chats(dir);
    let args = ["--config", "tiny.yaml", "--epochs", "1", "--save-merged", "true", "--project", "made"];
    expect_code(&mut llm_finetune(dir, &args), 0);
    std::fs::rename(dir.join("made/train/merged"), dir.join("base")).unwrap();
    std::fs::create_dir(dir.join("sets")).unwrap();
    let words = ["one", "two", "three", "four", "five", "six", "seven"];
    let lines = |say: &str| (0..16).map(|i| format!("{say} {}.\n", words[i % 7].repeat(1 + i / 7))).collect::<String>();
    std::fs::write(dir.join("sets/target.txt"), lines("Say")).unwrap();
    std::fs::write(dir.join("sets/baseline.txt"), lines("again")).unwrap();
    std::fs::write(dir.join("sets/markers.txt"), "One\nIt is\n").unwrap();
    std::fs::write(dir.join("sets/guard.txt"), "It is so. It is so. One. Two. Three. It is so.\n").unwrap();
    let settings = std::fs::read_to_string(dir.join("tiny.yaml")).unwrap();
    std::fs::write(dir.join("tune.yaml"), settings.replace("model: tiny", "model: base")).unwrap();
}

#[test]
fn the_verbs_follow_each_other() {
    let dir = tempfile::tempdir().unwrap();
    world(dir.path());
    let concept = |args: &[&str], code| {
        expect_code(&mut llm_finetune(dir.path(), &[&["concept"], args, &["--model", "base", "--concept-device", "cpu"]].concat()), code)
    };
    let (out, _) = concept(&["extract", "--sets", "sets", "--out", "found"], 0);
    assert!(out.contains("AUC") && out.contains("chosen") && dir.path().join("found/separation.png").is_file(), "{out}");
    let (out, _) = concept(&["score", "--sets", "sets", "--concept", "found", "--layers", "1-2"], 0);
    assert!(out.contains("log-odds of a marker") && dir.path().join("found/scores.png").is_file(), "{out}");
    let (out, err) =
        concept(&["ablate", "--concept", "found", "--layers", "1-2", "--strength", "0.8", "--norm-preserving", "--out", "edited"], 0);
    assert!(out.contains("out of layers 1-2, strength 0.8") && err.contains("tie_word_embeddings"), "{out}{err}");
    let config: Value = serde_json::from_str(&std::fs::read_to_string(dir.path().join("edited/config.json")).unwrap()).unwrap();
    assert_eq!(
        (config["bellows.edits"][0]["strength"].as_f64(), config["bellows.edits"][0]["norm_preserving"].as_bool()),
        (Some(0.8), Some(true))
    );
    let (out, _) = concept(&["steer", "--concept", "found", "--prompt", "Say one.", "--max-new-tokens", "4", "--coefficient", "-1"], 0);
    assert!(out.ends_with('\n'));
    concept(&["steer", "--concept", "found", "--at-layer", "2", "--control-vector", "vector.gguf"], 0);
    let (out, _) = concept(&["eval", "--sets", "sets", "--edited", "edited", "--max-perplexity-rise", "9", "--json"], 0);
    let verdict: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((verdict["before"]["target"]["of"].as_u64(), verdict["after"]["baseline_answers"].as_array().unwrap().len()), (Some(4), 4));

    // Mistakes are one sentence.
    for (args, words) in [
        (&["extract", "--sets", "nowhere", "--out", "x"][..], "there is no target.txt"),
        (&["ablate", "--concept", "found", "--out", "edited"], "is there already"),
        (&["ablate", "--concept", "found", "--layers", "2-9", "--out", "x"], "this model has 4 layers"),
        (&["ablate", "--concept", "found", "--strength", "0", "--out", "x"], "strength 0"),
        (&["ablate", "--concept", "sets", "--out", "x"], "concept.json"),
        (&["steer", "--concept", "found", "--at-layer", "0", "--prompt", "a"], "the sets do not differ at the input of layer 0"),
    ] {
        let (_, err) = concept(args, 2);
        assert!(err.contains(words) && err.lines().filter(|l| l.starts_with("error")).count() == 1, "{args:?}: {err}");
    }
    // A guard that does not hold ends with 1.
    let (_, err) = concept(&["eval", "--sets", "sets", "--edited", "edited", "--max-perplexity-rise", "-1"], 1);
    assert!(err.contains("take fewer layers or a lower strength"), "{err}");
}

const CHAIN: [&str; 11] = [
    "--config",
    "tune.yaml",
    "--concept",
    "sets",
    "--concept-layers",
    "1-2",
    "--concept-max-perplexity-rise",
    "9",
    "--export",
    "ollama",
    "--name",
];

fn start(dir: &Path, name: &str) -> Child {
    let mut command = llm_finetune(dir, &[&CHAIN[..], &[name, "--checkpoint-minutes", "0"]].concat());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// What has to be the same however it was come by.
fn ending(chain: &Path) -> Vec<Vec<u8>> {
    [
        "concept/concept.json",
        "concept/scores.json",
        "concept/after.json",
        "edited/model.safetensors",
        "run/adapter/adapter_model.safetensors",
        "run/model-q8_0.gguf",
    ]
    .map(|file| std::fs::read(chain.join(file)).unwrap_or_else(|e| panic!("{file}: {e}")))
    .into()
}

#[test]
fn killed_in_any_stage_the_same_command_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    world(dir.path());
    let of = |name: &str| dir.path().join("runs/sft").join(name);
    let whole = expect_code(&mut llm_finetune(dir.path(), &[&CHAIN[..], &["whole", "--checkpoint-minutes", "0"]].concat()), 0).0;
    for words in ["AUC", "log-odds", "Took the direction", "before", "after", "Saved"] {
        assert!(whole.contains(words), "no {words} in {whole}");
    }
    let expected = ending(&of("whole"));
    assert!(of("whole").join("run/model-q8_0.Modelfile").is_file());

    let appears = |files: &[&str], name: &str| files.iter().map(|file| of(name).join(file)).collect::<Vec<PathBuf>>();
    for (number, file) in [
        "chain.json",
        "concept/concept.json",
        "concept/scores.json",
        "concept/before.json",
        "edited",
        "concept/after.json",
        "run/checkpoints/step-000000003",
    ]
    .iter()
    .enumerate()
    {
        let name = format!("killed{number}");
        let mut child = start(dir.path(), &name);
        let files = appears(&[*file], &name);
        wait_for(file, &mut child, || files.iter().all(|file| file.exists()));
        child.kill().unwrap();
        child.wait().unwrap();
        let args = [&CHAIN[..], &[name.as_str(), "--checkpoint-minutes", "0"]].concat();
        expect_code(&mut llm_finetune(dir.path(), &args), 0);
        let found = ending(&of(&name));
        // Paths are part of an adapter's configuration, not of these.
        assert!(found == expected, "killed after {file}");
    }
    // Another chain of the same name is refused, and so is a name that a plain run has.
    let other = [&CHAIN[..], &["whole", "--checkpoint-minutes", "0", "--concept-strength", "0.5"]].concat();
    let (_, err) = expect_code(&mut llm_finetune(dir.path(), &other), 2);
    assert!(err.contains("was begun with concept_strength 1.0 and not 0.5"), "{err}");
    expect_code(&mut llm_finetune(dir.path(), &["--config", "tune.yaml", "--epochs", "1", "--name", "plain"]), 0);
    let (_, err) = expect_code(&mut llm_finetune(dir.path(), &[&CHAIN[..], &["plain"]].concat()), 2);
    assert!(err.contains("is a run without a concept"), "{err}");
}

#[test]
fn stages_can_be_left_out() {
    let dir = tempfile::tempdir().unwrap();
    world(dir.path());
    let args = [&CHAIN[..], &["short", "--concept-skip", "score,eval,train"]].concat();
    let (out, _) = expect_code(&mut llm_finetune(dir.path(), &args), 0);
    let chain = dir.path().join("runs/sft/short");
    assert!(!out.contains("log-odds") && chain.join("model-q8_0.gguf").is_file() && !chain.join("run").exists(), "{out}");
    assert!(!chain.join("concept/scores.json").exists() && !chain.join("concept/before.json").exists());
    let tiny = ["--config", "tiny.yaml", "--concept", "sets"];
    let (_, err) = expect_code(&mut llm_finetune(dir.path(), &tiny), 2);
    assert!(err.contains("made on the spot"), "{err}");
    // What is wrong with the data is found before anything is made.
    let (_, err) = expect_code(&mut llm_finetune(dir.path(), &[&CHAIN[..], &["x", "--data", "sets/guard.txt,none.jsonl"]].concat()), 2);
    assert!(err.contains("none.jsonl") && !dir.path().join("runs/sft/x").exists(), "{err}");
    let (_, err) = expect_code(&mut llm_finetune(dir.path(), &[&CHAIN[..], &["x", "--concept-skip", "scores"]].concat()), 2);
    assert!(err.contains("concept_skip \"scores\" is none of score, eval, train"), "{err}");
}
