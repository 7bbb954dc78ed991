//! llm-finetune is killed, resumed, and ends in the same bits; a signal stops it cleanly.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{checkpoints, expect_code, llm_finetune, reached, tiny_chats};

/// Micro-batches an epoch of the tiny set: 12 examples, 2 a batch; windows of 4 end with the epoch.
const BATCHES: u64 = 6;

/// Everything random is on.
const NOISY: [&str; 10] = [
    "--lora-dropout",
    "0.2",
    "--neftune-noise-alpha",
    "5",
    "--gradient-accumulation-steps",
    "4",
    "--checkpoint-minutes",
    "0",
    "--eval-steps",
    "1",
];

fn quiet(dir: &Path, args: &[&str]) -> Command {
    let mut command = llm_finetune(dir, args);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn training(dir: &Path, name: &str, more: &[&str]) -> Command {
    quiet(dir, &[&["--config", "tiny.yaml", "--name", name], &NOISY[..], more].concat())
}

/// Adapter, state and `results.csv` without the time column.
fn ending(run: &Path) -> Vec<(String, Vec<u8>)> {
    let newest = checkpoints(run).pop().unwrap();
    let state = ["weights", "optimizer", "grads"].map(|name| newest.join(format!("{name}.safetensors")));
    let written =
        ["adapter/adapter_model.safetensors", "adapter/adapter_config.json", "weights/last.safetensors", "weights/best.safetensors"];
    let files = state.into_iter().chain(written.map(|name| run.join(name)));
    let mut all: Vec<_> =
        files.map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(path).unwrap())).collect();
    let csv = std::fs::read_to_string(run.join("results.csv")).unwrap();
    let without_time = csv.lines().map(|l| l.split(',').enumerate().filter(|(i, _)| *i != 1).map(|(_, c)| c).collect::<Vec<_>>().join(","));
    all.push(("results.csv".into(), without_time.collect::<Vec<_>>().join("\n").into_bytes()));
    all
}

/// Waits until the run has a checkpoint of this step or a later one.
fn wait_for(run: &Path, step: u64, child: &mut Child) {
    let started = Instant::now();
    while !reached(run, step) {
        let running = child.try_wait().unwrap().is_none();
        assert!(running && started.elapsed() < Duration::from_secs(300), "{} never got to step {step}", run.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn killed_and_resumed_it_ends_in_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    assert!(training(dir.path(), "whole", &[]).status().unwrap().success());
    let expected = ending(&dir.path().join("runs/sft/whole"));

    // Inside a window, at the end of one, at the epoch's edge, in the second epoch's first window, and twice in one run. Where the examples are,
    // in memory or in a file, is nothing to the bits.
    let (held, streamed): (&[&str], &[&str]) = (&[], &["--streaming", "true"]);
    // Nor is where they lie.
    std::fs::copy(dir.path().join("chats.jsonl"), dir.path().join("copy.jsonl")).unwrap();
    let cases = [(vec![1], held), (vec![4], streamed), (vec![BATCHES], held), (vec![BATCHES + 3], streamed), (vec![2, BATCHES + 1], held)];
    for (kills, more) in cases {
        let name = format!("killed{kills:?}").replace([' ', '[', ']', ','], "");
        let run = dir.path().join("runs/sft").join(&name);
        let mut before = 0;
        for &step in &kills {
            // When it begins the step after that one.
            let mut killed =
                if before == 0 { training(dir.path(), &name, more) } else { quiet(dir.path(), &["--resume", run.to_str().unwrap()]) };
            let ended = killed.env("BELLOWS_FAULT", format!("kill:step:{}", step - before)).status().unwrap();
            assert!(ended.code().is_none() && reached(&run, step) && !reached(&run, step + 1), "{name}, {step}: {ended}");
            before = step;
        }
        let resume = ["--resume", run.to_str().unwrap(), "--data", "copy.jsonl"];
        let (out, _) = expect_code(&mut llm_finetune(dir.path(), &resume), 0);
        assert!(out.contains("going on at epoch"), "{out}");
        let got = ending(&run);
        assert_eq!(got.len(), expected.len());
        for ((file, ours), (_, theirs)) in got.iter().zip(&expected) {
            // The adapter names its base model, which lies in the run.
            let named = file == "adapter_config.json" && String::from_utf8_lossy(ours).replace(&name, "whole").as_bytes() == theirs;
            assert!(named || ours == theirs, "{name}: {file} differs");
        }
    }
}

/// The most memory that a process holds until it ends, KiB.
#[cfg(target_os = "linux")]
fn peak(mut child: Child) -> u64 {
    let (status, mut most) = (format!("/proc/{}/status", child.id()), 0);
    let ended = loop {
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        most = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(most);
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(ended.success());
    most
}

#[test]
#[cfg(target_os = "linux")]
fn a_resumed_run_holds_no_more_than_one_that_was_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    // The highest rank that the tiny model has room for.
    let wide = ["--r", "64", "--lora-alpha", "64"];
    let whole = |name: &str| peak(training(dir.path(), name, &wide).spawn().unwrap());
    let resumed = |name: &str| {
        let mut killed = training(dir.path(), name, &wide);
        let ended = killed.env("BELLOWS_FAULT", format!("kill:step:{}", BATCHES + 1)).status().unwrap();
        assert_eq!(ended.code(), None, "it was to be killed");
        let run = dir.path().join("runs/sft").join(name);
        peak(quiet(dir.path(), &["--resume", run.to_str().unwrap()]).spawn().unwrap())
    };
    // Pages that threads touch differ by one or two percent from run to run, and by five in one of four; what a process held last may be missed.
    let (mut wholes, mut usual, mut least) = (Vec::new(), 0, u64::MAX);
    let is_no_more = |i| {
        wholes.push(whole(&format!("whole{i}")));
        wholes.sort_unstable();
        usual = wholes[wholes.len() / 2];
        least = least.min(resumed(&format!("killed{i}")));
        least <= usual + usual / 30
    };
    let no_more = (0..6).any(is_no_more);
    assert!(usual > 80_000 && no_more, "{least} KiB after {usual}");
}

#[test]
fn a_signal_stops_with_code_0_and_resume_finishes() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let mut child = training(dir.path(), "s", &["--epochs", "30"]).spawn().unwrap();
    let run = dir.path().join("runs/sft/s");
    wait_for(&run, 3, &mut child);
    let (_, error) = expect_code(&mut llm_finetune(dir.path(), &["--resume", run.to_str().unwrap()]), 2);
    assert!(error.contains(&child.id().to_string()), "the holder's pid is named: {error}");

    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!run.join("adapter").exists(), "it is not finished");
    let events = std::fs::read_to_string(run.join("events.jsonl")).unwrap();
    assert!(events.lines().last().unwrap().contains("\"stop\""), "{events}");

    // What would change the run's numbers is refused, by flag or by hand.
    let (_, error) = expect_code(&mut llm_finetune(dir.path(), &["--resume", run.to_str().unwrap(), "--learning-rate", "1"]), 2);
    assert!(error.contains("--learning_rate") || error.contains("--learning-rate"), "{error}");
    let yaml = std::fs::read_to_string(run.join("config.yaml")).unwrap();
    std::fs::write(run.join("config.yaml"), yaml.replace("lora_dropout: 0.2", "lora_dropout: 0.1")).unwrap();
    let (_, error) = expect_code(&mut llm_finetune(dir.path(), &["--resume", run.to_str().unwrap()]), 2);
    assert!(error.contains("lora_dropout was 0.2 and is 0.1"), "{error}");
    std::fs::write(run.join("config.yaml"), yaml).unwrap();
    let chats = std::fs::read_to_string(dir.path().join("chats.jsonl")).unwrap();
    std::fs::write(dir.path().join("other.jsonl"), chats.replace("Three", "Never")).unwrap();
    let (_, error) = expect_code(&mut llm_finetune(dir.path(), &["--resume", run.to_str().unwrap(), "--data", "other.jsonl"]), 2);
    assert!(error.contains("data has changed"), "{error}");

    // What does not may be given, so where the data lie; the newest run is found without its name, and knows it from then on.
    std::fs::rename(dir.path().join("chats.jsonl"), dir.path().join("moved.jsonl")).unwrap();
    let may = ["--resume", "--checkpoint-minutes", "10", "--save-gguf", "f16", "--data", "moved.jsonl"];
    let (out, _) = expect_code(&mut llm_finetune(dir.path(), &may), 0);
    assert!(out.contains("going on at epoch") && run.join("model-f16.gguf").exists() && run.join("adapter").exists(), "{out}");
    let (out, _) = expect_code(&mut llm_finetune(dir.path(), &["--resume"]), 0);
    assert!(out.contains("nothing to resume"), "{out}");
}

#[test]
fn a_base_may_lie_elsewhere_and_is_the_one_it_was() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let tiny = ["--config", "tiny.yaml", "--epochs", "1", "--name"];
    expect_code(&mut llm_finetune(dir.path(), &[&tiny[..], &["made", "--method", "full"]].concat()), 0);
    let [base, moved] = ["base", "moved"].map(|name| dir.path().join(name));
    std::fs::rename(dir.path().join("runs/sft/made/model"), &base).unwrap();
    let mut killed = llm_finetune(dir.path(), &[&tiny[..], &["on", "--model", "base"]].concat());
    let ended = killed.env("BELLOWS_FAULT", "kill:step:3").stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert_eq!(ended.code(), None);
    std::fs::rename(&base, &moved).unwrap();
    let resume = |code| expect_code(&mut llm_finetune(dir.path(), &["--resume", "runs/sft/on", "--model", "moved"]), code);
    let file = moved.join("model.safetensors");
    let whole = std::fs::read(&file).unwrap();
    let mut tensors = bellows_weights::read(&file).unwrap().tensors;
    tensors.get_mut("model.layers.0.self_attn.o_proj.weight").unwrap().data[0] ^= 1;
    std::fs::write(&file, bellows_weights::to_safetensors(&tensors, &BTreeMap::new()).unwrap()).unwrap();
    let (_, error) = resume(2);
    assert!(error.contains("the content of the base model has changed"), "{error}");
    std::fs::write(&file, whole).unwrap();
    let (out, _) = resume(0);
    assert!(out.contains("going on at epoch"), "{out}");
}
