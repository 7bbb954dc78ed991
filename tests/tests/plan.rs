//! What is planned is what is held, what is planned too large is refused, and a run that goes on holds no more than it did.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use crate::support::{self, checkpoints, expect_code, llm_finetune, tiny_chats, tiny_data, yolo_train};
use serde_json::Value;

/// The last line of JSON that a program printed.
fn json(out: &str) -> Value {
    serde_json::from_str(out.lines().last().unwrap()).unwrap_or_else(|e| panic!("{e}: {out}"))
}

/// GB of a tokenizer's tables, which a run has and a benchmark has not.
#[cfg(target_os = "linux")]
const TOKENIZER: f64 = 0.065;

/// GB (10^9 bytes) of a benchmark, whose unit is 10^6 KiB.
fn measured(report: &Value) -> f64 {
    1.024 * report["peak_gb"].as_f64().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn a_plan_of_fine_tuning_is_what_a_step_holds() {
    let dir = tempfile::tempdir().unwrap();
    for (checkpointing, rerun) in [("off", 0), ("all", 3), ("2", 2)] {
        let shape = ["--size", "tiny", "--json"];
        let bench = ["benchmark", "--batch", "4", "--seq", "512", "--rank", "16", "--steps", "1", "--checkpointing", checkpointing];
        let report = json(&expect_code(&mut llm_finetune(dir.path(), &[&bench[..], &shape].concat()), 0).0);
        assert_eq!(report["layers_rerun"], rerun);
        let plan = ["plan", "--batch-size", "4", "--max-seq-length", "512", "--r", "16", "--gradient-accumulation-steps", "1"];
        let more = ["--base-dtype", "f32", "--device", "cpu", "--target-modules", "q_proj,k_proj,v_proj,o_proj"];
        let asked = [&plan[..], &more, &["--gradient-checkpointing", checkpointing], &shape].concat();
        let planned = json(&expect_code(&mut llm_finetune(dir.path(), &asked), 0).0);
        let (peak, held) = (planned["peak_gb"].as_f64().unwrap(), measured(&report));
        assert!(((peak - TOKENIZER) / held - 1.0).abs() < 0.15, "{checkpointing}: {peak} GB planned, {held} held");
        let terms = ["weights_gb", "adapters_gb", "optimizer_gb", "activations_gb", "logits_gb", "workspace_gb"];
        let sum: f64 = terms.iter().map(|key| planned[key].as_f64().unwrap()).sum();
        assert!((sum - peak).abs() < 1e-6 && planned["tokens_per_s"].as_f64().unwrap() > 0.0, "{planned}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_plan_of_a_detector_is_what_a_step_holds() {
    let dir = tempfile::tempdir().unwrap();
    for (batch, imgsz) in [("2", "416"), ("8", "320")] {
        let bench = ["benchmark", "--batch", batch, "--imgsz", imgsz, "--steps", "1", "--json"];
        let report = json(&expect_code(&mut yolo_train(dir.path(), &bench), 0).0);
        let plan = ["plan", "--batch", batch, "--imgsz", imgsz, "--workers", "1", "--device", "cpu", "--json"];
        // As the benchmark: one moment, and a batch an update.
        let asked = [&plan[..], &["--optimizer", "SGD", "--nbs", batch]].concat();
        let planned = json(&expect_code(&mut yolo_train(dir.path(), &asked), 0).0);
        let (peak, held) = (planned["peak_gb"].as_f64().unwrap(), measured(&report));
        assert!((peak / held - 1.0).abs() < 0.15, "{batch} x {imgsz}: {peak} GB planned, {held} held");
    }
}

#[test]
fn a_card_that_is_not_at_hand_is_planned_for() {
    let dir = tempfile::tempdir().unwrap();
    let plan = |more: &[&str]| expect_code(&mut llm_finetune(dir.path(), &[&["plan", "--size", "3B"], more].concat()), 0).0;
    let out = plan(&["--card", "rx-6700-xt", "--batch-size", "4"]);
    for part in ["RX 6700 XT (12 GiB)", "does not fit", "TFLOP/s published of the RX 6700 XT"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let fits = json(&plan(&["--card", "TITAN RTX", "--max-seq-length", "512", "--base-dtype", "bf16", "--json"]));
    assert_eq!((&fits["fits"], &fits["remedy"]), (&Value::Bool(true), &Value::Null), "{fits}");
    tiny_chats(dir.path());
    let rows = ["plan", "--size", "3B", "--card", "MI50", "--max-seq-length", "512", "--data", "chats.jsonl"];
    let (out, said) = expect_code(&mut llm_finetune(dir.path(), &rows), 0);
    assert!(out.contains("1 x 512 tokens") && said.contains("rows of --data are not measured: max_seq_length 512 is taken"), "{out}{said}");
    let (_, said) = expect_code(&mut llm_finetune(dir.path(), &rows[..7]), 0);
    assert!(!said.contains("not measured"), "{said}");
    let (_, error) = expect_code(&mut llm_finetune(dir.path(), &["plan", "--size", "3B", "--card", "Voodoo 2"]), 2);
    assert!(error.contains("Voodoo 2") && error.contains("MI50"), "{error}");
    let out = expect_code(&mut yolo_train(dir.path(), &["plan", "--batch", "-1", "--card", "RX 5600 XT"]), 0).0;
    assert!(out.contains("images for 0.6 of 6.4 GB of memory (planned)") && out.contains("fits"), "{out}");
}

/// The run that training would be: the data's own settings below the flags.
#[test]
fn a_plan_is_of_the_settings_that_the_data_name() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let plan = |more: &[&str]| expect_code(&mut yolo_train(dir.path(), &[&["plan", "--data", "tiny.yaml"], more].concat()), 0).0;
    assert!(plan(&[]).contains("4 images of 64 pixels"), "{}", plan(&[]));
    assert!(plan(&["--batch", "2"]).contains("2 images of 64 pixels"));
    // Fifteen gray images in memory, each a plane of its file's size.
    let kept = json(&plan(&["--imgsz", "96", "--cache", "ram", "--json"]));
    assert_eq!(kept["cache_gb"].as_f64(), Some(15.0 * 96.0 * 72.0 / 1e9), "{kept}");
}

/// A COCO file names the classes there: it is opened before the settings are one.
#[test]
fn a_file_of_settings_allows_data_elsewhere_as_a_flag_does() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    expect_code(&mut yolo_train(dir.path(), &["data", "convert", "yolo2coco", "--data", "tiny.yaml", "--out", "coco"]), 0);
    std::fs::create_dir(dir.path().join("set")).unwrap();
    let data = "train: ../coco/annotations/train.json\nval: ../coco/annotations/val.json\n";
    std::fs::write(dir.path().join("set/data.yaml"), data).unwrap();
    let settings = "data: set/data.yaml\ndevice: cpu\nimgsz: 64\nbatch: 4\nallow-outside: [coco]\n";
    std::fs::write(dir.path().join("here.yaml"), settings).unwrap();
    let plan = ["plan", "--config", "here.yaml", "--card", "RX 5600 XT"];
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &plan), 0);
    assert!(out.contains("4 images of 64 pixels"), "{out}");
    let limited = ["--config", "here.yaml", "--memory-limit", "0.01"];
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &limited), 2);
    assert!(error.contains("memory_limit is 0.01"), "{error}");
    // A flag is above the file.
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &[&plan[..], &["--allow-outside", "none"]].concat()), 2);
    assert!(error.contains("outside the dataset root"), "{error}");
}

/// Every key of it is a setting, for others are refused; and what it says of memory is so.
#[test]
fn the_recipe_for_a_card_of_six_gigabytes_fits_it() {
    let dir = tempfile::tempdir().unwrap();
    let recipe = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/ltdv2-rx5600xt.yaml");
    // Four classes and a year, as LTDv2 has them.
    let clips = "path: clips\nnames: [person, bicycle, motorcycle, vehicle]\n\
                 sample: {width: 96, height: 72, clips: {cameras: 1, months: 2, train_months: 1, train: 3, val: 2, frames: 4}}\n";
    std::fs::write(dir.path().join("clips.yaml"), clips).unwrap();
    let plan = |more: &[&str], code| {
        let asked = [&["plan", "--config", recipe, "--data", "clips.yaml", "--card", "RX 5600 XT", "--json"], more].concat();
        expect_code(&mut yolo_train(dir.path(), &asked), code)
    };
    let text = std::fs::read_to_string(recipe).unwrap();
    for (model, again, said) in [
        ("yolov8n", "auto", "says 2.5 GB of 6.4"),
        ("yolov8n-p2", "auto", "(yolov8n-p2: 3.9)"),
        ("yolov8n", "true", "slower, 1.7 "),
        ("yolov8n-p2", "true", " 1.7 (2.5)"),
    ] {
        let planned = json(&plan(&["--model", model, "--gradient-checkpointing", again], 0).0);
        assert_eq!((&planned["fits"], &planned["batch"], &planned["imgsz"]), (&Value::Bool(true), &16.into(), &640.into()), "{planned}");
        let peak = planned["peak_gb"].as_f64().unwrap();
        assert!(peak < 6.0 && said.contains(&format!("{peak:.1}")) && text.contains(said), "{model}: {peak} GB, and not: {said}");
    }
    // With the data alone the batch would be theirs.
    let told =
        "`yolo-train plan --config models/ltdv2-rx5600xt.yaml --model yolov8n --data datasets/ltdv2.yaml --card \"RX 5600 XT\"` says";
    assert!(text.contains(told), "{text}");
    // It begins from a copy of weights that is the user's own.
    let (_, error) = plan(&[], 2);
    assert!(error.contains("yolov8n.pt: there is no such file or folder; ") && error.contains("with --model yolov8n"), "{error}");
    let misspelt = dir.path().join("recipe.yaml");
    std::fs::write(&misspelt, text.replace("thermal_drift:", "thermal_drfit:")).unwrap();
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &["plan", "--config", "recipe.yaml", "--model", "yolov8n"]), 2);
    assert!(error.contains("did you mean `thermal_drift`"), "{error}");
}

#[test]
fn a_run_beyond_its_limit_is_refused_before_it_begins() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let (_, error) = expect_code(&mut llm_finetune(dir.path(), &["--config", "tiny.yaml", "--memory-limit", "0.01"]), 2);
    let said: Vec<&str> = error.lines().filter(|line| line.contains("memory_limit")).collect();
    assert!(said.len() == 1 && said[0].contains("no setting makes it fit"), "{error}");
    assert!(!dir.path().join("runs").exists(), "nothing was begun");
}

#[test]
fn a_detector_beyond_its_limit_is_refused_with_flags_that_fit() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let data = ["--data", "tiny.yaml", "--plots", "false"];
    let refused = |more: &[&str]| {
        let (_, error) = expect_code(&mut yolo_train(dir.path(), &[&data, more].concat()), 2);
        let said: Vec<&str> = error.lines().filter(|line| line.contains("memory_limit")).collect();
        assert_eq!(said.len(), 1, "{error}");
        said[0].to_owned()
    };
    let small = refused(&["--memory-limit", "0.01"]);
    assert!(small.ends_with("memory_limit is 0.01: no setting makes it fit"), "{small}");
    let large = ["--batch", "64", "--imgsz", "320", "--memory-limit", "0.5"];
    let said = refused(&[&large[..], &["--cache", "ram"]].concat());
    let flags: Vec<&str> = said.split_once("it would fit with ").unwrap_or_else(|| panic!("{said}")).1.split_whitespace().collect();
    assert!(flags.contains(&"--batch"), "{flags:?}");
    assert!(!dir.path().join("runs").exists(), "nothing was begun");
    let plan = |more: &[&str]| json(&expect_code(&mut yolo_train(dir.path(), &[&["plan", "--json"], &data[..], more].concat()), 0).0);
    let too_large = plan(&large);
    assert_eq!((&too_large["fits"], &too_large["memory_gb"]), (&Value::Bool(false), &0.5.into()), "{too_large}");
    let largest = ["largest_batch", "largest_imgsz"].map(|key| too_large[key].as_u64().unwrap());
    assert!((1..64).contains(&largest[0]) && (32..320).contains(&largest[1]), "{too_large}");
    let fits = plan(&[&large[4..], &["--imgsz", "320"], &flags[..]].concat());
    assert_eq!((&fits["fits"], &fits["remedy"]), (&Value::Bool(true), &Value::Null), "{fits}");
}

#[test]
fn a_batch_is_chosen_within_the_limit_and_a_resumed_run_is_held_to_one() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let asked = ["--data", "tiny.yaml", "--batch", "-1", "--memory-limit", "0.25", "--epochs", "1", "--plots", "false"];
    let planned = json(&expect_code(&mut yolo_train(dir.path(), &[&["plan", "--json"], &asked[..]].concat()), 0).0);
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &asked), 0);
    let said = format!("batch: {} images for the 0.25 GB of memory_limit (planned)", planned["batch"]);
    assert!(out.contains(&said) && planned["fits"] == true, "{planned}: {out}");
    let config = std::fs::read_to_string(dir.path().join("runs/detect/train/config.yaml")).unwrap();
    assert!(config.contains(&format!("\nbatch: {}\n", planned["batch"])), "{config}");
    let again = ["--resume", "runs/detect/train", "--memory-limit"];
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &[&again[..], &["0.1"]].concat()), 2);
    assert!(error.contains("memory_limit is 0.1: a run that goes on keeps"), "{error}");
    // What the run was begun with is taken back.
    let recorded = dir.path().join("runs/detect/train/config.yaml");
    assert!(config.contains("\nmemory_limit: 0.25\n"), "{config}");
    std::fs::write(&recorded, config.replace("\nmemory_limit: 0.25\n", "\nmemory_limit: 0.1\n")).unwrap();
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &again[..2]), 2);
    assert!(error.contains("memory_limit is 0.1"), "{error}");
    expect_code(&mut yolo_train(dir.path(), &[&again[..], &["none"]].concat()), 0);
}

#[test]
#[cfg(target_os = "linux")]
fn a_resumed_run_holds_no_more_than_it_did() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let held = |out: &str| -> f64 {
        let line = out.lines().find(|line| line.contains(" GB at most, ")).unwrap_or_else(|| panic!("{out}"));
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let (out, _) = expect_code(&mut llm_finetune(dir.path(), &["--config", "tiny.yaml", "--name", "whole"]), 0);
    let whole = held(&out);
    let run = dir.path().join("runs/sft/cut");
    let mut cut = llm_finetune(dir.path(), &["--config", "tiny.yaml", "--name", "cut", "--epochs", "20"]);
    let ended = cut.env("BELLOWS_FAULT", "kill:step:8").output().unwrap();
    assert!(ended.status.code().is_none() && checkpoints(&run).len() > 1, "{ended:?}");
    let config = std::fs::read_to_string(run.join("config.yaml")).unwrap();
    assert!(config.lines().any(|line| line.starts_with("gradient_checkpointing:") && !line.contains("auto")), "settled once: {config}");
    let (out, _) = expect_code(&mut llm_finetune(dir.path(), &["--resume", run.to_str().unwrap()]), 0);
    let resumed = held(&out);
    // What is told has two digits.
    assert!(resumed <= whole * 1.05 + 0.01, "{resumed} GB resumed, {whole} in one");
}

#[test]
fn batches_are_measured_upward_in_processes_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let (out, error) = expect_code(&mut llm_finetune(dir.path(), &["tune-batch", "--config", "tiny.yaml", "--most", "4", "--json"]), 0);
    let Value::Array(rows) = json(&out) else { panic!("{out}") };
    assert_eq!(rows.iter().map(|row| row["batch"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 4], "{error}");
    for row in &rows {
        assert!(["tokens_per_s", "examples_per_s", "planned_gb"].iter().all(|key| row[key].as_f64().unwrap() > 0.0), "{row}");
        assert_eq!(row["seq"], rows[0]["seq"], "the longest row, whatever the batch");
        support::expect_peak(&row["peak_gb"]);
    }
    // What is planned is the run's own plan: its updates are of several batches, whose gradients are summed up.
    let summed = ["--config", "tiny.yaml", "--method", "full", "--gradient-accumulation-steps", "4", "--json"];
    let (out, _) = expect_code(&mut llm_finetune(dir.path(), &[&["tune-batch", "--most", "1"], &summed[..]].concat()), 0);
    let (own, _) = expect_code(&mut llm_finetune(dir.path(), &[&["plan", "--batch-size", "1"], &summed[..]].concat()), 0);
    assert_eq!(json(&out)[0]["planned_gb"], json(&own)["peak_gb"], "{out}{own}");
    let (out, _) = expect_code(&mut llm_finetune(dir.path(), &["tune-batch", "--config", "tiny.yaml", "--most", "1"]), 0);
    let lines: Vec<&str> = out.lines().collect();
    let heading = ["batch", "peak GB", "planned GB", "tokens/s", "examples/s", "fragmented", "watts"];
    assert!(heading.iter().all(|column| lines[0].contains(column)) && lines[1].split_whitespace().count() == 8, "{out}");
    assert!(lines[2].starts_with("the fastest: --batch-size 1 ("), "{out}");
    // Without a measurement it ends as what was to measure: here with the settings, and where a list is asked for, it is empty.
    let refused = |more: &[&str]| {
        let args = [&["tune-batch", "--config", "tiny.yaml", "--lora-dropout", "0.1", "--json"], more].concat();
        expect_code(&mut llm_finetune(dir.path(), &args), 2)
    };
    let (out, error) = refused(&["--r", "500"]);
    assert!(json(&out) == Value::Array(Vec::new()) && error.contains("not even a batch of 1 could be measured: "), "{out}{error}");
    assert!(error.contains("r is 500"), "{error}");
    assert!(refused(&["--most", "0"]).1.contains("--most 0 leaves no batch"));
}

/// The system ends a process that has used its seconds of the processor, as it would one that asks for more memory than there is.
#[test]
#[cfg(target_os = "linux")]
fn a_measurement_that_dies_ends_the_table_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let temporary = dir.path().join("temporary");
    std::fs::create_dir(&temporary).unwrap();
    let program = llm_finetune(dir.path(), &["tune-batch", "--config", "tiny.yaml", "--most", "1000000", "--json"]);
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -t 3; exec \"$@\"", "sh"]).arg(program.get_program()).args(program.get_args());
    limited.current_dir(dir.path()).envs(program.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("TMPDIR", &temporary);
    let (out, error) = expect_code(&mut limited, 0);
    let Value::Array(rows) = json(&out) else { panic!("{out}") };
    let last = rows.last().unwrap_or_else(|| panic!("{error}"))["batch"].as_u64().unwrap();
    assert!(error.contains(&format!("a batch of {}: signal: 9 (SIGKILL)", 2 * last)), "{error}");
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "left behind");

    // One whose own folder has a longer name than the system takes has failed, whatever the settings.
    let mut deep = format!("{}/", temporary.display());
    deep += &"./".repeat((4060 - deep.len()) / 2);
    let mut failing = llm_finetune(dir.path(), &["tune-batch", "--config", "tiny.yaml", "--most", "1"]);
    let (_, error) = expect_code(failing.env("TMPDIR", &deep), 1);
    assert!(error.contains("not even a batch of 1 could be measured: "), "{error}");
}
