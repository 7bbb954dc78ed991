#!/usr/bin/env bash
# What ranks take over links of so many Mbit/s: network namespaces on this machine, joined by a bridge, each with a token bucket on what it sends (tc tbf). On a quiet
# machine of two cores, as root, with iproute2:
#   cargo build --release -p yolo-train -p bellows-ranks --bins --examples
#   docs/cluster.sh all target/release     measures sums and steps into docs/links.csv and docs/steps.csv, fits the model of step time, checks it and draws docs/cluster.png
#   docs/cluster.sh sums target/release    Mbit/s, ranks, bytes of a number on the wire, numbers, seconds of a sum
#   docs/cluster.sh steps target/release   whole steps of YOLOv8n, batch 4, on two ranks of one thread: Mbit/s (0: no limit), ranks, seconds of forward, backward, and
#                                          update with what of the exchange is left for it, and the buckets: bytes:share of the pass that is left when they are there
#   docs/cluster.sh kill target/release    `mpirun --hostfile` over two of the namespaces, rank 1 killed in mid-epoch, the run resumed with 2, 1 and 4 (Open MPI)
set -euo pipefail
export LC_ALL=C
case ${1:-} in all | sums | steps | kill) ;; *) set -- ;; esac
[ $# -eq 2 ] || { echo "$0 all|sums|steps|kill FOLDER_OF_THE_PROGRAMS" >&2; exit 2; }
what=$1
bin=$(realpath "$2")
docs=$(realpath "$(dirname "$0")")
times=${TIMES:-5}
name="bl$$"
work=$(mktemp -d)
clean() {
  for i in 0 1 2 3; do ip netns del "$name-$i" 2>/dev/null || true; done
  ip link del "$name" 2>/dev/null || true
  rm -rf "$work"
}
trap clean EXIT
ip link add "$name" type bridge
ip link set "$name" up
for i in 0 1 2 3; do
  ip netns add "$name-$i"
  ip link add "$name-$i" type veth peer name eth0 netns "$name-$i"
  ip link set "$name-$i" master "$name" up
  ip -n "$name-$i" addr add "10.99.0.$((i + 1))/24" dev eth0
  ip -n "$name-$i" link set eth0 up
  ip -n "$name-$i" link set lo up
done
port=29600
# A burst of two milliseconds, at least what a packet of a large segment takes.
shape() {
  for i in 0 1 2 3; do
    ip netns exec "$name-$i" tc qdisc replace dev eth0 root tbf rate "${1}mbit" burst "$(($1 * 250 > 131072 ? $1 * 250 : 131072))" latency 100ms
  done
}

sums() {
  for mbit in 100 250 1000; do
    shape "$mbit"
    for ranks in 2 4; do
      # A seventh of YOLOv8n, YOLOv8n, LoRA of 7.5 and of 30 million numbers.
      for numbers in 430000 3011628 7500000 30000000; do
        if [ $((numbers / mbit)) -gt 100000 ]; then continue; fi
        for wire in f32 bf16; do
          port=$((port + 1))
          others=()
          for ((i = ranks - 1; i > 0; i--)); do
            ip netns exec "$name-$i" "$bin/examples/exchange" "$i" "$ranks" "10.99.0.1:$port" "$numbers" "$wire" "$times" & others+=($!)
          done
          echo "$mbit,$(ip netns exec "$name-0" "$bin/examples/exchange" 0 "$ranks" "10.99.0.1:$port" "$numbers" "$wire" "$times")"
          for other in "${others[@]}"; do wait "$other"; done
        done
      done
    done
  done
}

# step I: a rank's.
step() {
  RANK=$1 WORLD_SIZE=2 LOCAL_RANK=$1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.99.0.1 MASTER_PORT=$port BELLOWS_LOG=bellows_learner=trace NO_COLOR=1 \
    ip netns exec "$name-$1" taskset -c "$1" "$bin/yolo-train" benchmark --json --threads 1 --batch 4 --steps 15 2> "$work/log$1"
}

steps() {
  # Without a limit first: the namespaces have none yet.
  for mbit in 0 100 250 1000; do
    if [ "$mbit" -gt 0 ]; then shape "$mbit"; fi
    port=$((port + 1))
    step 1 > /dev/null & other=$!
    step 0 > "$work/report"
    wait "$other"
    python3 - "$mbit" "$work" <<'PY'
import json, re, sys
mbit, work = sys.argv[1:]
report = json.load(open(f"{work}/report"))
# The last step's: the first one does not know the order yet.
buckets = re.findall(r"buckets ([0-9:. ]+)", open(f"{work}/log0").read())[-1].strip()
print(mbit, 2, report["forward_s"], report["backward_s"], report["update_s"], buckets, sep=",")
PY
  done
}

# launch PORT N WORDS...: mpirun starts N ranks by a hostfile of two machines, each of which is a namespace with a name of its own; `ip netns exec` is what ssh would be.
launch() {
  local port=$1 ranks=$2
  shift 2
  ip netns exec "$name-0" unshare -u sh -c 'hostname "$0" && exec "$@"' "$name-0" mpirun --allow-run-as-root --hostfile "$work/hosts" --map-by node --bind-to none \
    --mca plm_rsh_agent "$work/agent" -x MASTER_ADDR=10.99.0.1 -x MASTER_PORT="$port" -n "$ranks" "$bin/yolo-train" "$@" > "$work/out" 2>&1 < /dev/null
}

kill_a_rank() {
  printf '10.99.0.1 slots=2\n10.99.0.2 slots=2\n' > "$work/hosts"
  cat > "$work/agent" <<AGENT
#!/bin/sh
host=\$1; shift
i=\$((\${host##*.} - 1))
exec ip netns exec "$name-\$i" unshare -u sh -c "hostname $name-\$i; \$*"
AGENT
  chmod +x "$work/agent"
  launch "$port" 2 --data "$docs/../datasets/thermal-sample.yaml" --epochs 2 --plots false --checkpoint-minutes 0 --project "$work/runs" --name a & mpirun=$!
  local run="$work/runs/a" victim=
  # In the middle of the second of two epochs of 16 batches for two ranks.
  until [ "$(ls "$run/checkpoints" 2>/dev/null | tail -1)" \> step-000000021 ]; do
    kill -0 "$mpirun" 2>/dev/null || { cat "$work/out"; exit 1; }
    sleep 0.05
  done
  for pid in $(ip netns pids "$name-1"); do
    if [ "$(readlink "/proc/$pid/exe")" = "$bin/yolo-train" ]; then victim=$pid; fi
  done
  kill -9 "$victim"
  local killed=$EPOCHREALTIME code=0
  wait "$mpirun" || code=$?
  echo "kill -9 of rank 1: mpirun ended with code $code after $(python3 -c "print(round($EPOCHREALTIME - $killed, 2))") s, newest checkpoint $(ls "$run/checkpoints" | tail -1)"
  for i in 0 1; do
    for pid in $(ip netns pids "$name-$i"); do
      if [ "$(readlink "/proc/$pid/exe")" = "$bin/yolo-train" ]; then echo "rank $i is still there"; exit 1; fi
    done
  done
  for ranks in 2 1 4; do
    cp -r "$run" "$work/runs/with-$ranks"
    if [ "$ranks" = 1 ]; then
      "$bin/yolo-train" --resume "$work/runs/with-1" --ranks 1 > "$work/out" 2>&1 || { cat "$work/out"; exit 1; }
    else
      launch "$((port + ranks))" "$ranks" --resume "$work/runs/with-$ranks" || { cat "$work/out"; exit 1; }
    fi
    python3 - "$ranks" "$work/runs/with-$ranks/results.csv" <<'PY'
import csv, sys
rows = list(csv.DictReader(open(sys.argv[2])))
print(f"resumed with {sys.argv[1]}: {len(rows)} epochs,", ", ".join(f"{key} {value}" for key, value in rows[-1].items() if "mAP50" in key))
PY
  done
}

case $what in
  sums) sums ;;
  steps) steps ;;
  kill) kill_a_rank ;;
  all)
    steps > "$work/steps.csv"
    sums > "$work/links.csv"
    cp "$work/steps.csv" "$work/links.csv" "$docs"
    "$bin/examples/step_time" "$docs/links.csv" "$docs/cluster.png" "$docs/steps.csv"
    ;;
esac
