//! What a user meets before training starts: help, mistakes, one clear sentence and exit code 2 (nothing created, nothing lost).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use crate::support::{expect_bounds, expect_code, expect_peak, llm_finetune, one_sentence, tiny_data, yolo_train};

#[test]
fn help_is_grouped_and_complete() {
    let dir = tempfile::tempdir().unwrap();
    let (help, _) = expect_code(&mut yolo_train(dir.path(), &["--help"]), 0);
    for heading in ["Model and data", "Run", "Optimizer", "Loss", "Augmentation", "Validation"] {
        assert!(help.contains(&format!("{heading}:")), "no heading {heading}");
    }
    for setting in bellows_yolo::config::SETTINGS {
        let flag = format!("--{}", setting.name.trim_end_matches('_').replace('_', "-"));
        assert!(help.contains(&flag), "no {flag} in the help");
    }
}

/// What trains nothing does not say that it does, and is called by its whole name.
#[test]
fn verbs_speak_of_themselves() {
    let dir = tempfile::tempdir().unwrap();
    for verb in ["val", "predict", "export", "benchmark"] {
        let (help, _) = expect_code(&mut yolo_train(dir.path(), &[verb, "--help"]), 0);
        assert!(help.contains(&format!("Usage: yolo-train {verb} [OPTIONS]")), "{help}");
        for training in ["training images", "Train on", "the best weights' detections"] {
            assert!(!help.contains(training), "{verb}: {training:?} in {help}");
        }
    }
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &["predict", "--bogus"]), 2);
    assert!(error.ends_with("unexpected argument '--bogus' found (see yolo-train predict --help)\n"), "{error}");
}

#[test]
fn mistakes_get_one_sentence_and_code_2() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    std::fs::write(dir.path().join("bad.yaml"), "epoch: 3\n").unwrap();
    std::fs::write(dir.path().join("nonames.yaml"), "train: images\nval: images\n").unwrap();
    std::fs::write(dir.path().join("notweights.pt"), "hello").unwrap();
    let cases: [(&[&str], &[&str]); 16] = [
        (&[], &["--data"]),
        (&["--data", "nowhere.yaml"], &["nowhere.yaml: there is no such file or folder"]),
        (&["--data", "nonames.yaml"], &["nonames.yaml", "names"]),
        (&["--data", "tiny.yaml", "--epoks", "3"], &["--epoks", "--epochs"]),
        (&["--data", "tiny.yaml", "--config", "bad.yaml"], &["bad.yaml", "`epoch`", "`epochs`"]),
        (&["--data", "tiny.yaml", "--imgsz", "0"], &["imgsz 0", "32"]),
        (&["--data", "tiny.yaml", "--epochs", "many"], &["epochs", "many"]),
        (&["--data", "tiny.yaml", "--box", "x"], &["`box`", "x"]),
        (&["--data", "tiny.yaml", "--lr0", "nan"], &["`lr0`", "nan"]),
        (&["--data", "tiny.yaml", "--mosaic", "2"], &["mosaic 2"]),
        (&["--data", "tiny.yaml", "--device", "candle"], &["candle", "0.22"]),
        (&["--data", "tiny.yaml", "--device", "gpu9"], &["gpu9"]),
        (&["--data", "tiny.yaml", "--model", "notweights.pt"], &["notweights.pt"]),
        (&["--resume"], &["no run"]),
        (&["--resume", "runs/detect/none", "--config", "none.yaml"], &["none.yaml: there is no such file or folder"]),
        (&["--data", "tiny.yaml", "--tui"], &["--tui needs a terminal"]),
    ];
    for (args, words) in cases {
        let (_, error) = expect_code(&mut yolo_train(dir.path(), args), 2);
        one_sentence(&error, words, &format!("{args:?}"));
    }
    assert!(!dir.path().join("runs/detect/train").exists(), "what never began leaves no run directory");
}

/// It would name another file than the one that was meant.
#[cfg(unix)]
#[test]
fn a_word_that_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"caf\xe9");
    for mut command in [yolo_train(dir.path(), &[]), yolo_train(dir.path(), &["--project"]), llm_finetune(dir.path(), &["--model"])] {
        let (_, error) = expect_code(command.arg(odd), 2);
        assert!(error.contains(r#"error: "caf\xE9" is not UTF-8"#), "{error}");
    }
}

#[test]
fn bad_labels_name_the_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("d");
    for split in ["train", "val"] {
        std::fs::create_dir_all(root.join("images").join(split)).unwrap();
        std::fs::create_dir_all(root.join("labels").join(split)).unwrap();
        image::GrayImage::new(64, 48).save(root.join("images").join(split).join("a.png")).unwrap();
        std::fs::write(root.join("labels").join(split).join("a.txt"), "0 0.5 0.5 0.2 0.2\n7 0.5 0.5 0.2 0.2\n").unwrap();
    }
    std::fs::write(dir.path().join("d.yaml"), "path: d\ntrain: images/train\nval: images/val\nnames: [person]\n").unwrap();
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &["--data", "d.yaml", "--device", "cpu"]), 2);
    assert!(error.contains("a.txt:2") && error.contains('7'), "{error}");
    assert!(!dir.path().join("runs").exists(), "a refused dataset leaves no run directory");
}

#[test]
fn doctor_reports_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let doctor = ["doctor", "--device", "cpu"];
    let (report, _) = expect_code(&mut yolo_train(dir.path(), &doctor), 0);
    assert!(report.to_lowercase().contains("cpu") && report.contains("  convolutions: auto\n"), "{report}");
    // A language model has none.
    let (report, _) = expect_code(&mut llm_finetune(dir.path(), &doctor), 0);
    assert!(report.contains("  products: auto\n") && !report.contains("onvolution"), "{report}");
    // As `head` leaves a pipe, which has what it wanted.
    for mut command in [yolo_train(dir.path(), &doctor), llm_finetune(dir.path(), &doctor)] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (_, error) = expect_code(command.stdout(writer), 0);
        assert!(!error.lines().any(|line| line.starts_with("error")), "{error}");
    }
}

/// A script would take it for a run that has ended.
#[test]
fn a_folder_that_is_no_run_is_not_told_of_as_one() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("project/train/checkpoints")).unwrap();
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    for folder in ["empty", "project"] {
        let told = format!("{folder} is not a run directory; `--project {folder}` asks for the last run in it");
        for verb in [&["status"][..], &["status", "--json"], &["stop"]] {
            let (out, error) = expect_code(&mut yolo_train(dir.path(), &[verb, &[folder]].concat()), 2);
            one_sentence(&error, &[told.as_str()], folder);
            assert!(out.is_empty(), "{out}");
        }
    }
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["status", "project/train"]), 0);
    assert_eq!(out, "project/train: no process has it\n");
}

#[test]
fn benchmark_prints_the_keys_of_other_timers() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["benchmark", "--batch", "2", "--imgsz", "64", "--steps", "2", "--threads", "1", "--conv-workspace-mb", "8"];
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &[&args[..], &["--conv", "implicit", "--json"]].concat()), 0);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    for key in ["forward_s", "backward_s", "update_s", "step_s", "class_loss_s", "train_images_per_s", "infer_images_per_s"] {
        assert!(report[key].as_f64().is_some_and(|v| v > 0.0), "{key} in {out}");
    }
    expect_peak(&report["peak_gb"]);
    expect_bounds(&report);
    assert_eq!((&report["peer"], &report["threads"], &report["batch"]), (&"bellows".into(), &1.into(), &2.into()));
    assert!(report["precision"] == "f32" && report["level"].is_string() && report["processor"].is_string(), "{out}");
    assert_eq!((&report["imgsz"], &report["conv"], &report["conv_reason"]), (&64.into(), &"implicit".into(), &serde_json::Value::Null));
    assert_eq!(report["classes"], 4);

    let (table, _) = expect_code(&mut yolo_train(dir.path(), &[&args[..], &["--classes", "80"]].concat()), 0);
    for words in [
        "precision: f32 by ",
        "class loss ",
        " ms of the step: value and gradient over 80 classes\n",
        "tiles of ",
        "strips of ",
        "convolutions: auto\n",
        " GFLOP a step, ",
        " that the micro-kernel reaches\n",
        "of peak",
        "Burn fwd",
        "all but the first dx",
    ] {
        assert!(table.contains(words), "no {words:?} in\n{table}");
    }
    for (flag, value, why) in [
        ("--imgsz", "100", "imgsz is a positive multiple of 32"),
        ("--imgsz", "20000", "imgsz 20000 is more than 16384 pixels"),
        ("--classes", "0", "classes and steps are at least 1"),
    ] {
        let (_, error) = expect_code(&mut yolo_train(dir.path(), &["benchmark", flag, value]), 2);
        one_sentence(&error, &[why], value);
    }
}

#[test]
fn a_profile_tells_where_the_time_went() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let args = ["--data", "tiny.yaml", "--epochs", "1", "--plots", "false", "--profile"];
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &args), 0);
    let line = out.lines().find(|l| l.starts_with("profile:")).unwrap();
    for stage in ["waiting for data", "forward", "backward", "update", "decode", "augment", "collate"] {
        assert!(line.contains(stage), "{stage} in {line}");
    }
}

#[test]
fn presets_are_settings() {
    let models = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    let paths = std::fs::read_dir(models).unwrap().map(|entry| entry.unwrap().path());
    // The first line of a preset says whose it is.
    let ours = |path: &std::path::PathBuf| std::fs::read_to_string(path).unwrap().lines().next().unwrap().contains("yolo-train");
    let presets: Vec<_> = paths.filter(ours).collect();
    assert!(!presets.is_empty());
    for path in presets {
        let dir = tempfile::tempdir().unwrap();
        tiny_data(dir.path());
        // Stops at the device, after all settings were read.
        let args = ["--data", "tiny.yaml", "--config", path.to_str().unwrap(), "--device", "candle"];
        let (_, error) = expect_code(&mut yolo_train(dir.path(), &args), 2);
        assert!(error.contains("candle"), "{}: {error}", path.display());
    }
}
