#!/usr/bin/env bash
# Two network namespaces act as two hosts, which reach each other only over a virtual cable, and
# mpirun runs over them. The losses, the state and the trained weights must be the same as on one host
# with as many ranks.
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
  --checkpoint-every 6 --collective-timeout 60 --progress off)
# The columns that must be equal to the last bit.
losses() {
  sed -E 's/.*"loss":([^,]*),"grad_norm":([^,]*),.*/\1 \2/' "$1/metrics.jsonl"
}

# compare NAME RANKS FLAGS... [and FLAGS...]: the flags behind "and" are for the two hosts alone.
compare() {
  local name=$1 ranks=$2 before
  shift 2
  local flags=()
  while (($# > 0)) && [[ $1 != and ]]; do
    flags+=("$1")
    shift
  done
  shift || true
  before=$(carried_bytes)
  on_one_host "$ranks" "${train[@]}" "${flags[@]}" --run-dir "$work/one-$name" \
    >"$work/one.log" 2>&1 || { cat "$work/one.log"; return 1; }
  on_two_hosts "$ranks" "${train[@]}" "${flags[@]}" "$@" --run-dir "$work/two-$name" \
    >"$work/two.log" 2>&1 || { cat "$work/two.log"; return 1; }
  if [[ " $* " == *" --zero-partition "* ]] && ! grep -q "in each of 2 islands of" "$work/two.log"; then
    echo "$name: the hosts are not islands"
    return 1
  fi
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
  local state compared=0
  for state in "$work/one-$name"/checkpoint-6/*.safetensors; do
    if ! cmp "$state" "$work/two-$name/checkpoint-6/${state##*/}"; then
      echo "$name: two hosts have another state than one"
      return 1
    fi
    compared=$((compared + 1))
  done
  if ((compared < 9)); then
    echo "$name: only $compared files of state were compared"
    return 1
  fi
  local steps
  steps=$(wc -l <"$work/two-$name/metrics.jsonl")
  echo "$name: $steps steps on two hosts have the losses of one ($carried bytes over the cable)"
}

compare data-parallel 4 --zero-stage 3
compare in-chains 4 --zero-stage 3 and --hierarchical-collectives on
compare between-all 4 --zero-stage 1 and --hierarchical-collectives off
compare whole-gradients 4 --zero-stage 0
drive=(--nvme "$work" --place-parameters nvme --place-optimizer nvme)
compare parameters-in-islands 4 --zero-stage 3 and --zero-partition hpz
compare islands-on-drives 4 --zero-stage 3 and --zero-partition hpz "${drive[@]}"
compare states-in-islands 4 --zero-stage 3 and --zero-partition hsdp
compare codes 4 --zero-stage 3 --gradient-wire-dtype int4 --parameter-wire-dtype int8
compare four-ranks-on-a-host 8 --zero-stage 3 and --zero-partition hpz
compare four-ranks-flat 8 --zero-stage 1 and --hierarchical-collectives off
compare pipeline 4 --zero-stage 1 --pipeline-parallel 2 --pipeline-schedule interleaved
