#!/usr/bin/env bash
# Both programs trained to the end on the processor, on SwiftShader in f32 and on lavapipe in f16: the training loss of each epoch, side by side.
#
#   docs/software-devices.sh [detector] [chats]
#
# Nothing is installed or downloaded; a device without its ICD file is left out with a line.
#
#   BELLOWS_SWIFTSHADER  the ICD file of SwiftShader (.ci/swiftshader prints one)
#   BELLOWS_LAVAPIPE     that of lavapipe (.ci/lavapipe prints one)
#   EPOCHS               2 unless set
#   MORE                 more flags of every run of the detector: MORE="--fraction 0.1" tries it out
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${CARGO_TARGET_DIR:-target}/release epochs=${EPOCHS:-2}
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT

# run NAME ICD COMMAND...: a run of its own, its seconds and how it ended.
run() {
  local name=$1 icd=$2 start=$SECONDS
  shift 2
  if VK_DRIVER_FILES=$icd "$@" --project "$runs" --name "$name" > "$runs/$name.log" 2>&1; then
    echo "$name: $((SECONDS - start)) s"
  else
    echo "$name: failed with $?" && tail -n 20 "$runs/$name.log" && return 1
  fi
}

# The sum of the training losses of each epoch, a run to a row, and how far it is from the first row.
table() {
  python3 - "$runs" "$epochs" "$@" <<'END'
import csv
import pathlib
import sys

folder, epochs, names = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
print(f"\n| run | {' | '.join(f'epoch {i + 1}' for i in range(epochs))} | furthest from the first row |")
print("| --- |" + " --- |" * (epochs + 1))
first = None
for name in names:
    with open(folder / name / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    losses = [sum(float(v) for k, v in row.items() if k.startswith("train/") and k.endswith("loss")) for row in rows]
    first = first or losses
    far = max(abs(a - b) / b for a, b in zip(losses, first))
    falls = "" if losses[-1] < losses[0] else ", DOES NOT FALL"
    print(f"| {name} | {' | '.join(f'{loss:.4f}' for loss in losses)} | {100 * far:.2f} %{falls} |")
END
}

# three NAME FLAGS_OF_DEVICES FLAGS_OF_F16 COMMAND...: the runs that can be had, and their table.
three() {
  local name=$1 names=("$1-cpu") on=() half=()
  read -ra on <<< "$2" && read -ra half <<< "$3"
  shift 3
  run "$name-cpu" "" "$@" --device cpu
  if [ -n "${BELLOWS_SWIFTSHADER:-}" ]; then
    run "$name-swiftshader-f32" "$BELLOWS_SWIFTSHADER" "$@" --device vulkan:0 "${on[@]}"
    names+=("$name-swiftshader-f32")
  else
    echo "skipped: BELLOWS_SWIFTSHADER is not set"
  fi
  if [ -n "${BELLOWS_LAVAPIPE:-}" ]; then
    run "$name-lavapipe-f16" "$BELLOWS_LAVAPIPE" "$@" --device vulkan:0 "${on[@]}" "${half[@]}"
    names+=("$name-lavapipe-f16")
  else
    echo "skipped: BELLOWS_LAVAPIPE is not set"
  fi
  table "${names[@]}"
}

detector() {
  # shellcheck disable=SC2086 # words
  three detector "--conv gemm" "--precision f16" \
    "$bin/yolo-train" --data datasets/thermal-sample.yaml --imgsz 96 --epochs "$epochs" --plots false ${MORE:-}
}

chats() {
  three chats "--products own" "--precision fp16" "$bin/llm-finetune" --config tiny --epochs "$epochs" --save-merged false
}

[ $# -gt 0 ] || set -- detector chats
for section in "$@"; do
  case $section in
    detector | chats) ;;
    *) echo "$0: no section is called $section" >&2; exit 2 ;;
  esac
done
cargo build --release --workspace --bins
for section in "$@"; do
  echo "== $section ($(date +%F\ %H:%M))"
  "$section"
done
