"""Runs the graphs that peers.rs put into a folder on its frames, with onnxruntime and (where it is installed) OpenVINO, and fails where one of them
sees other numbers than Bellows, or other boxes after suppression."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

try:
    import openvino
except ImportError:
    openvino = None
    print("OpenVINO is not installed: onnxruntime alone")

folder = Path(sys.argv[1])
shape = json.loads((folder / "shape.json").read_text())
images = np.fromfile(folder / "images.f32", "<f4").reshape(shape["images"])
raw = np.fromfile(folder / "raw.f32", "<f4").reshape(len(images), shape["numbers"], -1)
kept = np.fromfile(folder / "nms.f32", "<f4").reshape(len(images), shape["rows"], 6)


def by_onnxruntime(file):
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return session.run(None, {"images": images})[0]


def by_openvino(file):
    # Processors that can would compute in bfloat16.
    model = openvino.Core().compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return model(images)[0]


def same_numbers(who, output):
    """Boxes and scores apart: the largest difference over the largest value."""
    for part, rows in (("boxes", slice(0, 4)), ("scores", slice(4, None))):
        error = np.abs(output[:, rows] - raw[:, rows]).max() / np.abs(raw[:, rows]).max()
        print(f"{who} {part}: {error:.2e}")
        assert error < 1e-4, who


def same_boxes(who, output):
    """The same boxes in the same order: as many, of the same classes, in the same places."""
    for i, (ours, theirs) in enumerate(zip(kept, output)):
        ours, theirs = ours[ours[:, 4] > 0], theirs[theirs[:, 4] > 0]
        assert len(ours) == len(theirs), f"{who}, frame {i}: {len(ours)} boxes here, {len(theirs)} there"
        assert (ours[:, 5] == theirs[:, 5]).all(), f"{who}, frame {i}: other classes"
        assert np.abs(ours[:, :4] - theirs[:, :4]).max() < 1e-4 * max(images.shape[2:]), f"{who}, frame {i}: other places"
        assert np.abs(ours[:, 4] - theirs[:, 4]).max() < 1e-4, f"{who}, frame {i}: other scores"
    print(f"{who}: {(kept[:, :, 4] > 0).sum()} boxes are the same")


programs = {"onnxruntime": by_onnxruntime} | ({"openvino": by_openvino} if openvino else {})
for program, run in programs.items():
    for kind in ("static", "dynamic"):
        same_numbers(f"{program} {kind}", run(str(folder / f"{kind}_raw.onnx")))
        same_boxes(f"{program} {kind}", run(str(folder / f"{kind}_nms.onnx")))
