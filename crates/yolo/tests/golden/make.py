"""Writes golden.safetensors: what Ultralytics' YOLOv8n computes on cases built from formulas (see ../parity.rs).

Needs torch, ultralytics 8.3.227, safetensors, numpy. Weights, images and labels come from a hash that the Rust test
repeats, so only results are stored: losses, assignments, and per tensor its norm and eight projections on random signs.
"""
import sys
import numpy as np
import torch
from safetensors.torch import save_file
from ultralytics.nn.tasks import DetectionModel
from ultralytics.utils import DEFAULT_CFG

NC, LR, STEPS = 4, 0.0002, 10
U = np.uint64


def mix(x):
    with np.errstate(over="ignore"):
        x = x + U(0x9E3779B97F4A7C15)
        x = (x ^ (x >> U(30))) * U(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> U(27))) * U(0x94D049BB133111EB)
        return x ^ (x >> U(31))


def stream(name):
    h = np.array([0xCBF29CE484222325], dtype=np.uint64)
    with np.errstate(over="ignore"):
        for b in name.encode():
            h = (h ^ U(b)) * U(0x100000001B3)
    return h


def draws(name, n):
    with np.errstate(over="ignore"):
        return mix(stream(name) + np.arange(n, dtype=np.uint64))


def uniform(name, shape, low, high):
    n = int(np.prod(shape))
    unit = (draws(name, n) >> U(40)).astype(np.float32) / np.float32(1 << 24)
    return torch.from_numpy(unit * np.float32(high - low) + np.float32(low)).reshape(shape)


def sketch(name, t):
    t = t.detach().double().flatten().numpy()
    bits = draws(name, t.size)
    signs = [1.0 - 2.0 * ((bits >> U(k)) & U(1)).astype(np.float64) for k in range(8)]
    return torch.tensor([np.sqrt((t * t).sum())] + [float((t * s).sum()) for s in signs], dtype=torch.float64)


def weights(shapes):
    out = {}
    for k, v in shapes.items():
        if k.endswith("num_batches_tracked") or "dfl" in k:
            out[k] = v
        elif v.ndim == 4:
            bound = float(np.sqrt(np.float32(3.0) / np.float32(v.shape[1] * v.shape[2] * v.shape[3])))
            out[k] = uniform(k, v.shape, -bound, bound)
        elif k.endswith(("bn.weight", "running_var")):
            out[k] = uniform(k, v.shape, 0.5, 1.5)
        elif "cv3" in k and k.endswith("2.bias"):
            out[k] = uniform(k, v.shape, -4.0, -1.0)
        else:
            out[k] = uniform(k, v.shape, -0.5, 0.5)
    return out


def labels(case, rows):
    """rows: list of (image, class, x, y, w, h)"""
    r = torch.tensor(rows, dtype=torch.float32).reshape(-1, 6)
    return dict(batch_idx=r[:, 0], cls=r[:, 1].view(-1, 1), bboxes=r[:, 2:])


def random_rows(name, images, each):
    u = uniform(name, (images * each, 5), 0.0, 1.0)
    rows = []
    for i in range(images * each):
        w, h = u[i, 0] * 0.5 + 0.05, u[i, 1] * 0.5 + 0.05
        x, y = w / 2 + u[i, 2] * (1 - w), h / 2 + u[i, 3] * (1 - h)
        rows.append((i // each, int(u[i, 4] * NC), float(x), float(y), float(w), float(h)))
    return rows


CASES = {
    # name: batch, height, width, rows
    "plain": (2, 96, 96, random_rows("plain.labels", 2, 6)),
    # image 0: no object. Image 1: a box no anchor centre falls in, one that holds fewer than ten, an all-zero box
    # (padding), two nearly equal boxes of different class, one that leaves the image.
    "edges": (3, 64, 96, [
        (1, 1, 0.04, 0.05, 0.01, 0.01), (1, 0, 0.30, 0.30, 0.15, 0.2), (1, 3, 0.0, 0.0, 0.0, 0.0),
        (1, 2, 0.60, 0.50, 0.50, 0.60), (1, 3, 0.61, 0.51, 0.50, 0.60), (1, 0, 0.95, 0.90, 0.30, 0.40),
        (2, 1, 0.50, 0.50, 1.00, 1.00)]),
    "empty": (2, 64, 64, []),
}

torch.set_num_threads(1)
model = DetectionModel("yolov8n.yaml", nc=NC, verbose=False)
model.args = DEFAULT_CFG
start = weights(model.state_dict())
crit = model.init_criterion()
model.criterion = crit
seen = {}
assign = crit.assigner.forward


def spy(*args, **kw):
    r = assign(*args, **kw)
    seen.update(dict(boxes=r[1].clone(), scores=r[2].clone(), fg=r[3].to(torch.uint8), gt=r[4].to(torch.int32)))
    return r


crit.assigner.forward = spy
out = {}
for case, (b, h, w, rows) in CASES.items():
    img = uniform(f"{case}.image", (b, 3, h, w), 0.0, 1.0)
    batch = dict(labels(case, rows), img=img)
    model.load_state_dict(start)
    model.eval()
    with torch.no_grad():
        out[f"{case}.eval"] = model(img)[0]
    model.train()
    model.zero_grad()
    loss, items = model.loss(batch, model.forward(img))
    total = loss.sum()
    total.backward()
    out[f"{case}.items"] = items
    out[f"{case}.total"] = total.detach().view(1)
    out[f"{case}.fg"] = seen["fg"]
    out[f"{case}.gt"] = torch.where(seen["fg"] > 0, seen["gt"], -1).to(torch.int8)
    out[f"{case}.score"] = seen["scores"].sum(-1)
    for k, v in model.named_parameters():
        if v.grad is not None:
            out[f"{case}.grad.{k}"] = sketch(k, v.grad)

b, h, w, rows = CASES["plain"]
batch = dict(labels("plain", rows), img=uniform("plain.image", (b, 3, h, w), 0.0, 1.0))
model.load_state_dict(start)
decay = [v for v in model.parameters() if v.requires_grad and v.ndim == 4]
rest = [v for v in model.parameters() if v.requires_grad and v.ndim != 4]
groups = [dict(params=decay, weight_decay=5e-4), dict(params=rest, weight_decay=0.0)]
opt = torch.optim.SGD(groups, lr=LR, momentum=0.937, nesterov=True)
opt.zero_grad()
trace = []
for _ in range(STEPS):
    loss, items = model(batch)
    loss.sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    opt.step()
    opt.zero_grad()
    trace.append(items.detach())
out["steps.items"] = torch.stack(trace)
for k, v in model.state_dict().items():
    if not k.endswith("num_batches_tracked") and "dfl" not in k:
        out[f"steps.final.{k}"] = sketch(k, v)

# One tensor of sketches per group keeps the file's header small.
packed = {}
for prefix in [f"{c}.grad." for c in CASES] + ["steps.final."]:
    keys = sorted(k for k in out if k.startswith(prefix))
    packed[prefix + "sketch"] = torch.stack([out.pop(k) for k in keys]).float()
out.update(packed)
save_file({k: v.contiguous() for k, v in out.items()}, sys.argv[1] if len(sys.argv) > 1 else "golden.safetensors")
for case in CASES:
    print(case, out[f"{case}.items"].tolist(), "foreground", int(out[f"{case}.fg"].sum()))
print(out["steps.items"])

# Expected places in src/loss/topk.rs.
for positive in (7, 2, 1):
    for n in (100, 189, 639, 640, 2100, 8400):
        h = (np.arange(n, dtype=np.uint64) * U(2654435761) % U(1 << 32)) >> U(24)
        first = np.arange(n) < (n if positive == 7 else 600)
        v = torch.from_numpy(np.where((h < positive) & first, (h + U(1)).astype(np.float32) / 8, np.float32(0)))
        print(f"({positive}, {n}, {sorted(torch.topk(v, 10).indices.tolist())}),")
