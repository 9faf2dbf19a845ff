#!/usr/bin/env bash
# Trains the same model between two hosts over a slow network: with `terrace train` (stages 1 and 3,
# with hierarchical collectives and without), and with PyTorch's DDP and FSDP2 over Gloo. The hosts
# are two network namespaces of this machine, whose cable is limited to each rate in turn.
#
# bench/slow_network.sh PROGRAM PYTHON MODEL TEXT RANKS RATE...
#
# MODEL is a directory with the config.json of a llama, TEXT a text file whose bytes are tokens, RANKS
# a number of ranks, half of them on each host, and RATE a rate as tc writes it, such as 100mbit.
# PYTHON has torch and transformers. Prints a line of JSON for each training: the median seconds of a
# step and the bytes that crossed the cable in each direction for each step. Exits 77 where
# namespaces cannot be made (needs root and iproute2) or without mpirun.
set -euo pipefail

program=$(realpath "$1")
python=$2
model=$(realpath "$3")
text=$(realpath "$4")
ranks=$5
shift 5
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
. "$here/../tests/e2e/two_hosts_network.sh"

steps=4
batch=(--sequence-length 128 --micro-batch-size 1)

limit_rate() {
  for host in 0 1; do
    ip netns exec "terrace$id-$host" tc qdisc replace dev "terr$id-$host" root tbf rate "$1" \
      burst 256kb latency 100ms
  done
}
lift_limit() {
  for host in 0 1; do
    ip netns exec "terrace$id-$host" tc qdisc delete dev "terr$id-$host" root 2>/dev/null || true
  done
}

# ours STEPS FLAGS...: trains, and prints the median seconds of the steps after the first.
ours() {
  local count=$1
  shift
  rm -rf "$work/run"
  on_two_hosts "$ranks" "$program" train --model "$model" --init random --data "$text" --tokenizer bytes \
    "${batch[@]}" --precision fp32 --max-steps "$count" --validation-fraction 0 --threads 1 --host-memory 1GiB \
    --progress off --checkpoint-every 1000 --run-dir "$work/run" "$@" >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; return 1; }
  "$python" -c 'import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
print(statistics.median(row["step_s"] for row in rows[1:] or rows))' "$work/run/metrics.jsonl"
}

# gloo STEPS STRATEGY: does the same with PyTorch.
gloo() {
  local processes=() warmup=$(($1 > 1 ? 1 : 0))
  for ((rank = 0; rank < ranks; ++rank)); do
    local host=$((rank * 2 / ranks))
    ip netns exec "terrace$id-$host" env RANK=$rank WORLD_SIZE="$ranks" MASTER_ADDR="${hosts[0]}" MASTER_PORT=29511 \
      GLOO_SOCKET_IFNAME="terr$id-$host" "$python" "$here/peers/gloo_ranks.py" --model "$model" --data "$text" \
      --strategy "$2" --warmup $warmup --steps $(($1 - warmup)) >"$work/gloo-$rank" 2>"$work/gloo-$rank.log" &
    processes+=($!)
  done
  for process in "${processes[@]}"; do
    wait "$process" || { tail -5 "$work"/gloo-*.log >&2; return 1; }
  done
  "$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["step_s"])' "$work/gloo-0"
}

# measure NAME RATE COMMAND ARGUMENTS...: COMMAND takes the number of steps before its arguments. The
# bytes of a step are the difference between a run of one step and one of several.
measure() {
  local name=$1 rate=$2 command=$3
  shift 3
  lift_limit
  local start=("$(carried_bytes 0)" "$(carried_bytes 1)")
  "$command" 1 "$@" >/dev/null || return 1
  local one=("$(carried_bytes 0)" "$(carried_bytes 1)") seconds
  limit_rate "$rate"
  seconds=$("$command" "$steps" "$@") || return 1
  local all=("$(carried_bytes 0)" "$(carried_bytes 1)")
  printf '{"name": "%s", "ranks": %d, "rate": "%s", "step_s": %s, "forth_bytes": %d, "back_bytes": %d}\n' \
    "$name" "$ranks" "$rate" "$seconds" \
    $(((all[0] - 2 * one[0] + start[0]) / (steps - 1))) $(((all[1] - 2 * one[1] + start[1]) / (steps - 1)))
}

for rate in "$@"; do
  for stage in 1 3; do
    measure "terrace-zero-$stage" "$rate" ours --zero-stage $stage
    measure "terrace-zero-$stage-between-all" "$rate" ours --zero-stage $stage --hierarchical-collectives off
  done
  measure ddp "$rate" gloo ddp
  measure fsdp2 "$rate" gloo fsdp2 || echo "fsdp2 did not run over Gloo here" >&2
done
