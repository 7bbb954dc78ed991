#!/usr/bin/env python3
"""Times every distinct convolution of YOLOv8n, ours and PyTorch's in turn, and prints the medians as one table.

    python docs/layers.py target/release/yolo-train --batch 4 --threads 2 --rounds 3

A round is `yolo-train benchmark`, whose table has our passes and Burn's, then the same layers in PyTorch; both take the median of 7 calls.
The gradient of the first layer's input, the image, is in no sum: training never asks for it.
"""
import argparse
import re
import statistics
import subprocess
import time

import torch

CALLS = 7
ROW = re.compile(r"^ *(\d+) -> (\d+) +(\d) (\d) +(\d+) x(\d+) +([\d.]+) +([\d.]+) +([\d.]+) +\d+ +\d+ % +([\d.]+) +([\d.]+) +([\d.]+)$", re.M)

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("program")
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=3)
args = parser.parse_args()
torch.set_num_threads(args.threads)


def ours():
    """Peak GFLOP/s, and for each layer (in, out, kernel, stride, size, times) our and Burn's three passes in ms."""
    command = [args.program, "benchmark", f"--batch={args.batch}", f"--steps={CALLS}", f"--threads={args.threads}", "--device=cpu"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    peak = float(re.search(r"100 % is ([\d.]+) GFLOP/s", text)[1])
    return peak, {tuple(map(int, row[:6])): [float(ms) for ms in row[6:]] for row in ROW.findall(text)}


def peer(layer):
    """PyTorch's forward and backward (both gradients) in ms."""
    cin, cout, k, stride, size, _ = layer
    x = torch.rand(args.batch, cin, size, size, requires_grad=cin > 3)
    w = torch.rand(cout, cin, k, k, requires_grad=True)
    asked, dy = [tensor for tensor in (x, w) if tensor.requires_grad], torch.rand(args.batch, cout, size // stride, size // stride)
    times = []
    for _ in range(CALLS + 1):
        start = time.perf_counter()
        y = torch.nn.functional.conv2d(x, w, stride=stride, padding=k // 2)
        middle = time.perf_counter()
        torch.autograd.grad(y, asked, dy)
        times.append((middle - start, time.perf_counter() - middle))
    return [1e3 * statistics.median(pass_) for pass_ in zip(*times[1:])]


peaks, cells = [], {}
for number in range(args.rounds):
    peak, layers = ours()
    peaks.append(peak)
    for layer, times in layers.items():
        cells.setdefault(layer, []).append(times + peer(layer))
    print(f"round {number + 1} of {args.rounds}", flush=True)

peak = statistics.median(peaks)
print(f"\n100 % is {peak:.1f} GFLOP/s ({min(peaks):.1f}-{max(peaks):.1f})\n")
print("| in -> out | k | s | size | times | forward | dx | dw | GFLOP/s | of peak | Burn Flex f / dx / dw | PyTorch f / backward |")
print("| --- " * 12 + "|")


def row(name, gflop, ms, passes):
    """`gflop` of one pass; `ms` ours, Burn's and PyTorch's."""
    rate = 1e3 * gflop * passes / sum(ms[:3])
    mine, burn, torchs = (f" {sep} ".join(f"{x:.{1 if name.startswith('all') else 2}f}" for x in part) for sep, part in zip("|//", (ms[:3], ms[3:6], ms[6:])))
    print(f"| {name} | {mine} | {rate:.0f} | {100 * rate / peak:.0f} % | {burn} | {torchs} |")


total, work = [0.0] * 8, 0.0
for layer, rounds in cells.items():
    cin, cout, k, stride, size, times = layer
    gflop = 2e-9 * args.batch * cin * cout * (k * size // stride) ** 2
    ms = [statistics.median(column) for column in zip(*rounds)]
    row(f"{cin} -> {cout} | {k} | {stride} | {size} | {times}", gflop, ms, 3)
    image = cin == 3
    total = [sum_ + times * x * (not (image and i in (1, 4))) for i, (sum_, x) in enumerate(zip(total, ms))]
    work += times * gflop * (2 if image else 3)
row(f"all but the first dx | | | | {sum(layer[5] for layer in cells)}", work, total, 1)
