#!/usr/bin/env bash
# Runs every benchmark of a GPU, and the peers, on the first one:
#
#   tools/gpu_bench.sh BUNDLE.tar.gz [OUT]
#
# OUT (build/gpu_bench) then has a JSON document of each, copy.json, kernel.json, step.json,
# attention.json and fsdp2_offload.json, and goals.txt, which holds every ratio that has a goal to
# it. The peers run where there is a python3 with PyTorch. BUNDLE.tar.gz is as tools/gpu_tests.sh
# takes it. Exits 4 where what tools/gpu_build.sh needs is missing, 1 where a benchmark failed: the
# others still run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bundle=${1:-}
[[ -f $bundle && $# -le 2 ]] || { echo "usage: tools/gpu_bench.sh BUNDLE.tar.gz [OUT]" >&2; exit 2; }
out=${2:-build/gpu_bench}

./tools/gpu_build.sh "$bundle" terrace
# shellcheck disable=SC1091
source build/gpu/environment.sh
mkdir -p "$out"

failed=()
# keep NAME COMMAND...: what the command prints goes to OUT/NAME.json.
keep() {
  local name=$1
  shift
  if "$@" >"$out/$name.json.partial"; then
    mv "$out/$name.json.partial" "$out/$name.json"
  else
    failed+=("$name")
  fi
}

for kind in copy kernel step; do
  keep "$kind" build/gpu/terrace bench "$kind" --device cuda --json
done
if python3 -c 'import torch' 2>/dev/null; then
  keep attention python3 bench/peers/pytorch_attention.py
  keep fsdp2_offload python3 bench/peers/pytorch_fsdp2_offload.py
else
  echo "gpu_bench: there is no python3 with PyTorch here: the peers are left out" >&2
fi

python3 bench/gpu_goals.py "$out" | tee "$out/goals.txt"
if ((${#failed[@]})); then
  echo "gpu_bench: failed: ${failed[*]}" >&2
  exit 1
fi
