#!/usr/bin/env bash
# Measures what ranks take to add up gradients over links of so many Mbit/s: network namespaces on this machine, joined by a bridge, each with
# a token bucket on what it sends (tc tbf). Needs root, iproute2 and a built example: cargo build --release -p bellows-ranks --example exchange
#   docs/cluster.sh target/release/examples/exchange > links.csv
# Columns: Mbit/s, ranks, bytes of a number on the wire, numbers, seconds.
#   docs/cluster.sh step target/release/yolo-train > steps.csv
# times whole steps of YOLOv8n instead, batch 4, on two ranks of one thread: Mbit/s, seconds of forward, backward, and update with what of the exchange is left for it.
set -euo pipefail
what=sums
if [ "$1" = step ]; then
  what=step
  shift
fi
program="$1"
name="bl$$"
clean() {
  for i in 0 1 2 3; do ip netns del "$name-$i" 2>/dev/null || true; done
  ip link del "$name" 2>/dev/null || true
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

# step I: a rank's.
step() {
  RANK=$1 WORLD_SIZE=2 LOCAL_RANK=$1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.99.0.1 MASTER_PORT=$port \
    ip netns exec "$name-$1" taskset -c "$1" "$program" benchmark --json --threads 1 --batch 4
}

for mbit in 100 250 1000; do
  shape "$mbit"
  if [ "$what" = step ]; then
    port=$((port + 1))
    step 1 > /dev/null & other=$!
    echo "$mbit,$(step 0 | python3 -c 'import json, sys; r = json.load(sys.stdin); print(r["forward_s"], r["backward_s"], r["update_s"], sep=",")')"
    wait "$other"
    continue
  fi
  for ranks in 2 4; do
    # A seventh of YOLOv8n, YOLOv8n, LoRA of 7.5 and of 30 million numbers.
    for numbers in 430000 3011628 7500000 30000000; do
      if [ $((numbers / mbit)) -gt 100000 ]; then continue; fi
      for wire in f32 bf16; do
        port=$((port + 1))
        others=()
        for ((i = ranks - 1; i > 0; i--)); do
          ip netns exec "$name-$i" "$program" "$i" "$ranks" "10.99.0.1:$port" "$numbers" "$wire" 3 & others+=($!)
        done
        echo "$mbit,$(ip netns exec "$name-0" "$program" 0 "$ranks" "10.99.0.1:$port" "$numbers" "$wire" 3)"
        for other in "${others[@]}"; do wait "$other"; done
      done
    done
  done
done
