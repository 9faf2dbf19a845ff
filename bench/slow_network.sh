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
. "$here/limited_cable.sh"

steps=4
batch=(--sequence-length 128 --micro-batch-size 1)

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
gloo() { gloo_ranks "$1" "$2" "$model"; }

for rate in "$@"; do
  for stage in 1 3; do
    measure "terrace-zero-$stage" "$rate" ours --zero-stage $stage
    measure "terrace-zero-$stage-between-all" "$rate" ours --zero-stage $stage --hierarchical-collectives off
  done
  measure ddp "$rate" gloo ddp
  measure fsdp2 "$rate" gloo fsdp2 || echo "fsdp2 did not run over Gloo here" >&2
done
