"""Makes optimizers.json, the golden case of src/optim.rs: `python optimizers.py` (needs torch and transformers).

A matrix, a vector and a stack of matrices under ten updates with weight decay and a falling rate. Adafactor is transformers' own; Lion is the
algorithm of Chen et al. 2023 (arXiv 2302.06675, algorithm 2), written out.
"""
import json, pathlib
import torch
from transformers.optimization import Adafactor

STEPS, DECAY = 10, 0.05
SHAPES = [[5, 3], [4], [2, 3, 2]]
torch.manual_seed(0)
starts = [torch.randn(s) for s in SHAPES]
# Gradients of very different size by row and column, so that factored moments and clipping matter; the first of the matrix are zeros,
# as those of LoRA's A are.
grads = [[torch.randn(s) * torch.rand(s).pow(3) * (0 if step == 0 and len(s) == 2 else 1) for s in SHAPES] for step in range(STEPS)]
rates = [0.02 * (1 - step / STEPS) for step in range(STEPS)]


def adafactor(params, gs, lr, state):
    if "optimizer" not in state:
        state["optimizer"] = Adafactor(params, lr=lr, weight_decay=DECAY, scale_parameter=False, relative_step=False, warmup_init=False)
    for p, g in zip(params, gs):
        p.grad = g.clone()
    state["optimizer"].param_groups[0]["lr"] = lr
    state["optimizer"].step()


def lion(params, gs, lr, state):
    momenta = state.setdefault("momenta", [torch.zeros_like(p) for p in params])
    for p, g, m in zip(params, gs, momenta):
        c = 0.9 * m + (1 - 0.9) * g
        p -= lr * (torch.sign(c) + DECAY * p)
        m.copy_(0.99 * m + (1 - 0.99) * g)


def run(step):
    params, state, after = [p.clone() for p in starts], {}, []
    with torch.no_grad():
        for gs, lr in zip(grads, rates):
            step(params, gs, lr, state)
            after.append([p.flatten().tolist() for p in params])
    return after


flat = lambda tensors: [[round(x, 9) for x in t.flatten().tolist()] for t in tensors]
golden = {
    "shapes": SHAPES, "weight_decay": DECAY, "rates": rates, "start": flat(starts), "grads": [flat(g) for g in grads],
    "Adafactor": run(adafactor), "Lion": run(lion),
}
pathlib.Path(__file__).with_suffix(".json").write_text(json.dumps(golden, separators=(",", ":")).replace("],[[", "],\n[["))
