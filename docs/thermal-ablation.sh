#!/usr/bin/env bash
# What of docs/thermal.md helps: one change at a time against none, three seeds each, means with intervals.
#
#   docs/thermal-ablation.sh frames HIT_UAV.yaml WEIGHTS   real single frames: 320 px, 10 epochs from WEIGHTS
#   docs/thermal-ablation.sh clips  [WEIGHTS]              generated clips of two cameras, 12 months, trained on 8: the score over months
#
# Nothing is installed or downloaded. Runs lie in RUNS (runs/ablation unless set) and are not made again; the table at the end is made of all that
# are there. SEEDS (0 1 2) and EPOCHS (10) can be set. Three seeds say little: an interval that holds 0 is no result.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${CARGO_TARGET_DIR:-target}/release/yolo-train
runs=${RUNS:-runs/ablation} seeds=${SEEDS:-0 1 2} epochs=${EPOCHS:-10}
kind=${1:?frames or clips}

# run NAME FLAGS...: every seed, unless it is there.
run() {
  local name=$1 seed
  shift
  for seed in $seeds; do
    [ -e "$runs/$kind/$name-$seed/val.csv" ] && continue
    "$program" --data "$data" --epochs "$epochs" --seed "$seed" --plots false --project "$runs/$kind" --name "$name-$seed" --exist-ok "${common[@]}" "$@"
  done
}

sensors() {
  run gain --thermal-gain 0.3
  run offset --thermal-offset 0.1
  run gamma --thermal-gamma 0.3
  run invert --thermal-invert 0.5
  run drift --thermal-drift 0.05
  run pattern --thermal-pattern 0.02
  run blur --thermal-blur 1
  run dead --thermal-dead 0.001
}

case $kind in
  frames)
    data=${2:?the data.yaml of HIT-UAV} common=(--imgsz 320 --batch 8 --model "${3:?weights to start from}")
    run none
    run no-hsv --hsv-v 0
    run rect --rect
    run multi-scale --multi-scale
    run cutmix --cutmix 0.5
    run p2 --model yolov8n-p2 --pretrained "$3"
    run tiles --tile 224 --imgsz 320
    run classes --sampler classes=balanced
    sensors
    ;;
  clips)
    data=datasets/thermal-clips.yaml common=(--imgsz 320 --batch 8 --group-by month ${2:+--model "$2"})
    run none
    run frames3 --frames 3
    run background --background 5
    run frames3-background --frames 3 --background 5
    run sampler --sampler clips=balanced,empty=0.1
    run sampler-half --sampler clips=balanced,empty=0.1,epoch=0.5 --epochs $((2 * epochs))
    sensors
    ;;
  *)
    echo "frames or clips, and not $kind" >&2
    exit 2
    ;;
esac

python3 - "$runs/$kind" <<'PYTHON'
"""Mean of the last validation over seeds, and the difference to `none` seed by seed with the 95 % interval of Student's t."""
import csv, pathlib, statistics, sys

T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
values = {}
for run in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    name, _, seed = run.name.rpartition("-")
    if not (run / "val.csv").exists():
        continue
    row = next(csv.DictReader(open(run / "val.csv")))
    score = {"mAP50": float(row["mAP50"]), "mAP50-95": float(row["mAP50-95"])}
    groups = run / "results.csv"
    last = list(csv.DictReader(open(groups)))[-1]
    if "metrics/score(month)" in last:
        score["score"], score["CoV"] = float(last["metrics/score(month)"]), float(last["metrics/CoV(month)"])
    values.setdefault(name, {})[seed] = score
columns = sorted({column for seeds in values.values() for score in seeds.values() for column in score})
print("| change | seeds |", " | ".join(f"{c} | difference" for c in columns), "|")
print("| --- | --- |", " | ".join("--- | ---" for _ in columns), "|")
for name, seeds in values.items():
    cells = []
    for column in columns:
        mean = statistics.fmean(s[column] for s in seeds.values())
        pairs = [s[column] - values["none"][k][column] for k, s in seeds.items() if k in values.get("none", {})]
        if name == "none" or len(pairs) < 2:
            cells.append(f"{mean:.4f} | ")
            continue
        half = T.get(len(pairs) - 1, 2.0) * statistics.stdev(pairs) / len(pairs) ** 0.5
        cells.append(f"{mean:.4f} | {statistics.fmean(pairs):+.4f} ± {half:.4f}")
    print(f"| {name} | {len(seeds)} |", " | ".join(cells), "|")
PYTHON
