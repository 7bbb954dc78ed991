#!/usr/bin/env python3
"""Times inference of an .onnx file with onnxruntime or OpenVINO on the CPU: one JSON object, in the keys of `yolo-train benchmark --json`.

    python docs/onnx_infer.py yolov8n.onnx --threads 2
    python docs/onnx_infer.py yolov8n.onnx --threads 2 --runtime openvino --precision bf16

The model of docs/benchmarks.md is YOLOv8n of 4 classes, made-up weights, batch normalisation folded into the convolutions, boxes decoded, with one
input of 1x3x640x640: Ultralytics' `DetectionModel("yolov8n.yaml", nc=4)`, `.eval()`, `.fuse()`, the last layer's `export = True` and
`format = "onnx"`, then `torch.onnx.export` at opset 17.
"""
import argparse
import json
import statistics
import time

import numpy

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--steps", type=int, default=20, help="passes that count, after three that do not")
parser.add_argument("--runtime", choices=["onnxruntime", "openvino"], default="onnxruntime")
parser.add_argument("--precision", choices=["f32", "bf16"], default="f32", help="OpenVINO's hint")
args = parser.parse_args()


def onnxruntime():
    """A pass over an image, its shape, and the runtime's name."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    session = onnxruntime.InferenceSession(args.model, options, providers=["CPUExecutionProvider"])
    image = session.get_inputs()[0]
    return lambda values: session.run(None, {image.name: values}), image.shape, f"onnxruntime {onnxruntime.__version__}"


def openvino():
    """As above, tuned for the time of one pass."""
    import openvino

    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": args.threads, "INFERENCE_PRECISION_HINT": args.precision}
    compiled = openvino.compile_model(args.model, "CPU", hints)
    request = compiled.create_infer_request()
    return lambda values: request.infer({0: values}), list(compiled.input(0).shape), f"openvino {openvino.__version__} {args.precision}"


run, shape, peer = {"onnxruntime": onnxruntime, "openvino": openvino}[args.runtime]()
values = numpy.random.default_rng(0).random(shape, dtype=numpy.float32)
seconds = []
for _ in range(args.steps + 3):
    start = time.perf_counter()
    run(values)
    seconds.append(time.perf_counter() - start)
report = {
    "peer": peer,
    "batch": shape[0],
    "imgsz": shape[2],
    "infer_images_per_s": shape[0] / statistics.median(seconds[3:]),
    "threads": args.threads,
}
print(json.dumps(report))
