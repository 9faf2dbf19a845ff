#!/usr/bin/env bash
# Trains gpt2-124m with two ranks on two hosts over a slow network, with gradients and parameters sent as
# they are and as codes. The hosts are two network namespaces of this machine, whose cable is limited to
# each rate in turn.
#
# bench/coded_network.sh PROGRAM PYTHON TEXT RATE...
#
# Trains it with PyTorch's DDP over Gloo too, with the hooks that send gradients in bf16 or by PowerSGD. PYTHON
# has torch and transformers; with "-" these trainings are left out. TEXT is a text file whose bytes are tokens,
# and RATE a rate as tc writes it, such as 100mbit. Prints a line of JSON for each training: the median seconds of
# a step and the bytes that crossed the cable in each direction for each step. Exits 77 where namespaces cannot
# be made (needs root and iproute2) or without mpirun.
set -euo pipefail

program=$(realpath "$1")
python=$2
text=$(realpath "$3")
shift 3
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
. "$here/../tests/e2e/two_hosts_network.sh"
. "$here/limited_cable.sh"

ranks=2
steps=4

# train STEPS FLAGS...: trains, and prints the median seconds of the steps after the first.
train() {
  local count=$1
  shift
  rm -rf "$work/run"
  on_two_hosts "$ranks" "$program" train --model gpt2-124m --init random --data "$text" --tokenizer bytes \
    --sequence-length 128 --micro-batch-size 1 --precision bf16 --gradient-dtype fp32 --max-steps "$count" \
    --validation-fraction 0 --threads 1 --host-memory 5GiB --progress off --checkpoint-every 1000 \
    --run-dir "$work/run" "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; return 1; }
  python3 -c 'import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
print(statistics.median(row["step_s"] for row in rows[1:] or rows))' "$work/run/metrics.jsonl"
}

# gloo STEPS STRATEGY: does the same with PyTorch.
gloo() { gloo_ranks "$1" "$2" gpt2; }

for rate in "$@"; do
  measure zero-1-plain "$rate" train --zero-stage 1
  measure zero-3-plain "$rate" train --zero-stage 3
  measure zero-1-int8 "$rate" train --zero-stage 1 --gradient-wire-dtype int8
  measure zero-3-int8-int8 "$rate" train --zero-stage 3 --gradient-wire-dtype int8 --parameter-wire-dtype int8
  measure zero-3-int4-int8 "$rate" train --zero-stage 3 --gradient-wire-dtype int4 --parameter-wire-dtype int8
  [[ $python != - ]] || continue
  for strategy in ddp ddp-bf16 ddp-powersgd; do
    measure "$strategy" "$rate" gloo "$strategy" || echo "$strategy did not run over Gloo here" >&2
  done
done
