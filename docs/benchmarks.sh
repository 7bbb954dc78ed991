#!/usr/bin/env bash
# Reproduces the tables of docs/benchmarks.md: all sections, or those that are named.
#
#   docs/benchmarks.sh [step] [onnx] [lora] [bf16] [threads] [epoch] [layers] [packing] [memory] [launches] [roofline] [plan] [sample] [data]
#
# Nothing is installed or downloaded. Ours is built first; a peer comes from a variable, and its part is skipped with a line without it:
#
#   TORCH_PYTHON         Python with torch and Ultralytics: step, bf16, layers
#   PEFT_PYTHON          Python with transformers and PEFT: lora, bf16
#   ONNX_PYTHON          Python with onnxruntime and OpenVINO, and ONNX_MODEL the file (docs/onnx_infer.py says how it is made): onnx
#   YOLO, DATA           the program `yolo` of Ultralytics and the data.yaml of HIT-UAV (Ultralytics writes caches beside its labels): epoch, data
#   BELLOWS_SWIFTSHADER  the ICD file of SwiftShader (.ci/swiftshader prints one): memory, launches, roofline; BELLOWS_LAVAPIPE that of lavapipe: roofline
#   PEERS                folder of yolo_step.py and lora_step.py, unless it is ../shared/peers
#   THREADS, ROUNDS      2 and 3 unless set
set -euo pipefail
cd "$(dirname "$0")/.."
peers=${PEERS:-../shared/peers} threads=${THREADS:-2} rounds=${ROUNDS:-3}
bin=${CARGO_TARGET_DIR:-target}/release
shape="--size 0.5B --batch 1 --seq 512 --rank 16"

# needs VARIABLE...: whether all are set.
needs() {
  local name
  for name in "$@"; do
    if [ -z "${!name:-}" ]; then
      echo "skipped: $name is not set (see the head of $0)"
      return 1
    fi
  done
}

compare() { python3 docs/compare.py --rounds "$rounds" "$@"; }

step() {
  needs TORCH_PYTHON || return 0
  local batch
  for batch in 4 16; do
    compare "$bin/yolo-train benchmark --batch $batch --threads $threads --json" \
      "$TORCH_PYTHON $peers/yolo_step.py --batch $batch --threads $threads"
  done
}

onnx() {
  needs ONNX_PYTHON ONNX_MODEL || return 0
  local runtime
  for runtime in onnxruntime openvino; do
    compare "$bin/yolo-train benchmark --batch 1 --threads $threads --json" \
      "$ONNX_PYTHON docs/onnx_infer.py $ONNX_MODEL --threads $threads --runtime $runtime"
  done
  compare "$bin/yolo-train benchmark --batch 1 --threads $threads --precision bf16 --json" \
    "$ONNX_PYTHON docs/onnx_infer.py $ONNX_MODEL --threads $threads --runtime openvino --precision bf16"
}

# The peer takes as many threads as it finds.
lora() {
  needs PEFT_PYTHON || return 0
  compare "$bin/llm-finetune benchmark $shape --threads $threads --json" \
    "OMP_NUM_THREADS=$threads $PEFT_PYTHON $peers/lora_step.py --dtype f32 $shape"
}

# The peer's detector under autocast (docs/yolo_autocast.py), and in f32, which is faster where the processor has no products of bf16. There PEFT
# takes minutes a step.
bf16() {
  if needs TORCH_PYTHON; then
    local peer
    for peer in "docs/yolo_autocast.py $peers/yolo_step.py" "$peers/yolo_step.py"; do
      echo "beside $peer"
      compare "$bin/yolo-train benchmark --batch 4 --threads $threads --precision bf16 --json" \
        "$TORCH_PYTHON $peer --batch 4 --threads $threads"
    done
  fi
  needs PEFT_PYTHON || return 0
  compare "$bin/llm-finetune benchmark $shape --threads $threads --precision bf16 --json" \
    "OMP_NUM_THREADS=$threads $PEFT_PYTHON $peers/lora_step.py --dtype bf16 $shape"
}

# One, two and, on a machine of fewer cores, more than it has; ours alone.
threads() {
  local round count
  for round in $(seq "$rounds"); do
    for count in 1 2 8; do
      "$bin/yolo-train" benchmark --batch 4 --threads "$count" --json
      # shellcheck disable=SC2086
      "$bin/llm-finetune" benchmark $shape --threads "$count" --json
    done
  done
}

# In turn, so many rounds. The peer wants an absolute path in its data.yaml.
epoch() {
  needs DATA || return 0
  local runs round
  runs=$(mktemp -d)
  sed "s|^path:.*|path: $(dirname "$(realpath "$DATA")")|" "$DATA" > "$runs/peer.yaml"
  for round in $(seq "$rounds"); do
    time "$bin/yolo-train" --data "$DATA" --imgsz 320 --epochs 1 --batch 16 --workers 8 --device cpu --profile --project "$runs" --name "ours$round"
    if needs YOLO; then
      time "$YOLO" detect train model=yolov8n.yaml data="$runs/peer.yaml" imgsz=320 batch=16 epochs=1 pretrained=False workers=8 \
        device=cpu project="$runs" name="peer$round"
    fi
  done
  # The second column is the time of the epoch.
  tail -n 1 "$runs"/*/results.csv
  rm -r "$runs"
}

layers() {
  if needs TORCH_PYTHON; then
    "$TORCH_PYTHON" docs/layers.py "$bin/yolo-train" --batch 4 --rounds "$rounds" --threads "$threads"
  else
    "$bin/yolo-train" benchmark --batch 4 --steps 7 --threads "$threads" --device cpu
  fi
}

# What packing a frozen weight costs of the products of a LoRA step, and what a weight that is packed once would save (decision 13).
packing() {
  RAYON_NUM_THREADS=$threads cargo test --release --workspace --lib -- --ignored --nocapture packing_figures 2>&1 \
    | sed -n 's/^.*> //p'
}

# BELLOWS_CUBE_DIRECT adds Burn's own convolutions, the base of the percentages.
memory() {
  needs BELLOWS_SWIFTSHADER || return 0
  VK_DRIVER_FILES=$BELLOWS_SWIFTSHADER BELLOWS_CUBE_DIRECT=1 \
    cargo test --release --workspace --test cube -- --ignored --nocapture memory_figures 2>&1 | grep 'MB:'
}

# What the tests count, and how far they find the device from the processor.
launches() {
  needs BELLOWS_SWIFTSHADER || return 0
  cargo test --release --workspace --test cube -- --nocapture 2>&1 | grep '^> '
}

# Ratios of two versions of a convolution, measured and as the count predicts them, on each device.
roofline() {
  local device
  for device in BELLOWS_SWIFTSHADER BELLOWS_LAVAPIPE; do
    needs $device || continue
    VK_DRIVER_FILES=${!device} cargo test --release --workspace --test cube -- --ignored --nocapture --exact roofline::roofline_figures 2>&1 \
      | sed -n 's/^.*> //p'
  done
}

# What was planned beside what was held (docs/memory.md).
plan() { python3 docs/planned.py "$bin"; }

sample() {
  local runs
  runs=$(mktemp -d)
  time "$bin/yolo-train" --data datasets/thermal-sample.yaml --device cpu --project "$runs"
  rm -r "$runs"
}

data() {
  needs DATA || return 0
  BELLOWS_HIT_UAV=$(realpath "$DATA") cargo test --release --workspace --test yolo hit_uav:: -- --nocapture 2>&1 | grep -E '^(scan|from)'
}

[ $# -gt 0 ] || set -- step onnx lora bf16 threads epoch layers packing memory launches roofline plan sample data
for section in "$@"; do
  case $section in
    step | onnx | lora | bf16 | threads | epoch | layers | packing | memory | launches | roofline | plan | sample | data) ;;
    *) echo "$0: no section is called $section" >&2; exit 2 ;;
  esac
done
cargo build --release --workspace --bins
for section in "$@"; do
  echo "== $section ($(date +%F\ %H:%M))"
  "$section"
done
