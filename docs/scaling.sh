#!/usr/bin/env bash
# What two ranks of one thread reach on one machine, and what its memory allows. On a quiet machine of two cores:
#   cargo build --release -p yolo-train -p llm-finetune -p bellows-ranks --examples --bins
#   docs/scaling.sh target/release
#   docs/scaling.sh target/release supervise     seconds of a step with --supervise and without, in turn (three minutes)
# "beside" are two processes that know nothing of each other, one on each core: what they make together is what cores and memory allow two ranks. Efficiency is the
# ranks' throughput over theirs; bandwidth says what of the loss from one to two is memory's.
set -euo pipefail
bin="$1"
rounds=${ROUNDS:-3}
out=$(mktemp -d)
trap 'rm -r "$out"' EXIT

# Seconds of a step with and without --supervise. `results.csv` has the time at the end of each epoch: what is between two ends is steps, signs of life and what the
# supervisor takes from the cores. The first epoch is left out, in which the program warms up, and the last one, which is judged.
supervise() {
  for ((round = 0; round < rounds; round++)); do
    for how in false true; do
      "$bin/yolo-train" --data "$(dirname "$0")/../datasets/thermal-sample.yaml" --epochs 6 --close-mosaic 0 --val false --plots false --project "$out/runs" \
        --name "$how-$round" --supervise "$how" > "$out/log" 2>&1 || { cat "$out/log"; exit 1; }
    done
  done
  python3 - "$out/runs" "$rounds" <<'PY'
import csv, statistics, sys
runs, rounds = sys.argv[1], int(sys.argv[2])
STEPS = 256 / 8  # of an epoch
def seconds(how, i):
    ends = [float(row["time"]) for row in csv.DictReader(open(f"{runs}/{how}-{i}/results.csv"))]
    return statistics.median(b - a for a, b in zip(ends, ends[1:-1])) / STEPS
off, on = ([seconds(how, i) for i in range(rounds)] for how in ("false", "true"))
print("seconds of a step alone", *(f"{s:.4f}" for s in off), "with --supervise", *(f"{s:.4f}" for s in on),
      f"medians {statistics.median(off):.4f} {statistics.median(on):.4f}: {statistics.median(on) / statistics.median(off) - 1:+.2%}")
PY
}

if [ "${2:-}" = supervise ]; then
  supervise
  exit
fi

# two NAME COMMAND...: the command on each core, at the same time.
two() {
  local name=$1 pids=()
  shift
  for i in 0 1; do
    taskset -c "$i" "$@" > "$out/$name$i" &
    pids+=($!)
  done
  # A bare `wait` would not say that one has failed.
  for pid in "${pids[@]}"; do wait "$pid"; done
}

# As ranks: the variables differ.
ranks() {
  local name=$1 port=$((20000 + RANDOM % 12000)) pids=()
  shift
  for i in 0 1; do
    RANK=$i WORLD_SIZE=2 LOCAL_RANK=$i LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port taskset -c "$i" "$@" > "$out/$name$i" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid"; done
}

echo "GB/s of one core, of each of two: $("$bin/examples/bandwidth" 5)"
two gb "$bin/examples/bandwidth" 5
echo "  $(cat "$out/gb0") $(cat "$out/gb1")"

# measure KEY ONE TWO BOTH: the command of one thread, of two with the same batch, of two with that of both.
measure() {
  local key=$1 one=$2 same=$3 both=$4
  for ((round = 0; round < rounds; round++)); do
    $one > "$out/one"; $same > "$out/same"; $both > "$out/both"
    # shellcheck disable=SC2086
    two beside $one
    # shellcheck disable=SC2086
    ranks ranks $one
    python3 - "$key" "$out" <<'PY'
import json, sys
key, out = sys.argv[1:]
get = lambda name: json.load(open(f"{out}/{name}"))
one, same, both = (get(n)[key] for n in ("one", "same", "both"))
beside = sum(get(f"beside{i}")[key] for i in (0, 1))
alone = max(get(f"beside{i}")["step_s"] for i in (0, 1))
# Rank 0 speaks for both, which wait for each other in every step.
ranks, step = 2 * get("ranks0")[key], get("ranks0")["step_s"]
print(f"{key}: 1 thread {one:.2f}, 2 threads {same:.2f}, 2 threads with both batches {both:.2f}, beside {beside:.2f}, ranks {ranks:.2f}: "
      f"{ranks / beside:.1%} of beside, {ranks / both:.1%} of 2 threads; exposed {step - alone:.4f} s of {step:.4f}")
PY
  done
}

yolo="$bin/yolo-train benchmark --json"
measure train_images_per_s "$yolo --threads 1 --batch 4" "$yolo --threads 2 --batch 4" "$yolo --threads 2 --batch 8"
lora="$bin/llm-finetune benchmark --size 0.5B --seq 512 --rank 16 --json"
measure tokens_per_s "$lora --threads 1 --batch 1" "$lora --threads 2 --batch 1" "$lora --threads 2 --batch 2"
