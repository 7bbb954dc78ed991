//! Runs the real binaries in fresh directories.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A program of this workspace, beside this test in the target directory.
pub fn program(name: &str) -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let path = deps.parent().unwrap().join(name);
    assert!(path.exists(), "{} is not built: run `cargo test --release --workspace`", path.display());
    path
}

/// `yolo-train` with arguments, in `dir`, with caches of its own.
pub fn yolo_train(dir: &Path, args: &[&str]) -> Command {
    run_in(dir, "yolo-train", args)
}

/// The same for `llm-finetune`.
pub fn llm_finetune(dir: &Path, args: &[&str]) -> Command {
    run_in(dir, "llm-finetune", args)
}

fn run_in(dir: &Path, name: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program(name));
    command.current_dir(dir).args(args).env("XDG_CACHE_HOME", dir.join("cache")).stdin(Stdio::null());
    // A supervisor waits before it starts a run again: a minute, in the end.
    command.env("BELLOWS_PAUSE_SECONDS", "0");
    command
}

/// Runs to the end; panics unless the exit code is `code`. Returns standard output and standard error.
pub fn expect_code(command: &mut Command, code: i32) -> (String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&stdout).into_owned(), String::from_utf8_lossy(&stderr).into_owned());
    assert_eq!(status.code(), Some(code), "{command:?}\n--- stdout\n{out}\n--- stderr\n{err}");
    (out, err)
}

/// Panics unless the last line of standard error, and no other, is an error, all of it has these words, and there is nothing of a panic.
pub fn one_sentence(error: &str, words: &[&str], what: &str) {
    assert!(!error.contains("panicked") && !error.contains("backtrace"), "{what}: {error}");
    let is_error = |line: &str| line.starts_with("error");
    let last = error.lines().last().is_some_and(is_error);
    assert!(last && error.lines().filter(|line| is_error(line)).count() == 1, "{what}: {error}");
    for word in words {
        assert!(error.contains(word), "{what}: no {word:?} in: {error}");
    }
}

/// Sends a signal, by its name without SIG.
pub fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap().success());
}

/// Panics unless what was asked to end then has taken no longer than it may: `BELLOWS_SIGNAL_SECONDS`, 30 by default, for the machine may be busy; on a
/// quiet one a step and 2 seconds are enough (docs/reliability.md).
pub fn in_time(asked: Instant) {
    let limit = std::env::var("BELLOWS_SIGNAL_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(30.0);
    let took = asked.elapsed().as_secs_f64();
    assert!(took < limit, "it took {took:.2} s to end");
}

/// Waits until something is so; panics when the program has ended or two minutes have gone by.
pub fn wait_for(what: &str, child: &mut Child, so: impl Fn() -> bool) {
    let started = Instant::now();
    while !so() {
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none() || so(), "{what} never came: {ended:?}");
        assert!(started.elapsed() < Duration::from_secs(120), "{what} never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The `peak_gb` of a benchmark: some memory, but not all of a machine's; null where the system does not tell.
pub fn expect_peak(gb: &serde_json::Value) {
    let plausible = gb.as_f64().is_some_and(|gb| (0.01..50.0).contains(&gb));
    assert!(plausible || gb.is_null() && !cfg!(target_os = "linux"), "{gb}");
}

/// What a benchmark's step on a processor is held against; the idle share is null where the system does not tell.
pub fn expect_bounds(report: &serde_json::Value) {
    for key in ["flop", "gflops", "peak_gflops"] {
        assert!(report[key].as_f64().is_some_and(|v| v > 0.0 && v.is_finite()), "{key} in {report}");
    }
    let idle = &report["idle_share"];
    assert!(idle.as_f64().is_some_and(|share| (0.0..1.0).contains(&share)) || idle.is_null() && !cfg!(unix), "{report}");
}

/// A data.yaml of a few small generated frames, in `dir`.
pub fn tiny_data(dir: &Path) -> PathBuf {
    let path = dir.join("tiny.yaml");
    let text = "path: tiny\ntrain: images/train\nval: images/val\nnames: [person, bicycle, motorcycle, vehicle]\n\
                sample: {train: 11, val: 4, width: 96, height: 72, object_scale: 2.0, objects: 3}\n\
                settings: {imgsz: 64, batch: 4, nbs: 8, epochs: 3, close_mosaic: 1, workers: 2, warmup_epochs: 1, device: cpu}\n";
    std::fs::write(&path, text).unwrap();
    path
}

/// A tiny.yaml of a small model that learns twelve chats in `dir` in a second or two, two more to judge by.
pub fn tiny_chats(dir: &Path) {
    let words = ["One", "Two", "Three", "Four", "Five", "Six", "Seven"];
    let mut lines = String::new();
    for i in 0..14 {
        let user = format!("Say {} {}.", words[i % 7].to_lowercase(), "again ".repeat(i % 5).trim());
        let assistant = format!("{}. {}", words[i % 7], "It is so. ".repeat(i % 3).trim());
        let messages =
            [("user", user), ("assistant", assistant)].map(|(role, content)| serde_json::json!({ "role": role, "content": content }));
        lines.push_str(&format!("{}\n", serde_json::json!({ "messages": messages })));
    }
    std::fs::write(dir.join("chats.jsonl"), lines).unwrap();
    let settings = "model: tiny\ndata: [chats.jsonl]\nval_size: 2\ndevice: cpu\nr: 4\nlora_alpha: 8\nmax_seq_length: 64\npad_to_multiple_of: 16\n\
                    batch_size: 2\ngradient_accumulation_steps: 1\nepochs: 2\nlearning_rate: 0.003\n";
    std::fs::write(dir.join("tiny.yaml"), settings).unwrap();
}

/// The checkpoints of a run, oldest first, without those that were set aside: their names go on behind a dot.
pub fn checkpoints(run: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(run.join("checkpoints")) else { return Vec::new() };
    let mut steps: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).filter(|p| p.join("manifest.json").exists()).collect();
    steps.retain(|p| p.extension().is_none() && p.file_name().unwrap().to_string_lossy().starts_with("step-"));
    steps.sort();
    steps
}

/// Whether a run has a checkpoint of this step or a later one: that of a step goes again two saves later, which may be before somebody looks.
pub fn reached(run: &Path, step: u64) -> bool {
    let wanted = format!("step-{step:09}");
    checkpoints(run).iter().any(|path| *path.file_name().unwrap().to_string_lossy() >= *wanted)
}

/// Weights, moments, EMA, gradients and `results.csv` without the time column.
pub fn ending(run: &Path) -> Vec<(String, Vec<u8>)> {
    let newest = checkpoints(run).pop().unwrap();
    let mut files: Vec<(String, Vec<u8>)> = ["weights", "ema", "optimizer", "grads"]
        .map(|name| (name.to_string(), std::fs::read(newest.join(format!("{name}.safetensors"))).unwrap()))
        .to_vec();
    for name in ["last", "best"] {
        files.push((format!("exported {name}"), std::fs::read(run.join(format!("weights/{name}.safetensors"))).unwrap()));
    }
    let csv = std::fs::read_to_string(run.join("results.csv")).unwrap();
    let without_time = csv.lines().map(|l| l.split(',').enumerate().filter(|(i, _)| *i != 1).map(|(_, c)| c).collect::<Vec<_>>().join(","));
    files.push(("results.csv".into(), without_time.collect::<Vec<_>>().join("\n").into_bytes()));
    files
}
