"""Prints what both programs plan to hold beside what a benchmark holds, as a table: planned.py FOLDER_OF_THE_PROGRAMS [llm] [yolo] [cards]."""

import itertools
import json
import subprocess
import sys

BIN, SECTIONS = sys.argv[1], sys.argv[2:] or ["llm", "yolo", "cards"]
ATTENTION, ALL = "q_proj,k_proj,v_proj,o_proj", "all-linear"
# size, base dtype, precision, batch, tokens, rank, targets, checkpointing
LLM = [
    ("0.5B", "f32", "f32", 1, 512, 16, ATTENTION, "off"),
    ("0.5B", "bf16", "bf16", 1, 512, 16, ATTENTION, "off"),
    ("0.5B", "bf16", "bf16", 1, 512, 16, ALL, "12"),
    ("0.5B", "f16", "fp16", 1, 256, 16, ATTENTION, "off"),
    ("0.5B", "int8", "f32", 1, 256, 16, ALL, "off"),
    ("0.5B", "int8", "bf16", 1, 256, 128, ALL, "all"),
    ("0.5B", "nf4", "f32", 1, 256, 16, ALL, "off"),
    ("0.5B", "nf4", "bf16", 1, 512, 16, ALL, "all"),
    ("0.5B", "nf4", "bf16", 4, 128, 16, ALL, "12"),
    ("1.5B", "nf4", "bf16", 1, 256, 16, ALL, "off"),
    ("1.5B", "nf4", "bf16", 1, 2048, 16, ALL, "all"),
    ("3B", "nf4", "bf16", 1, 1024, 16, ALL, "all"),
]
# model, images, pixels
YOLO = [("n", 4, 640), ("n", 16, 640), ("n", 16, 320), ("n", 32, 416), ("s", 4, 640), ("s", 16, 320), ("m", 2, 640), ("m", 8, 320)]
TERMS = ["weights", "adapters", "optimizer", "activations", "logits", "workspace"]
CARDS = ["RX 5600 XT", "RX 5700 XT", "RX 6700 XT", "MI50", "TITAN RTX", None]


def run(program, *words):
    done = subprocess.run([f"{BIN}/{program}", *map(str, words), "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{program} {' '.join(map(str, words))}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def held(report):
    """GB of 10^9 bytes; a benchmark's is 10^6 KiB."""
    return 1.024 * report["peak_gb"]


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def against(planned, measured):
    return f"{planned:.2f}", f"{measured:.2f}", f"{100 * (planned / measured - 1):+.1f} %"


if "llm" in SECTIONS:
    row("model", "weights", "products", "batch x tokens", "rank, maps", "layers run again", "planned, GB", "held, GB", "off by", "tokens/s planned", "measured")
    row(*["---"] * 11)
    for size, base, precision, batch, seq, rank, targets, checkpointing in LLM:
        report = run("llm-finetune", "benchmark", "--size", size, "--precision", precision, "--base-dtype", base, "--batch", batch, "--seq", seq,
                     "--rank", rank, "--targets", targets, "--checkpointing", checkpointing, "--steps", 1)
        plan = run("llm-finetune", "plan", "--size", size, "--precision", precision, "--base-dtype", base, "--batch-size", batch,
                   "--max-seq-length", seq, "--r", rank, "--target-modules", targets, "--gradient-checkpointing", checkpointing,
                   "--gradient-accumulation-steps", 1, "--device", "cpu")
        maps = "all" if targets == ALL else "attention's"
        row(size, base, precision, f"{batch} x {seq}", f"{rank}, {maps}", plan["layers_rerun"], *against(plan["peak_gb"], held(report)),
            f"{plan['tokens_per_s']:.0f}", f"{report['tokens_per_s']:.0f}")

if "yolo" in SECTIONS:
    row("model", "images x pixels", "gradient checkpointing", "planned, GB", "held, GB", "off by")
    row(*["---"] * 6)
    for (model, batch, imgsz), checkpointing in itertools.product(YOLO, ["true", "false"]):
        report = run("yolo-train", "benchmark", "--model", model, "--batch", batch, "--imgsz", imgsz, "--steps", 1,
                     "--gradient-checkpointing", checkpointing)
        # The sample has four classes, as the benchmark, which has SGD and one batch an update.
        plan = run("yolo-train", "plan", "--model", f"yolov8{model}", "--batch", batch, "--imgsz", imgsz, "--workers", 1, "--device", "cpu",
                   "--data", "datasets/thermal-sample.yaml", "--optimizer", "SGD", "--nbs", batch, "--gradient-checkpointing", checkpointing)
        row(f"YOLOv8{model}", f"{batch} x {imgsz}", checkpointing, *against(plan["peak_gb"], held(report)))

if "cards" in SECTIONS:
    for card in CARDS:
        print(f"\n### {card or 'A processor with 16 GB free'}\n")
        row("model", "tokens", "base", *TERMS, "peak, GB", "fits", "layers run again", "largest batch", "longest row", "tokens/s")
        row(*["---"] * (9 + len(TERMS)))
        for size in ["0.5B", "1.5B", "3B"]:
            for seq in [512, 2048]:
                for base in ["auto", "nf4"]:
                    where = ["--card", card] if card else ["--device", "cpu", "--memory-limit", 16]
                    plan = run("llm-finetune", "plan", "--size", size, "--max-seq-length", seq, "--batch-size", 1, "--base-dtype", base, *where)
                    most = [plan[key] or "-" for key in ["largest_batch", "longest_seq"]]
                    row(size, seq, base, *(f"{plan[f'{key}_gb']:.2f}" for key in [*TERMS, "peak"]), "yes" if plan["fits"] else "no",
                        plan["layers_rerun"], *most, f"{plan['tokens_per_s']:.0f}")
