//! onnxruntime, OpenVINO, the checker of onnx, and Ultralytics read our files. Runs where the environment variable `BELLOWS_PEERS_PYTHON` names an
//! interpreter that has them; otherwise it says so. Real frames are those of a copy of HIT-UAV: `BELLOWS_HIT_UAV` names its hit-uav.yaml, or it lies
//! in `../shared/data` beside this repository.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use bellows_yolo::Detector;
use bellows_yolo::data::{Levels, Size, decode_file, letterbox};
use bellows_yolo::export::{OnnxOptions, Suppression, to_onnx, to_pt};
use bellows_yolo::metrics::{NmsConfig, nms};
use bellows_yolo::model::YoloConfig;
use bellows_yolo::model::names::to_host;
use burn::tensor::{Device, Tensor, TensorData};

use crate::{about, images, model, pixels};

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The peers' interpreter; says so where there is none.
fn peers() -> Option<OsString> {
    let python = std::env::var_os("BELLOWS_PEERS_PYTHON");
    if python.is_none() {
        writeln!(std::io::stderr(), "skipped: BELLOWS_PEERS_PYTHON does not name a Python with ultralytics, onnx and onnxruntime").unwrap();
    }
    python
}

/// Runs a script beside this file on a folder; it fails where it sees other numbers.
fn run(python: &OsString, script: &str, folder: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/export").join(script);
    let offline = [("YOLO_OFFLINE", "true"), ("YOLO_AUTOINSTALL", "false")];
    let output = Command::new(python).arg(script).arg(folder).envs(offline).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    writeln!(std::io::stderr(), "{told}").unwrap();
}

#[test]
fn others_compute_the_same() {
    compare(YoloConfig { sppf_act: false, ..YoloConfig::new(3) });
}

#[test]
fn others_compute_the_same_with_a_finer_level() {
    compare(YoloConfig { p2: true, ..YoloConfig::new(3) });
}

fn compare(config: YoloConfig) {
    let Some(python) = peers() else { return };
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let (model, about) = (model(config), about(config));
    let fused = model.fuse(&Device::flex());
    let shape = [2, 3, 96, 128];
    let options = OnnxOptions { batch: 2, size: [96, 128], dynamic: false, nms: None };
    let nms = Some(Suppression { conf: 0.45, iou: 0.5, max_det: 50 });
    put("static.onnx", &to_onnx(&fused, &about, &options).unwrap());
    put("dynamic.onnx", &to_onnx(&fused, &about, &OnnxOptions { dynamic: true, ..options }).unwrap());
    put("nms.onnx", &to_onnx(&fused, &about, &OnnxOptions { nms, ..options }).unwrap());
    put("dynamic_nms.onnx", &to_onnx(&fused, &about, &OnnxOptions { nms, dynamic: true, ..options }).unwrap());
    put("full.pt", &to_pt(&model, &about, false).unwrap());
    put("half.pt", &to_pt(&model, &about, true).unwrap());
    put("images.f32", &bytes(&pixels(shape)));
    put("expected.f32", &bytes(&to_host(fused.decode(&fused.forward(images(shape))))));

    run(&python, "peers.py", folder.path());
}

/// Frames of a data set, spread over its validation images.
const FRAMES: usize = 20;
/// Height and width that they are brought to: 384 x 307 at 384.
const ROOM: [usize; 2] = [320, 384];

fn real_frames() -> Option<Vec<PathBuf>> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/hit-uav/hit-uav.yaml");
    let yaml = std::env::var_os("BELLOWS_HIT_UAV").map_or(beside, PathBuf::from);
    let mut files: Vec<PathBuf> = std::fs::read_dir(yaml.parent()?.join("images/val")).ok()?.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    (files.len() >= FRAMES).then(|| files.iter().step_by(files.len() / FRAMES).take(FRAMES).cloned().collect())
}

/// Those, in 0..1, `[FRAMES, 3, H, W]`.
fn real_pixels(files: &[PathBuf]) -> Vec<f32> {
    let shape = Size { width: ROOM[1] as u32, height: ROOM[0] as u32 };
    let pixels = files.iter().flat_map(|file| {
        let frame = decode_file(file, &Levels::default().alone()).unwrap();
        letterbox(&frame, frame.size(), shape, true).unwrap().0.with_channels(3).pixels
    });
    pixels.map(|v| f32::from(v) / 255.0).collect()
}

/// Prints where a real detector's weights are: made-up ones answer flat ground with the same number everywhere, and suppression with a draw.
const WEIGHTS: &str = "import os, sysconfig; print(os.path.join(sysconfig.get_paths()['purelib'], 'railway_obstacle_detector', 'best.pt'))";

fn real_detector(python: &OsString) -> Option<Detector> {
    let output = Command::new(python).args(["-c", WEIGHTS]).output().unwrap();
    let path = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    path.exists().then(|| Detector::open(&path, &Device::flex()).unwrap())
}

#[test]
fn others_see_the_same_on_real_frames() {
    let Some(python) = peers() else { return };
    let Some(detector) = real_detector(&python) else {
        writeln!(std::io::stderr(), "skipped: that Python has no smartrail-obstacle-detector, whose weights are used").unwrap();
        return;
    };
    let Some(files) = real_frames() else {
        writeln!(std::io::stderr(), "skipped: no frames; BELLOWS_HIT_UAV can name the hit-uav.yaml of a copy of HIT-UAV").unwrap();
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let (config, nc) = (detector.config, detector.config.nc);
    let fused = detector.fuse(&Device::flex());
    // Thermal frames from above are not what it learnt: it is sure of nothing.
    let (conf, iou, max_det) = (0.001, 0.5, 50);
    let options = OnnxOptions { batch: FRAMES, size: ROOM, dynamic: false, nms: None };
    for dynamic in [false, true] {
        let kind = if dynamic { "dynamic" } else { "static" };
        for (name, nms) in [("raw", None), ("nms", Some(Suppression { conf, iou, max_det }))] {
            put(&format!("{kind}_{name}.onnx"), &to_onnx(&fused, &about(config), &OnnxOptions { dynamic, nms, ..options }).unwrap());
        }
    }
    let pixels = real_pixels(&files);
    let input = Tensor::<4>::from_data(TensorData::new(pixels.clone(), [FRAMES, 3, ROOM[0], ROOM[1]]), &Device::flex());
    let raw = to_host(fused.decode(&fused.forward(input)));
    let per_image = raw.len() / FRAMES;
    let suppression = NmsConfig { conf, iou: iou.into(), max_det, multi_label: false, ..NmsConfig::default() };
    let (mut rows, mut seen) = (vec![0.0; FRAMES * max_det * 6], 0);
    for (rows, raw) in rows.chunks_mut(max_det * 6).zip(raw.chunks(per_image)) {
        let found = nms(raw, nc, per_image / (4 + nc), &suppression);
        seen += found.len();
        for (row, d) in rows.chunks_mut(6).zip(&found) {
            row.copy_from_slice(&[&d.xyxy[..], &[d.score, d.class as f32]].concat());
        }
    }
    assert!(seen > 2 * FRAMES, "{seen} boxes in all: they prove nothing");
    put("images.f32", &bytes(&pixels));
    put("raw.f32", &bytes(&raw));
    put("nms.f32", &bytes(&rows));
    let shape = serde_json::json!({ "images": [FRAMES, 3, ROOM[0], ROOM[1]], "numbers": 4 + nc, "rows": max_det });
    put("shape.json", shape.to_string().as_bytes());
    run(&python, "frames.py", folder.path());
}
