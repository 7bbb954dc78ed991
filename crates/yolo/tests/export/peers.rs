//! onnxruntime, the checker of onnx, and Ultralytics read our files. Runs where the environment variable `BELLOWS_PEERS_PYTHON` names an interpreter that has
//! them; otherwise it says so.

use std::io::Write;
use std::process::Command;

use bellows_yolo::export::{OnnxOptions, Suppression, to_onnx, to_pt};
use bellows_yolo::model::YoloConfig;
use bellows_yolo::model::names::to_host;
use burn::tensor::Device;

use crate::{about, images, model, pixels};

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[test]
fn others_compute_the_same() {
    let Some(python) = std::env::var_os("BELLOWS_PEERS_PYTHON") else {
        writeln!(std::io::stderr(), "skipped: BELLOWS_PEERS_PYTHON does not name a Python with ultralytics, onnx and onnxruntime").unwrap();
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let config = YoloConfig { sppf_act: false, ..YoloConfig::new(3) };
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

    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/export/peers.py");
    let offline = [("YOLO_OFFLINE", "true"), ("YOLO_AUTOINSTALL", "false")];
    let output = Command::new(python).arg(script).arg(folder.path()).envs(offline).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    writeln!(std::io::stderr(), "{told}").unwrap();
}
