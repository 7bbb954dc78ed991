"""Writes detection_sets.csv: what pycocotools says about 200 random detection sets.

The sets themselves are not stored: both this script and metrics_golden.rs draw them from the same integer generator.
Run:  python detection_sets.py > detection_sets.csv      (needs numpy and pycocotools)

With --peer it also asks an installed `ultralytics` for mAP50, mAP75, mAP50-95, P and R of the same sets (8.3.227 wrote the committed file).
"""

import contextlib
import io
import sys

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

SIDE = 640  # px; every coordinate is a multiple of 1/4 px, exact in f32


class Lcg:
    def __init__(self, seed):
        self.state = seed * 2 + 1

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n


def any_box(rng):
    w, h = 16 + rng.below(1000), 16 + rng.below(1000)  # quarter pixels
    return [rng.below(4 * SIDE - w), rng.below(4 * SIDE - h), w, h]


def cell_box(rng, cell):
    """A box inside one cell of a 4x4 grid: boxes of different cells never overlap."""
    w, h = 16 + rng.below(600), 16 + rng.below(600)
    return [cell % 4 * SIDE + rng.below(SIDE - w), cell // 4 * SIDE + rng.below(SIDE - h), w, h]


def draw(seed):
    """(nc, [(truths [(class, xywh)], detections [(class, xywh, score)])]), xywh from the corner, in px. Even seeds: disjoint truths."""
    rng = Lcg(seed)
    nc = 1 + rng.below(4)
    images = []
    for image in range(2 + rng.below(6)):
        truths, detections = [], []
        for k in range(rng.below(9)):
            box = cell_box(rng, 2 * k) if seed % 2 == 0 else any_box(rng)
            truths.append((rng.below(nc), box))
        for cls, box in truths:
            for _ in range([0, 1, 1, 1, 2, 3][rng.below(6)]):
                wobble = 1 + rng.below(40)
                moved = [max(1, v + (rng.below(2 * wobble + 1) - wobble) * box[2 + i % 2] // 100) for i, v in enumerate(box)]
                detections.append((cls if rng.below(8) else rng.below(nc), moved))
        for _ in range((150 if seed % 20 == 3 else 0) + rng.below(6) + (image == 0)):
            detections.append((rng.below(nc), any_box(rng)))
        truths = [(c, [v / 4 for v in b]) for c, b in truths]
        images.append((truths, [(c, [v / 4 for v in b], rng.below(2**24) / 2**24) for c, b in detections]))
    return nc, images


def coco(nc, images):
    gt, ids = COCO(), iter(range(1, 10**9))
    gt.dataset = {
        "images": [{"id": i} for i in range(len(images))],
        "categories": [{"id": c} for c in range(nc)],
        "annotations": [
            {"id": next(ids), "image_id": i, "category_id": c, "bbox": b, "area": b[2] * b[3], "iscrowd": 0}
            for i, (truths, _) in enumerate(images)
            for c, b in truths
        ],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        gt.createIndex()
        found = [{"image_id": i, "category_id": c, "bbox": list(b), "score": s} for i, (_, d) in enumerate(images) for c, b, s in d]
        run = COCOeval(gt, gt.loadRes(found), "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    return list(run.stats[:6])  # mAP50-95, mAP50, mAP75, small, medium, large


def peer(nc, images):
    from types import SimpleNamespace

    import torch
    from ultralytics.engine.validator import BaseValidator
    from ultralytics.utils.metrics import ap_per_class, box_iou

    this = SimpleNamespace(iouv=torch.linspace(0.5, 0.95, 10))
    corners = lambda rows: torch.tensor([[x, y, x + w, y + h] for _, (x, y, w, h), *_ in rows]).reshape(-1, 4)
    classes = lambda rows: torch.tensor([row[0] for row in rows])
    tp, conf, pred, true = [], [], [], []
    for truths, detections in images:
        detections = sorted(detections, key=lambda d: -d[2])
        hits = np.zeros((len(detections), 10), bool)
        if truths and detections:
            hits = BaseValidator.match_predictions(this, classes(detections), classes(truths), box_iou(corners(truths), corners(detections))).numpy()
        tp.append(hits)
        conf += [d[2] for d in detections]
        pred += [d[0] for d in detections]
        true += [t[0] for t in truths]
    if not true:
        return [0.0] * 5
    _, _, p, r, _, ap, *_ = ap_per_class(np.concatenate(tp), np.array(conf), np.array(pred), np.array(true))
    return [ap[:, 0].mean(), ap[:, 5].mean(), ap.mean(), p.mean(), r.mean()]


if __name__ == "__main__":
    with_peer = "--peer" in sys.argv
    print("seed,coco_map50_95,coco_map50,coco_map75,coco_small,coco_medium,coco_large" + ",map50,map75,map50_95,p,r" * with_peer)
    for seed in range(200):
        sets = draw(seed)
        print(",".join([str(seed)] + [f"{v:.7f}" for v in coco(*sets) + (peer(*sets) if with_peer else [])]))
