//! Both programs on Vulkan devices without a GPU: what is learnt there is what the processor learns, in f32 and in f16. And `benchmark --count` of both.
//!
//! `BELLOWS_SWIFTSHADER` and `BELLOWS_LAVAPIPE` name their ICD files (`.ci/swiftshader` and `.ci/lavapipe` print them); without one a test says that it is
//! skipped. The runs are small, those of lavapipe ignored unless asked for, for its compiler sits for seconds over each kernel:
//! `docs/software-devices.sh` has the longer ones.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may panic, and says what it measured or that it is skipped")]

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

use crate::support::{expect_code, llm_finetune, tiny_chats, tiny_data, yolo_train};
use serde_json::Value;

/// How far losses in f32 may be from the processor's: a rounding may decide what an anchor learns, and grows with every update.
const PLAIN: f64 = 0.005;
/// The same in f16, of which every number between layers has 11 bits.
const HALF: f64 = 0.05;

const SWIFTSHADER: (&str, &str) = ("BELLOWS_SWIFTSHADER", ".ci/swiftshader");
const LAVAPIPE: (&str, &str) = ("BELLOWS_LAVAPIPE", ".ci/lavapipe");

fn icd((variable, script): (&str, &str)) -> Option<OsString> {
    let icd = std::env::var_os(variable);
    if icd.is_none() {
        eprintln!("skipped: set {variable} to a Vulkan ICD file ({script} prints one)");
    }
    icd
}

/// The training loss of each epoch: of a detector the sum of its three.
fn losses(run: &Path) -> Vec<f64> {
    let text = std::fs::read_to_string(run.join("results.csv")).unwrap();
    let mut rows = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = rows.next().unwrap();
    let parts: Vec<usize> = (0..header.len()).filter(|&i| header[i].starts_with("train/") && header[i].ends_with("loss")).collect();
    assert!(!parts.is_empty(), "{header:?}");
    rows.map(|row| parts.iter().map(|&i| row[i].parse::<f64>().unwrap()).sum()).collect()
}

/// Trains by `program` on the processor and, with `more`, on the device, and holds the losses of epochs together.
fn check(program: fn(&Path, &[&str]) -> Command, dir: &Path, args: &[&str], icd: &OsStr, more: &[&str], limit: f64) {
    let run = |device: &str, name: &str, more: &[&str]| {
        let place = ["--device", device, "--project", "runs", "--name", name];
        let (out, err) = expect_code(program(dir, &[args, &place[..], more].concat()).env("VK_DRIVER_FILES", icd), 0);
        let backend = if device == "cpu" { "flex" } else { "vulkan" };
        assert!(err.contains(&format!("device: {backend} (")), "{out}\n{err}");
        losses(&dir.join("runs").join(name))
    };
    let (processor, device) = (run("cpu", "processor", &[]), run("vulkan:0", "device", more));
    eprintln!("{device:?} for {processor:?}");
    assert!(processor.len() > 1 && processor.len() == device.len(), "{device:?} for {processor:?}");
    let fall = |losses: &[f64]| losses[0] - losses[losses.len() - 1];
    assert!(fall(&processor) > 0.0 && fall(&device) > 0.5 * fall(&processor), "the loss does not fall: {device:?} for {processor:?}");
    assert!(device.iter().zip(&processor).all(|(a, b)| (a - b).abs() <= limit * b), "{device:?} for {processor:?}");
}

/// A whole run of YOLOv8n, its probe and its validation among it. Every epoch is the same batch of four images, nothing varied, for what other
/// images weigh would hide what four updates teach.
fn detector(device: (&str, &str), more: &[&str], limit: f64) {
    let Some(icd) = icd(device) else { return };
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let args = "--data tiny.yaml --fraction 0.37 --imgsz 128 --epochs 4 --workers 0 --nbs 4 --optimizer SGD --lr0 0.02 --warmup-epochs 0 \
                --mosaic 0 --fliplr 0 --scale 0 --translate 0 --hsv-v 0 --plots false";
    let (args, more) = (args.split(' ').collect::<Vec<&str>>(), [&["--conv", "gemm"][..], more].concat());
    check(yolo_train, dir.path(), &args, &icd, &more, limit);
}

/// The same of a LoRA on the smallest model there is.
fn chats(device: (&str, &str), more: &[&str], limit: f64) {
    let Some(icd) = icd(device) else { return };
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let args = ["--config", "tiny.yaml", "--workers", "0", "--save-merged", "false"];
    let more = [&["--products", "own"][..], more].concat();
    check(llm_finetune, dir.path(), &args, &icd, &more, limit);
}

#[test]
fn a_detector_learns_on_swiftshader() {
    detector(SWIFTSHADER, &[], PLAIN);
}

#[test]
#[ignore = "minutes of lavapipe's compiler: docs/software-devices.sh has the longer run"]
fn a_detector_learns_on_lavapipe_in_f16() {
    detector(LAVAPIPE, &["--precision", "f16"], HALF);
}

#[test]
fn chats_are_learnt_on_swiftshader() {
    chats(SWIFTSHADER, &[], PLAIN);
}

#[test]
#[ignore = "minutes of lavapipe's compiler: docs/software-devices.sh has the longer run"]
fn chats_are_learnt_on_lavapipe_in_f16() {
    chats(LAVAPIPE, &["--precision", "fp16"], HALF);
}

/// What `benchmark --count` of a step says, which is all a program does there but for its probe.
fn counts(program: fn(&Path, &[&str]) -> Command, step: &str) {
    let Some(icd) = icd(SWIFTSHADER) else { return };
    let dir = tempfile::tempdir().unwrap();
    let args = format!("benchmark --device vulkan:0 --count --json {step}");
    let args = args.split(' ').collect::<Vec<&str>>();
    let (out, _) = expect_code(program(dir.path(), &args).env("VK_DRIVER_FILES", icd), 0);
    let counted: Value = serde_json::from_str(&out).unwrap();
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value} in {out}"));
    let sum = |by_name: &Value| by_name.as_object().unwrap().values().map(number).sum::<u64>();
    for key in ["launches", "bytes", "flops", "reads"] {
        assert!(number(&counted[key]) > 0, "{key} in {out}");
    }
    assert_eq!(sum(&counted["kernels"]), number(&counted["launches"]), "{out}");
    assert_eq!(sum(&counted["unknown"]), number(&counted["unknown_launches"]), "{out}");
    let known = counted["work"].as_object().unwrap().values();
    let of_ours = known.clone().map(|done| number(&done["launches"])).sum::<u64>();
    assert_eq!(of_ours + number(&counted["unknown_launches"]), number(&counted["launches"]), "what is told of is launched: {out}");
    assert_eq!(known.map(|done| number(&done["bytes"])).sum::<u64>(), number(&counted["bytes"]));
    for card in ["RX 5600 XT", "RX 6700 XT", "RX 7900 XT", "MI50", "TITAN RTX", "RTX 3060"] {
        for key in ["memory_s", "launches_s", "over_products_at_60_percent"] {
            assert!(counted["roofline"][card][key].as_f64().is_some_and(|value| value > 0.0), "{key} of {card} in {out}");
        }
        assert!(counted["sources"][card].as_array().is_some_and(|sources| sources.len() == 2), "{card} in {out}");
    }
}

#[test]
fn a_detectors_step_is_counted_on_swiftshader() {
    counts(yolo_train, "--conv gemm --batch 1 --imgsz 64 --boxes 3");
}

#[test]
fn a_step_of_words_is_counted_on_swiftshader() {
    counts(llm_finetune, "--products own --size tiny --seq 16 --rank 4");
}
