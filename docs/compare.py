#!/usr/bin/env python3
"""Runs two commands in turn, each printing one JSON object, and compares the medians of what both tell.

    python3 docs/compare.py --rounds 5 'target/release/yolo-train benchmark --batch 4 --json' 'python yolo_step.py --batch 4'

The first command is ours, the second the peer; the ratio is ours / peer, with the range of both over the rounds. What only ours tells (what a step is held
against: flop, gflops, peak_gflops, idle_share) stands alone.
"""
import argparse
import json
import os
import statistics
import subprocess

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("commands", nargs=2)
args = parser.parse_args()

seen = [{}, {}]
for number in range(args.rounds):
    for which, command in enumerate(args.commands):
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{command}: exit {done.returncode}\n{done.stderr}")
        for key, value in json.loads(done.stdout.strip().splitlines()[-1]).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                seen[which].setdefault(key, []).append(value)
    print(f"round {number + 1}: load {os.getloadavg()[0]:.1f}", flush=True)

print(f"\n| | ours | peer | ours / peer |\n| --- | --- | --- | --- |")
for key, ours in seen[0].items():
    sides = [side for side in (ours, seen[1].get(key)) if side]
    cells = [f"{statistics.median(s):.4g} ({min(s):.4g}-{max(s):.4g})" for s in sides]
    ratio = f"{statistics.median(sides[0]) / statistics.median(sides[1]):.3g}" if len(sides) == 2 else ""
    print(f"| {key} | {cells[0]} | {cells[1] if len(sides) == 2 else ''} | {ratio} |")
