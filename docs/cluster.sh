#!/usr/bin/env bash
# Measures what ranks take to add up gradients over links of so many Mbit/s: network namespaces on this machine, joined by a bridge, each with
# a token bucket on what it sends (tc tbf). Needs root, iproute2 and a built example: cargo build --release -p bellows-ranks --example exchange
#   docs/cluster.sh target/release/examples/exchange > links.csv
# Columns: Mbit/s, ranks, bytes of a number on the wire, numbers, seconds.
set -euo pipefail
exchange="$1"
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
for mbit in 100 250 1000; do
  for i in 0 1 2 3; do
    # A burst of two milliseconds, at least what a packet of a large segment takes.
    ip netns exec "$name-$i" tc qdisc replace dev eth0 root tbf rate "${mbit}mbit" burst "$((mbit * 250 > 131072 ? mbit * 250 : 131072))" latency 100ms
  done
  for ranks in 2 4; do
    # A seventh of YOLOv8n, YOLOv8n, LoRA of 7.5 and of 30 million numbers.
    for numbers in 430000 3011628 7500000 30000000; do
      if [ $((numbers / mbit)) -gt 100000 ]; then continue; fi
      for wire in f32 bf16; do
        port=$((port + 1))
        for ((i = ranks - 1; i > 0; i--)); do
          ip netns exec "$name-$i" "$exchange" "$i" "$ranks" "10.99.0.1:$port" "$numbers" "$wire" 3 &
        done
        echo "$mbit,$(ip netns exec "$name-0" "$exchange" 0 "$ranks" "10.99.0.1:$port" "$numbers" "$wire" 3)"
        wait
      done
    done
  done
done
