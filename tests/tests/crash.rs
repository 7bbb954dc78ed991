//! The real program is killed, resumed, and ends in the same bits (acceptance 2, small).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{self, checkpoints, ending, expect_code, reached, tiny_data, yolo_train};

/// Batches an epoch of the tiny set: 11 images, 4 a batch; windows of 2 straddle the epochs; mosaic closes in the last of 3.
const BATCHES: u64 = 3;

fn training(dir: &Path, name: &str) -> Command {
    let args = ["--data", "tiny.yaml", "--name", name, "--checkpoint-minutes", "0", "--plots", "false"];
    let mut command = yolo_train(dir, &args);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn same(a: &[(String, Vec<u8>)], b: &[(String, Vec<u8>)], what: &str) {
    for ((name, x), (_, y)) in a.iter().zip(b) {
        assert!(x == y, "{what}: {name} differs");
    }
    assert_eq!(a.len(), b.len());
}

#[test]
fn killed_and_resumed_it_ends_in_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    assert!(training(dir.path(), "whole").status().unwrap().success());
    let whole = dir.path().join("runs/detect/whole");
    let expected = ending(&whole);
    let csv = std::fs::read_to_string(whole.join("results.csv")).unwrap();
    assert_eq!(
        csv.lines().next().unwrap(),
        "epoch,time,train/box_loss,train/cls_loss,train/dfl_loss,metrics/precision(B),metrics/recall(B),metrics/mAP50(B),\
         metrics/mAP50-95(B),val/box_loss,val/cls_loss,val/dfl_loss,lr/pg0,lr/pg1,lr/pg2"
    );
    assert_eq!(csv.lines().count(), 4);

    // The same images and labels in another place.
    std::fs::create_dir(dir.path().join("elsewhere")).unwrap();
    tiny_data(&dir.path().join("elsewhere"));
    let moved = ["--data", "elsewhere/tiny.yaml"];
    // Mid-epoch inside a window, at the epoch's edge, mid-epoch again, after mosaic closed.
    for kill_at in [1, BATCHES, BATCHES + 2, 2 * BATCHES + 1] {
        let name = format!("killed{kill_at}");
        let run = dir.path().join("runs/detect").join(&name);
        // When it begins the step after that one.
        let mut killed = training(dir.path(), &name);
        let ended = killed.env("BELLOWS_FAULT", format!("kill:step:{kill_at}")).status().unwrap();
        assert!(ended.code().is_none() && reached(&run, kill_at) && !reached(&run, kill_at + 1), "{name}: {ended}");
        let more: &[&str] = if kill_at > BATCHES { &moved } else { &[] };
        let (out, _) = expect_code(&mut yolo_train(dir.path(), &[&["--resume", run.to_str().unwrap()][..], more].concat()), 0);
        assert!(out.contains("going on at epoch"), "{out}");
        same(&ending(&run), &expected, &name);
    }
    // From outside, as soon as an epoch's checkpoint is there: its weights may not be. On a busy machine the run may be over by then.
    let caught = (0..5).any(|i| {
        let name = format!("outside{i}");
        let run = dir.path().join("runs/detect").join(&name);
        let mut child = training(dir.path(), &name).spawn().unwrap();
        while !reached(&run, BATCHES) && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let (out, _) = expect_code(&mut yolo_train(dir.path(), &["--resume", run.to_str().unwrap()]), 0);
        same(&ending(&run), &expected, &name);
        out.contains("going on at epoch")
    });
    assert!(caught);
    // It is known there from then on; with another label it is another set.
    let label = std::fs::read_dir(dir.path().join("elsewhere/tiny/labels/train")).unwrap().next().unwrap().unwrap().path();
    std::fs::write(label, "0 0.5 0.5 0.25 0.125\n").unwrap();
    for (run, more) in [("runs/detect/killed1", &moved[..]), ("runs/detect/killed5", &[])] {
        let (_, error) = expect_code(&mut yolo_train(dir.path(), &[&["--resume", run][..], more].concat()), 2);
        assert!(error.contains("the data has changed"), "{run}: {error}");
    }
}

#[test]
fn a_signal_stops_cleanly_and_two_processes_cannot_share_a_run() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let args = ["--data", "tiny.yaml", "--name", "s", "--epochs", "200", "--plots", "false"];
    let mut child = yolo_train(dir.path(), &args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let run = dir.path().join("runs/detect/s");
    let started = Instant::now();
    while checkpoints(&run).is_empty() {
        assert!(started.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(20));
    }
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &["--resume", run.to_str().unwrap()]), 2);
    assert!(error.contains(&child.id().to_string()), "the holder's pid is named: {error}");

    let kill = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let events = std::fs::read_to_string(run.join("events.jsonl")).unwrap();
    assert!(events.lines().last().unwrap().contains("\"stop\""), "{events}");
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &["--resume", run.to_str().unwrap(), "--lr0", "1"]), 2);
    assert!(error.contains("--lr0"), "{error}");
}

/// The reader of a log is gone, or the terminal: what there is to say of a damaged checkpoint is said to nobody.
#[test]
fn words_that_nobody_hears_end_no_run() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    assert!(training(dir.path(), "w").status().unwrap().success());
    let run = dir.path().join("runs/detect/w");
    std::fs::write(checkpoints(&run).pop().unwrap().join("weights.safetensors"), "damaged").unwrap();
    let mut again = yolo_train(dir.path(), &["--resume", run.to_str().unwrap()]);
    let mut child = again.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_run_directory_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["--data", "tiny.yaml", "--epochs", "1"]), 0);
    for words in ["YOLOv8n summary", "3,011,628 parameters", "optimizer: AdamW", "box_loss", "mAP50-95", "Results saved to"] {
        assert!(out.contains(words), "no {words:?} in the output:\n{out}");
    }
    let run = dir.path().join("runs/detect/train");
    let files = [
        "config.yaml",
        "results.csv",
        "events.jsonl",
        "results.png",
        "labels.jpg",
        "train_batch0.jpg",
        "train_batch1.jpg",
        "train_batch2.jpg",
        "val_batch0_labels.jpg",
        "val_batch0_pred.jpg",
        "BoxPR_curve.png",
        "BoxF1_curve.png",
        "BoxP_curve.png",
        "BoxR_curve.png",
        "confusion_matrix.png",
        "confusion_matrix_normalized.png",
        "weights/best.safetensors",
        "weights/last.safetensors",
    ];
    for file in files {
        assert!(run.join(file).metadata().is_ok_and(|m| m.len() > 0), "no {file}");
        if file.ends_with("jpg") || file.ends_with("png") {
            image::open(run.join(file)).unwrap();
        }
    }
    let weights = bellows_weights::read(&run.join("weights/best.safetensors")).unwrap();
    assert_eq!(weights.tensors.len(), 355);
    assert_eq!(weights.tensors["model.22.cv3.0.2.bias"].shape, [4]);

    // What was written can be started from: all 355 tensors are taken over.
    let best = run.join("weights/best.safetensors");
    let args = ["--data", "tiny.yaml", "--model", best.to_str().unwrap(), "--epochs", "1", "--plots", "false"];
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &args), 0);
    assert!(out.contains("Transferred 355/355"), "{out}");
    // The second run got a directory of its own.
    assert!(dir.path().join("runs/detect/train2/results.csv").exists());

    // A run goes on without the file it began with, once it has weights of its own.
    let run = |name: &str, fault: &str| {
        let args = ["--data", "tiny.yaml", "--model", "begin.safetensors", "--epochs", "2", "--plots", "false", "--name", name];
        yolo_train(dir.path(), &args).env("BELLOWS_FAULT", fault).output().unwrap()
    };
    let begin = dir.path().join("begin.safetensors");
    std::fs::copy(&best, &begin).unwrap();
    let ended =
        [("whole", ""), ("early", "kill:step:1"), ("late", "kill:evaluation:2")].map(|(name, fault)| run(name, fault).status.success());
    assert_eq!(ended, [true, false, false]);
    std::fs::remove_file(&begin).unwrap();
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &["--resume", "runs/detect/early"]), 2);
    assert!(error.contains("begin.safetensors"), "{error}");
    // Where it lies elsewhere, or another of its form does, the run's own weights go on; of another size it is not.
    let early = |model: &str, code| expect_code(&mut yolo_train(dir.path(), &["--resume", "runs/detect/early", "--model", model]), code);
    let (_, error) = early("yolov8s", 2);
    assert!(error.contains("the network has changed"), "{error}");
    early(best.to_str().unwrap(), 0);
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["--resume", "runs/detect/late"]), 0);
    assert!(out.contains("those of the run so far"), "{out}");
    let ending = |name: &str| std::fs::read(dir.path().join(format!("runs/detect/{name}/weights/last.safetensors"))).unwrap();
    assert!(ending("late") == ending("whole") && ending("early") == ending("whole"));
}

#[test]
fn the_library_example_learns() {
    let dir = tempfile::tempdir().unwrap();
    let mut example = Command::new(support::program("examples/train_custom"));
    let (out, _) = expect_code(example.current_dir(dir.path()).args(["runs", "2"]), 0);
    assert!(out.starts_with("2 epochs, mAP50 "), "{out}");
    let csv = std::fs::read_to_string(dir.path().join("runs/shapes/results.csv")).unwrap();
    let losses: Vec<f64> = csv.lines().skip(1).map(|l| l.split(',').skip(2).take(3).map(|c| c.parse::<f64>().unwrap()).sum()).collect();
    assert!(losses[1] < losses[0], "the loss does not fall: {losses:?}");
}
