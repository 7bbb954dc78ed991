#!/usr/bin/env python3
"""Times inference of an .onnx file at batch 1 with onnxruntime on the CPU: one JSON object, in the keys of `yolo-train benchmark --json`.

    python docs/onnx_infer.py yolov8n.onnx --threads 2

The model of docs/benchmarks.md is YOLOv8n of 4 classes, made-up weights, batch normalisation folded into the convolutions, boxes decoded, with one
input of 1x3x640x640: Ultralytics' `DetectionModel("yolov8n.yaml", nc=4)`, `.eval()`, `.fuse()`, the last layer's `export = True` and
`format = "onnx"`, then `torch.onnx.export` at opset 17.
"""
import argparse
import json
import statistics
import time

import numpy
import onnxruntime

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--steps", type=int, default=20, help="passes that count, after three that do not")
args = parser.parse_args()

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = args.threads
session = onnxruntime.InferenceSession(args.model, options, providers=["CPUExecutionProvider"])
image = session.get_inputs()[0]
values = {image.name: numpy.random.default_rng(0).random(image.shape, dtype=numpy.float32)}
seconds = []
for _ in range(args.steps + 3):
    start = time.perf_counter()
    session.run(None, values)
    seconds.append(time.perf_counter() - start)
report = {
    "peer": f"onnxruntime {onnxruntime.__version__}",
    "batch": image.shape[0],
    "imgsz": image.shape[2],
    "infer_images_per_s": image.shape[0] / statistics.median(seconds[3:]),
    "threads": args.threads,
}
print(json.dumps(report))
