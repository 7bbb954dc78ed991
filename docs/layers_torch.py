#!/usr/bin/env python3
"""Times every distinct convolution of YOLOv8n in PyTorch on the CPU, in the order of `yolo-train benchmark`: forward, and backward (both gradients).

    python docs/layers_torch.py --batch 4 --threads 2 --rounds 7
"""
import argparse
import statistics
import time

import torch

# in, out, kernel, stride, input size, how often the network has it (4 classes, 640 pixels).
LAYERS = [
    (3, 16, 3, 2, 640, 1), (16, 32, 3, 2, 320, 1), (32, 32, 1, 1, 160, 1), (16, 16, 3, 1, 160, 2), (48, 32, 1, 1, 160, 1), (32, 64, 3, 2, 160, 1),
    (64, 64, 1, 1, 80, 2), (32, 32, 3, 1, 80, 6), (128, 64, 1, 1, 80, 1), (64, 128, 3, 2, 80, 1), (128, 128, 1, 1, 40, 1), (64, 64, 3, 1, 40, 10),
    (256, 128, 1, 1, 40, 1), (128, 256, 3, 2, 40, 1), (256, 256, 1, 1, 20, 1), (128, 128, 3, 1, 20, 4), (384, 256, 1, 1, 20, 3), (256, 128, 1, 1, 20, 1),
    (512, 256, 1, 1, 20, 1), (384, 128, 1, 1, 40, 1), (192, 128, 1, 1, 40, 3), (192, 64, 1, 1, 80, 1), (96, 64, 1, 1, 80, 1), (64, 64, 3, 2, 80, 1),
    (128, 128, 3, 2, 40, 1), (64, 64, 3, 1, 80, 4), (64, 4, 1, 1, 80, 1), (128, 64, 3, 1, 40, 2), (64, 64, 1, 1, 40, 1), (64, 4, 1, 1, 40, 1),
    (256, 64, 3, 1, 20, 2), (64, 64, 3, 1, 20, 2), (64, 64, 1, 1, 20, 1), (64, 4, 1, 1, 20, 1),
]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=7)
args = parser.parse_args()
torch.set_num_threads(args.threads)

total = [0.0, 0.0]
print("| in -> out, k, s, size | times | forward ms | backward ms |\n| --- | --- | --- | --- |")
for cin, cout, k, stride, size, count in LAYERS:
    # The first layer's input is an image: training never asks for its gradient.
    x = torch.rand(args.batch, cin, size, size, requires_grad=cin > 3)
    w = torch.rand(cout, cin, k, k, requires_grad=True)
    forward, backward = [], []
    for _ in range(args.rounds + 1):
        start = time.perf_counter()
        y = torch.nn.functional.conv2d(x, w, stride=stride, padding=k // 2)
        middle = time.perf_counter()
        torch.autograd.backward(y, torch.ones_like(y))
        forward.append(middle - start)
        backward.append(time.perf_counter() - middle)
    cells = [1e3 * statistics.median(times[1:]) for times in (forward, backward)]
    total = [t + count * c for t, c in zip(total, cells)]
    print(f"| {cin} -> {cout}, {k}, {stride}, {size} | {count} | {cells[0]:.2f} | {cells[1]:.2f} |", flush=True)
print(f"| all | | {total[0]:.1f} | {total[1]:.1f} |")
