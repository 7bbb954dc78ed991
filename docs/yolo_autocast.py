#!/usr/bin/env python3
"""Runs the timer yolo_step.py of the peers in bf16: its model's passes under PyTorch's autocast, everything else and what it prints as they are.

    python docs/yolo_autocast.py ../shared/peers/yolo_step.py --batch 4 --threads 2

A pass forward (the loss included) has a context of its own: one around all steps would keep the first step's copies of the weights, and the backward
pass computes in the types of the forward pass anyway.
"""
import runpy
import sys

import torch
from ultralytics.nn.tasks import DetectionModel

if len(sys.argv) < 2:
    raise SystemExit(__doc__)
plain = DetectionModel.forward


def forward(self, *args, **kwargs):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return plain(self, *args, **kwargs)


DetectionModel.forward = forward
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
