#!/usr/bin/env bash
# What ranks take over links of so many Mbit/s: network namespaces on this machine, joined by a bridge, each with a token bucket on what it sends (tc tbf). On a quiet
# machine of two cores, as root, with iproute2:
#   cargo build --release -p yolo-train -p llm-finetune -p bellows-ranks -p bellows-mpi --bins --examples
#   docs/cluster.sh all target/release       measures sums and steps into docs/links.csv, docs/steps.csv and docs/steps-lora.csv, fits the model of step time, checks it and
#                                            draws docs/cluster.png
#   docs/cluster.sh sums target/release      Mbit/s, ranks, bytes of a number on the wire, numbers, seconds of a sum
#   docs/cluster.sh sums-mpi target/release  the same over Open MPI, which one host of the namespaces starts on the others (built with --features bellows-mpi/mpi)
#   docs/cluster.sh steps target/release     whole steps of YOLOv8n, batch 4, on two ranks of one thread: Mbit/s (0: no limit), ranks, seconds of forward, backward, and
#                                            update with what of the exchange is left for it, and the buckets: bytes:share of the pass that is left when they are there
#   docs/cluster.sh steps-lora target/release  the same of LoRA of the shape of Qwen2.5-3B (LORA=0.5B: of that), rank 16 on all maps, base in NF4, a row of 128 tokens
#   docs/cluster.sh kill target/release      `mpirun --hostfile` over two of the namespaces, rank 1 killed in mid-epoch, the run resumed with 2, 1 and 4 (Open MPI)
# MBITS="100 1000", NUMBERS="430000", STEPS=3 and TIMES=1 try it out.
set -euo pipefail
export LC_ALL=C
case ${1:-} in all | sums | sums-mpi | steps | steps-lora | kill) ;; *) set -- ;; esac
[ $# -eq 2 ] || { echo "$0 all|sums|sums-mpi|steps|steps-lora|kill FOLDER_OF_THE_PROGRAMS" >&2; exit 2; }
what=$1
bin=$(realpath "$2")
docs=$(realpath "$(dirname "$0")")
times=${TIMES:-5}
mbits=${MBITS:-100 250 1000}
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

# sum RANKS NUMBERS WIRE: of so many ranks over TCP.
sum() {
  local others=()
  port=$((port + 1))
  for ((i = $1 - 1; i > 0; i--)); do
    ip netns exec "$name-$i" "$bin/examples/exchange" "$i" "$1" "10.99.0.1:$port" "$2" "$3" "$times" & others+=($!)
  done
  ip netns exec "$name-0" "$bin/examples/exchange" 0 "$1" "10.99.0.1:$port" "$2" "$3" "$times"
  for other in "${others[@]}"; do wait "$other"; done
}

# sum_mpi RANKS NUMBERS WIRE: over MPI, one of them on each machine.
sum_mpi() {
  # By the links alone: processes of one kernel would else find each other's memory.
  mpi_run --mca btl tcp,self --mca btl_tcp_if_include eth0 -n "$1" "$bin/examples/exchange" 0 "$1" mpi "$2" "$3" "$times"
}

# sums HOW: sum or sum_mpi over all links, ranks, sizes and numbers on the wire.
sums() {
  local line
  for mbit in $mbits; do
    shape "$mbit"
    for ranks in 2 4; do
      # A seventh of YOLOv8n, YOLOv8n, LoRA of 7.5 and of 30 million numbers.
      for numbers in ${NUMBERS:-430000 3011628 7500000 30000000}; do
        if [ $((numbers / mbit)) -gt 100000 ]; then continue; fi
        for wire in f32 bf16; do
          line=$("$1" "$ranks" "$numbers" "$wire")
          echo "$mbit,$line"
        done
      done
    done
  done
}

# step I COMMAND...: a rank's.
step() {
  local i=$1
  shift
  RANK=$i WORLD_SIZE=$ranks LOCAL_RANK=$i LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=10.99.0.1 MASTER_PORT=$port BELLOWS_LOG=bellows_learner=trace NO_COLOR=1 \
    ip netns exec "$name-$i" taskset -c "$((i % $(nproc)))" "$@" 2> "$work/log$i"
}

# steps COMMAND...: of two ranks (RANKS=4: of four, which share cores where there are fewer), over all links.
steps() {
  local i ranks=${RANKS:-2}
  for i in 0 1 2 3; do ip netns exec "$name-$i" tc qdisc del dev eth0 root 2>/dev/null || true; done
  for mbit in 0 $mbits; do
    if [ "$mbit" -gt 0 ]; then shape "$mbit"; fi
    port=$((port + 1))
    for ((i = 1; i < ranks; i++)); do step "$i" "$@" > /dev/null & done
    step 0 "$@" > "$work/report"
    wait
    python3 - "$mbit" "$ranks" "$work" <<'PY'
import json, re, sys
mbit, ranks, work = sys.argv[1:]
report = json.load(open(f"{work}/report"))
# The last step's: the first one does not know the order yet.
buckets = re.findall(r"buckets ([0-9:. ]+)", open(f"{work}/log0").read())[-1].strip()
print(mbit, ranks, report["forward_s"], report["backward_s"], report["update_s"] + report["exchange_s"], buckets, sep=",")
PY
  done
}

# hosts N: a hostfile of so many of the machines, and what starts a process on one of them.
hosts() {
  for ((i = 1; i <= $1; i++)); do echo "10.99.0.$i slots=2"; done > "$work/hosts"
  cat > "$work/agent" <<AGENT
#!/bin/sh
host=\$1; shift
i=\$((\${host##*.} - 1))
exec ip netns exec "$name-\$i" unshare -u sh -c "hostname $name-\$i; \$*"
AGENT
  chmod +x "$work/agent"
}

# mpi_run WORDS...: mpirun by the hostfile of machines, each of which is a namespace with a name of its own; `ip netns exec` is what ssh would be.
mpi_run() {
  ip netns exec "$name-0" unshare -u sh -c 'hostname "$0" && exec "$@"' "$name-0" mpirun --allow-run-as-root --hostfile "$work/hosts" --map-by node --bind-to none \
    --mca plm_rsh_agent "$work/agent" "$@" < /dev/null
}

# launch PORT N WORDS...: so many ranks of the detector.
launch() {
  local port=$1 ranks=$2
  shift 2
  mpi_run -x MASTER_ADDR=10.99.0.1 -x MASTER_PORT="$port" -n "$ranks" "$bin/yolo-train" "$@" > "$work/out" 2>&1
}

kill_a_rank() {
  hosts 2
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

yolo=("$bin/yolo-train" benchmark --json --threads 1 --batch 4 --steps "${STEPS:-15}")
lora=("$bin/llm-finetune" benchmark --json --threads 1 --size "${LORA:-3B}" --rank 16 --targets q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj
  --base-dtype nf4 --batch 1 --seq 128 --steps "${STEPS:-3}")
case $what in
  sums) sums sum ;;
  sums-mpi) hosts 4 && sums sum_mpi ;;
  steps) steps "${yolo[@]}" ;;
  steps-lora) steps "${lora[@]}" ;;
  kill) kill_a_rank ;;
  all)
    steps "${yolo[@]}" > "$work/steps.csv"
    steps "${lora[@]}" > "$work/steps-lora.csv"
    sums sum > "$work/links.csv"
    cp "$work/steps.csv" "$work/steps-lora.csv" "$work/links.csv" "$docs"
    "$bin/examples/step_time" "$docs/links.csv" "$docs/cluster.png" "$docs/steps.csv" "$docs/steps-lora.csv"
    ;;
esac
