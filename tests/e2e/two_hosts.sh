#!/usr/bin/env bash
# Two network namespaces act as two hosts, which reach each other only over a virtual cable, and
# mpirun runs over them. The losses and the trained weights must be the same as on one host with as many ranks.
#
# tests/e2e/two_hosts.sh PROGRAM
#
# Exits 77 if namespaces cannot be made (needs root and iproute2) or there is no mpirun.
set -euo pipefail

program=$(realpath "$1")
. "$(dirname "${BASH_SOURCE[0]}")/two_hosts_network.sh"

words=(a model that is larger than the memory of one machine learns from text on two hosts)
for ((i = 0; i < 4000; ++i)); do
  printf '%s ' "${words[(i * i + i / 7) % ${#words[@]}]}"
done >"$work/text.txt"

train=("$program" train --model nano --data "$work/text.txt" --sequence-length 64 --max-steps 12
  --gradient-accumulation-steps 4 --validation-fraction 0 --threads 1 --host-memory 256MiB
  --collective-timeout 60 --progress off)
# The columns that must be equal to the last bit.
losses() {
  sed -E 's/.*"loss":([^,]*),"grad_norm":([^,]*),.*/\1 \2/' "$1/metrics.jsonl"
}

compare() {
  local name=$1 before
  shift
  before=$(carried_bytes)
  on_one_host 4 "${train[@]}" "$@" --run-dir "$work/one-$name" >"$work/one.log" 2>&1 ||
    { cat "$work/one.log"; return 1; }
  on_two_hosts 4 "${train[@]}" "$@" --run-dir "$work/two-$name" >"$work/two.log" 2>&1 ||
    { cat "$work/two.log"; return 1; }
  local carried
  carried=$(($(carried_bytes) - before))
  if ((carried < 1000000)); then
    echo "$name: only $carried bytes went from one host to the other"
    return 1
  fi
  if ! diff <(losses "$work/one-$name") <(losses "$work/two-$name"); then
    echo "$name: two hosts have other losses than one"
    return 1
  fi
  if ! cmp "$work/one-$name/final/model.safetensors" "$work/two-$name/final/model.safetensors"; then
    echo "$name: two hosts train other weights than one"
    return 1
  fi
  local steps
  steps=$(wc -l <"$work/two-$name/metrics.jsonl")
  echo "$name: $steps steps on two hosts have the losses of one ($carried bytes over the cable)"
}

compare data-parallel --zero-stage 3
compare in-chains --zero-stage 3 --hierarchical-collectives on
compare between-all --zero-stage 1 --hierarchical-collectives off
compare whole-gradients --zero-stage 0
compare pipeline --zero-stage 1 --pipeline-parallel 2 --pipeline-schedule interleaved
