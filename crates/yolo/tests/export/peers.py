"""Reads the files that peers.rs put into a folder with onnx, onnxruntime and Ultralytics, and fails where one of them sees other numbers."""

import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from ultralytics import YOLO
from ultralytics.nn.tasks import DetectionModel

folder = Path(sys.argv[1])
images = np.fromfile(folder / "images.f32", "<f4").reshape(2, 3, 96, 128)
expected = np.fromfile(folder / "expected.f32", "<f4").reshape(2, 7, -1)
print({name: version(name) for name in ("onnx", "onnxruntime", "torch", "ultralytics")})


def near(name, own, tolerance):
    """Boxes and scores apart: the largest difference over the largest value."""
    for part, rows in (("boxes", slice(0, 4)), ("scores", slice(4, None))):
        error = np.abs(own[:, rows] - expected[:, rows]).max() / np.abs(expected[:, rows]).max()
        print(f"{name} {part}: {error:.2e}")
        assert error < tolerance, name


suppressed = {}
for name in ("static", "dynamic", "nms", "dynamic_nms"):
    file = str(folder / f"{name}.onnx")
    onnx.checker.check_model(onnx.load(file), full_check=True)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    assert eval(metadata["names"])[1] == "class '1'" and eval(metadata["imgsz"]) == [96, 128], metadata
    (output,) = session.run(None, {"images": images})
    if "nms" in name:
        suppressed[name] = output
        assert output.shape == (2, 50, 6)
    else:
        near(name, output, 1e-4)
assert np.abs(suppressed["nms"] - suppressed["dynamic_nms"]).max() < 1e-2
assert (suppressed["nms"][:, 0, 4] > 0.45).all()

for name, tolerance in (("full", 1e-4), ("half", 1e-2)):
    detector = YOLO(str(folder / f"{name}.pt"))
    assert detector.task == "detect" and detector.names[2] == "class '2'"
    with torch.no_grad():
        near(name, detector.model.eval()(torch.from_numpy(images))[0].numpy(), tolerance)
    # A training starts from the architecture in the file, so the one built from it must take all weights.
    built = DetectionModel(detector.model.yaml, nc=3, verbose=False)
    built.load_state_dict(detector.model.float().state_dict(), strict=True)
    # Folds its batch normalisation.
    picture = (images[0].transpose(1, 2, 0)[..., ::-1] * 255).astype(np.uint8)
    assert detector.predict(picture, imgsz=[96, 128], conf=0.4, verbose=False)[0].boxes is not None

found = YOLO(str(folder / "static.onnx"), task="detect").predict([picture] * 2, imgsz=[96, 128], batch=2, conf=0.4, verbose=False)
assert found[0].names[1] == "class '1'"
