//! `llm-finetune concept` and the chain of `--concept`: files, mistakes, and a kill in every stage.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::process::{Child, Stdio};

use crate::support::{expect_code, llm_finetune, reached, tiny_chats, wait_for};
use serde_json::Value;

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

    // What is found anew was not scored: no choice of before is left.
    concept(&["extract", "--sets", "sets", "--out", "found"], 0);
    let found = |file: &str| dir.path().join("found").join(file);
    assert!(!found("scores.json").exists() && !found("scores.png").exists());
    let json: Value = serde_json::from_slice(&std::fs::read(found("concept.json")).unwrap()).unwrap();
    let (out, _) = concept(&["ablate", "--concept", "found", "--out", "again"], 0);
    let chosen = format!("input of layer {}, token -{},", json["chosen"]["layer"], json["chosen"]["position"]);
    assert!(out.contains(&chosen), "no {chosen} in {out}");
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

    for (number, file) in [
        "chain.json",
        "concept/concept.json",
        "concept/scores.json",
        "concept/before.json",
        "edited",
        "concept/after.json",
        "run/checkpoints",
    ]
    .iter()
    .enumerate()
    {
        let name = format!("killed{number}");
        let mut child = start(dir.path(), &name);
        // The first checkpoint is of no step yet.
        let is_there = || if *file == "run/checkpoints" { reached(&of(&name).join("run"), 3) } else { of(&name).join(file).exists() };
        wait_for(file, &mut child, is_there);
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

/// The edited model is no GGUF any more, so its run is in f16, and the settings as typed do not say so.
#[test]
fn a_gguf_that_is_tuned_in_f16_goes_on_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    world(dir.path());
    expect_code(&mut llm_finetune(dir.path(), &["export", "--model", "base", "--quant", "f16", "--out", "base.gguf"]), 0);
    let half = ["half", "--model", "base.gguf", "--precision", "fp16-pure", "--concept-skip", "score,eval,export"];
    let args = [&CHAIN[..], &half, &["--checkpoint-minutes", "0"]].concat();
    let killed = llm_finetune(dir.path(), &args).env("BELLOWS_FAULT", "kill:save:2").output().unwrap();
    assert_eq!(killed.status.code(), None, "it was to be killed");
    let (out, _) = expect_code(&mut llm_finetune(dir.path(), &args), 0);
    assert!(out.contains("going on at epoch"), "{out}");
    // Blocks of the file are not the edited model's, which is said before it is made.
    let (_, err) =
        expect_code(&mut llm_finetune(dir.path(), &[&CHAIN[..], &["blocks", "--model", "base.gguf", "--base-dtype", "gguf"]].concat()), 2);
    assert!(err.contains("the edited model that is tuned is no .gguf file") && !dir.path().join("runs/sft/blocks").exists(), "{err}");
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
    assert!(err.contains("concept_skip \"scores\" is none of extract, score, ablate, eval, train, export"), "{err}");
}

/// As a user types it, with a small model in the place of the preset's: without data nothing is tuned, and all else is done.
#[test]
fn a_preset_without_data_is_edited_and_exported() {
    let dir = tempfile::tempdir().unwrap();
    world(dir.path());
    std::fs::create_dir(dir.path().join("Qwen")).unwrap();
    std::fs::rename(dir.path().join("base"), dir.path().join("Qwen/Qwen2.5-Coder-1.5B-Instruct")).unwrap();
    // So small a model may become worse than the guard allows.
    std::fs::remove_file(dir.path().join("sets/guard.txt")).unwrap();
    let typed = ["--config", "dorothy", "--concept", "sets", "--export", "ollama"];
    let (out, _) = expect_code(&mut llm_finetune(dir.path(), &typed), 0);
    let mut rest = out.as_str();
    for words in ["fine-tuning is skipped: there is no --data", "AUC", "log-odds", "Took the direction", "before", "model-q8_0.gguf and "] {
        rest = rest.split_once(words).unwrap_or_else(|| panic!("no {words}, or not in its place, in {out}")).1;
    }
    let chain = dir.path().join("runs/sft/train");
    let files = ["concept/scores.json", "concept/after.json", "edited/model.safetensors", "model-q8_0.gguf", "model-q8_0.Modelfile"];
    assert!(files.iter().all(|file| chain.join(file).is_file()) && !chain.join("run").exists(), "{out}");
    // Without a concept there is nothing to do without data.
    let (_, err) = expect_code(&mut llm_finetune(dir.path(), &["--config", "dorothy", "--export", "ollama"]), 2);
    assert!(err.contains("--data must be given"), "{err}");
}

#[test]
fn a_stage_that_is_left_out_uses_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    world(dir.path());
    let chain = |name: &str, more: &[&str], code| expect_code(&mut llm_finetune(dir.path(), &[&CHAIN[..], &[name], more].concat()), code);
    let of = |name: &str, file: &str| dir.path().join("runs/sft").join(name).join(file);
    let read = |name: &str, file: &str| std::fs::read(of(name, file)).unwrap_or_else(|e| panic!("{name}/{file}: {e}"));

    // No direction was found: nothing is made.
    let (_, err) = chain("early", &["--concept-skip", "extract"], 2);
    assert!(err.contains("there is none in runs/sft/early/concept: name its folder with --concept-from"), "{err}");
    assert!(err.lines().filter(|line| line.starts_with("error")).count() == 1 && !of("early", "").exists(), "{err}");

    // Looked at, and neither edited nor exported.
    let (out, err) = chain("looked", &["--concept-skip", "ablate,train,export"], 0);
    assert!(err.contains("device: "), "{err}");
    let words = ["AUC", "log-odds", "the edit is skipped", "perplexity of the guard"];
    assert!(words.iter().all(|words| out.contains(words)) && !out.contains("after"), "{out}");
    assert!(!of("looked", "edited").exists() && !of("looked", "concept/after.json").exists() && !of("looked", "model-q8_0.gguf").exists());
    // Again there is nothing to do, and no model is opened for it.
    let (out, err) = chain("looked", &["--concept-skip", "ablate,train,export"], 0);
    assert!(out.contains("the edit is skipped") && !err.contains("device: "), "{out}{err}");
    // The same goes on with the edit: what was found and scored is not done again.
    let (out, _) = chain("looked", &["--concept-skip", "extract,train,export"], 0);
    assert!(!out.contains("AUC") && !out.contains("log-odds") && out.contains("Took the direction at"), "{out}");

    // A direction of another folder, with the choice that was made there or with one of its own.
    let from = ["--concept-from", "runs/sft/looked/concept", "--concept-skip"];
    let (out, _) = chain("taken", &[&from[..], &["extract,score,eval,train"]].concat(), 0);
    assert!(out.contains("Using the direction of sets from runs/sft/looked/concept") && !out.contains("AUC") && !out.contains("log-odds"));
    for file in ["concept/concept.json", "concept/directions.safetensors", "concept/scores.json", "edited/model.safetensors"] {
        assert!(read("taken", file) == read("looked", file), "{file}");
    }
    let (out, _) = chain("scored", &[&from[..], &["eval,train,export"]].concat(), 0);
    assert!(
        !out.contains("AUC") && out.contains("log-odds") && read("scored", "concept/scores.json") == read("looked", "concept/scores.json")
    );
    let (_, err) = chain("nowhere", &["--concept-from", "sets"], 2);
    assert!(err.contains("sets/concept.json") && !of("nowhere", "").exists(), "{err}");

    // Without an edit the model itself is exported, and without a direction it is judged.
    let (out, _) = chain("plain", &["--concept-skip", "extract,score,ablate,train"], 0);
    assert!(out.contains("the edit is skipped") && out.contains("perplexity of the guard"), "{out}");
    assert!(!of("plain", "concept/concept.json").exists() && read("plain", "concept/before.json") == read("looked", "concept/before.json"));
    assert!(read("plain", "model-q8_0.gguf") != read("taken", "model-q8_0.gguf"));

    // What was taken over is the run's own: the folder it came from may be gone. What was not has to be named again.
    std::fs::remove_file(of("scored", "concept/concept.json")).unwrap();
    let (_, err) = chain("scored", &["--concept-skip", "eval,train,export"], 2);
    assert!(err.contains("runs/sft/looked/concept\", which is not taken over yet: name it again"), "{err}");
    std::fs::remove_dir_all(of("looked", "concept")).unwrap();
    let again = [&from[..], &["extract,score,eval,train,export"]].concat();
    let (out, _) = chain("taken", &again, 0);
    assert!(out.contains("the concept is taken out"), "{out}");

    // With another guard it is another chain. What an older program began says nothing of that, and goes on.
    std::fs::write(dir.path().join("sets/guard.txt"), "One. Two.\n").unwrap();
    let (_, err) = chain("taken", &again, 2);
    assert!(err.contains("was begun with markers_and_guard"), "{err}");
    let mut begun: Value = serde_json::from_slice(&read("taken", "chain.json")).unwrap();
    begun.as_object_mut().unwrap().remove("markers_and_guard").unwrap();
    std::fs::write(of("taken", "chain.json"), begun.to_string()).unwrap();
    chain("taken", &again, 0);
}

/// While a card trains, the concept is found, scored and judged on the processor: the same bits as where there is no card.
#[test]
fn the_concept_is_the_processors_while_training_has_the_card() {
    let Some(icd) = std::env::var_os("BELLOWS_SWIFTSHADER") else {
        eprintln!("skipped: set BELLOWS_SWIFTSHADER to a Vulkan ICD file (.ci/swiftshader prints one)");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    world(dir.path());
    let (_, err) = expect_code(&mut llm_finetune(dir.path(), &[&CHAIN[..], &["cpu", "--concept-skip", "train,export"]].concat()), 0);
    assert!(!err.contains("device: vulkan"), "{err}");
    let short = ["--epochs", "1", "--max-samples", "4"];
    let more = [&["card", "--concept-device", "cpu", "--device", "vulkan:0", "--concept-skip", "export"][..], &short].concat();
    let mut command = llm_finetune(dir.path(), &[&CHAIN[..], &more].concat());
    let (out, err) = expect_code(command.env("VK_DRIVER_FILES", &icd), 0);
    let devices: Vec<&str> = err.lines().filter_map(|line| line.strip_prefix("device: ")?.split(' ').next()).collect();
    assert_eq!(devices, ["flex", "flex", "vulkan"], "before, after, training: {err}");
    let of = |name: &str, file: &str| std::fs::read(dir.path().join("runs/sft").join(name).join(file)).unwrap();
    for file in ["directions.safetensors", "scores.json", "before.json", "after.json"] {
        let file = format!("concept/{file}");
        assert!(of("card", &file) == of("cpu", &file), "{file}");
    }
    assert!(of("card", "edited/model.safetensors") == of("cpu", "edited/model.safetensors"));
    let events = String::from_utf8(of("card", "run/events.jsonl")).unwrap();
    assert!(events.contains("\"backend\":\"vulkan\"") && out.contains("Results saved to"), "{events}");
}
