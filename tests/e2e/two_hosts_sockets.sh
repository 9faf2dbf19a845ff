#!/usr/bin/env bash
# Two network namespaces act as two hosts, which reach each other only over a virtual cable. Ranks
# with torchrun's variables connect over it. The losses and the trained weights must be the same as
# with ranks that are threads of one process.
#
# tests/e2e/two_hosts_sockets.sh PROGRAM
#
# Exits 77 if namespaces cannot be made (needs root and iproute2).
set -euo pipefail

program=$(realpath "$1")
needs_mpirun=no
. "$(dirname "${BASH_SOURCE[0]}")/two_hosts_network.sh"

words=(a model that is larger than the memory of one machine learns from text on two hosts)
for ((i = 0; i < 4000; ++i)); do
  printf '%s ' "${words[(i * i + i / 7) % ${#words[@]}]}"
done >"$work/text.txt"

train=("$program" train --model nano --data "$work/text.txt" --sequence-length 64
  --gradient-accumulation-steps 4 --validation-fraction 0 --threads 1 --host-memory 256MiB
  --collective-timeout 60 --progress off)
# The columns that must be equal to the last bit.
losses() {
  sed -E 's/.*"loss":([^,]*),"grad_norm":([^,]*),.*/\1 \2/' "$1/metrics.jsonl"
}

# start_on_two_hosts JOB COMMAND...: starts two ranks on each host. Their processes are in
# `started`, in the order of the ranks.
start_on_two_hosts() {
  local job=$1
  shift
  started=()
  for rank in 0 1 2 3; do
    "$work/on" "${hosts[rank / 2]}" exec env RANK=$rank LOCAL_RANK=$((rank % 2)) WORLD_SIZE=4 \
      LOCAL_WORLD_SIZE=2 MASTER_ADDR="${hosts[0]}" MASTER_PORT=29500 \
      TORCHELASTIC_RUN_ID="$job" "$@" >"$work/$job-$rank.log" 2>&1 &
    started+=($!)
  done
}

compare() {
  local name=$1 before
  shift
  set -- --max-steps 8 "$@"
  before=$(carried_bytes)
  "${train[@]}" --local-ranks 4 "$@" --run-dir "$work/threads-$name" >"$work/threads.log" 2>&1 ||
    { cat "$work/threads.log"; return 1; }
  start_on_two_hosts "$name" "${train[@]}" "$@" --run-dir "$work/hosts-$name"
  for process in "${started[@]}"; do
    wait "$process" || { cat "$work/$name"-*.log; return 1; }
  done
  local carried
  carried=$(($(carried_bytes) - before))
  if ((carried < 500000)); then
    echo "$name: only $carried bytes went from one host to the other"
    return 1
  fi
  if ! diff <(losses "$work/threads-$name") <(losses "$work/hosts-$name"); then
    echo "$name: two hosts have other losses than threads"
    return 1
  fi
  if ! cmp "$work/threads-$name/final/model.safetensors" \
    "$work/hosts-$name/final/model.safetensors"; then
    echo "$name: two hosts train other weights than threads"
    return 1
  fi
  echo "$name: two hosts have the losses of threads ($carried bytes over the cable)"
}

# A rank on the second host is killed. All others say so, and end with an error.
kill_one() {
  start_on_two_hosts killed "${train[@]}" --max-steps 1000000 --run-dir "$work/hosts-killed"
  for ((i = 0; i < 600; ++i)); do
    grep -q '^step' "$work/killed-0.log" && break
    sleep 0.1
  done
  kill -KILL "${started[3]}"
  for rank in 0 1 2; do
    if wait "${started[rank]}"; then
      echo "rank $rank has not noticed that rank 3 was killed"
      return 1
    fi
    if ! grep -q 'rank 3 has died' "$work/killed-$rank.log"; then
      cat "$work/killed-$rank.log"
      echo "rank $rank does not say that rank 3 has died"
      return 1
    fi
  done
  echo "killed: three ranks say that the fourth has died"
}

compare data-parallel --zero-stage 3
compare in-chains --zero-stage 1 --hierarchical-collectives on
compare between-all --zero-stage 1 --hierarchical-collectives off
compare whole-gradients --zero-stage 0
compare tensor-ranks --zero-stage 1 --tensor-parallel 2
compare pipeline --zero-stage 1 --pipeline-parallel 2 --pipeline-schedule interleaved
kill_one
