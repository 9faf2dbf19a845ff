#!/usr/bin/env bash
# Runs the benchmarks of a GPU, and the peers' benchmarks, on the first GPU:
#
#   tools/gpu_bench.sh BUNDLE.tar.gz [OUT [PART...]]
#
# OUT (build/gpu_bench) then has a JSON document for each part, PART.json, and goals.txt. goals.txt compares
# every ratio that has a goal with that goal, for all parts that are there: parts may be run one by one. The
# parts are copy, kernel, step-gpt2, step-1b (a document for each number of tokens) and step-7b. If there is
# a python3 with PyTorch, there are also the peers attention, fsdp2-1b and fsdp2-7b (an estimated 130 GB of
# host memory, since PyTorch rounds pinned memory up). With everything in its memory, llama-7b needs a GPU of
# 110 GB. At the speeds of an H200, step-1b should take six minutes, step-7b four, and fsdp2-1b six.
# BUNDLE.tar.gz is the same as for tools/gpu_tests.sh. Exits with 4 if something that tools/gpu_build.sh needs
# is missing, and with 1 if a part failed; the other parts still run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

all_parts=(copy kernel step-gpt2 step-1b step-7b attention fsdp2-1b fsdp2-7b)
bundle=${1:-}
[[ -f $bundle ]] || { echo "usage: tools/gpu_bench.sh BUNDLE.tar.gz [OUT [PART...]]" >&2; exit 2; }
out=${2:-build/gpu_bench}
parts=("${@:3}")
named=${#parts[@]}
if ((${#parts[@]} == 0)); then parts=("${all_parts[@]}"); fi
for part in "${parts[@]}"; do
  if [[ " ${all_parts[*]} " != *" $part "* ]]; then
    echo "gpu_bench: there is no part $part: ${all_parts[*]}" >&2
    exit 2
  fi
done

# PyTorch brings its own libraries, and must not find ours first.
libraries_of_caller=${LD_LIBRARY_PATH:-}
python() { LD_LIBRARY_PATH=$libraries_of_caller python3 "$@"; }

./tools/gpu_build.sh "$bundle" terrace
# shellcheck disable=SC1091
source build/gpu/environment.sh
mkdir -p "$out"

failed=()
# keep NAME COMMAND...: writes the output of the command to OUT/NAME.json.
keep() {
  local name=$1
  shift
  rm -f "$out/$name.json"
  if "$@" >"$out/$name.json.partial"; then
    mv "$out/$name.json.partial" "$out/$name.json"
  else
    failed+=("$name")
  fi
}

bench() { build/gpu/terrace bench "$@" --device cuda --json; }
# peer NAME SCRIPT [OPTION...]: runs a peer if there is PyTorch. Without PyTorch a peer that was named fails.
peer() {
  if python -c 'import torch' 2>/dev/null; then
    keep "$1" python "bench/peers/$2" "${@:3}"
    return
  fi
  echo "gpu_bench: there is no python3 with PyTorch here: $1 is left out" >&2
  if ((named)); then failed+=("$1"); fi
}

for part in "${parts[@]}"; do
  case $part in
    copy | kernel) keep "$part" bench "$part" ;;
    step-gpt2) keep "$part" bench step --preset gpt2-124m ;;
    step-1b)  # documents that are complete are there when time runs out, and none of an earlier run
      rm -f "$out"/step-1b.json "$out"/step-1b-*.json
      for tokens in 8192 16384 32768 65536 131072 524288; do
        keep "$part-$tokens" bench step --preset llama-1b --tokens "$tokens"
      done
      ;;
    step-7b) keep "$part" bench step --preset llama-7b ;;
    attention) peer "$part" pytorch_attention.py ;;
    fsdp2-1b) peer "$part" pytorch_fsdp2_offload.py ;;
    fsdp2-7b)
      peer "$part" pytorch_fsdp2_offload.py --preset llama-7b --checkpointing full \
        --steps 3 --warmup 1
      ;;
  esac
done

python bench/gpu_goals.py "$out" | tee "$out/goals.txt"
if ((${#failed[@]})); then
  echo "gpu_bench: failed: ${failed[*]}" >&2
  exit 1
fi
