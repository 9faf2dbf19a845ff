#!/usr/bin/env bash
# Times how long steps of drawn configurations take to plan: tools/plan_sweep.sh [COUNT [SEED]]
#
# Draws COUNT configurations of the presets (1000 unless named): sequence length, micro-batches,
# budgets, homes, order, prefetch distance, clipping, pipeline, tensor parallel and ZeRO settings.
# Each is planned by a dry run in a process of its own. Prints how many fitted, how many were
# refused, and the slowest ten. Exits with 1 if a plan takes more than LIMIT_S seconds of processor time (10),
# or ends with another exit code than 0 or 3. Processor time does not depend on what else runs here: a rank
# plans on two threads at most, so on an idle machine it takes no longer than that. Ranks that are threads
# count together. TERRACE names the program (build/release/terrace).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

count=${1:-1000}
seed=${2:-1}
limit_s=${LIMIT_S:-10}
terrace=$(realpath "${TERRACE:-build/release/terrace}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/drive"
seq 1 40000 >"$work/text.txt"

# Prints one drawn configuration on each line. awk's generator is seeded, so a seed always gives the same lines.
draw() {
  awk -v count="$count" -v seed="$seed" '
    function any(list,   n, names) { n = split(list, names, " "); return names[1 + int(rand() * n)] }
    function between(low, high) { return low * exp(rand() * log(high / low)) }
    function most(model) { return 20 * least[model] < 20480 ? 20 * least[model] : 20480 }
    BEGIN {
      # MiB of host memory, about the least that docs/memory.md says.
      split("nano 6 gpt2-124m 455 gpt2-xl 709 llama-1b 1741 llama-3b 2642 llama-7b 1843 llama-8b 3420 llama-70b 6789", pairs, " ")
      for (p = 1; p in pairs; p += 2) least[pairs[p]] = pairs[p + 1]
      srand(seed)
      for (i = 0; i < count; ++i) {
        model = any("nano gpt2-124m gpt2-xl llama-1b llama-3b llama-7b llama-8b llama-70b")
        longest = "128 512 1024 2048 4096"
        if (model == "nano") longest = "64 128 256"
        if (model ~ /gpt2/) longest = "128 256 512 1024"
        line = "--model " model " --sequence-length " any(longest)
        line = line " --micro-batch-size " any("1 1 1 2 4")
        line = line " --gradient-accumulation-steps " any("1 1 2 3 4 5 6 8 12 16 24 32")
        line = line sprintf(" --host-memory %dMiB", between(0.8 * least[model], most(model)))
        if (rand() < 0.3) {
          line = line sprintf(" --device-memory %dMiB", between(0.5 * least[model], 2 * least[model]))
        }
        if (rand() < 0.9) line = line " --nvme DRIVE"
        places = line ~ /--nvme/ ? "auto auto auto host nvme nvme nvme" : "auto host"
        if (line ~ /--device-memory/) places = places " device"
        if (rand() < 0.7) {
          line = line " --place-parameters " any(places) " --place-gradients " any(places)
          line = line " --place-optimizer " any(places) " --place-activations " any(places)
        }
        if (rand() < 0.4) line = line " --lookahead " any("1 2 3 6 12")
        if (rand() < 0.3) line = line " --recompute " any("none full")
        if (rand() < 0.4) line = line " --max-grad-norm 0"
        if (rand() < 0.2) line = line " --optimizer-state-dtype " any("bf16 int8")
        if (rand() < 0.25) {
          stages = int(any("1 1 2 3")); shared = model == "gpt2-xl" ? 1 : int(any("1 1 2"))
          line = line " --local-ranks " stages * shared * any("1 2") " --zero-stage " any("0 1 2 3")
          line = line " --pipeline-parallel " stages " --tensor-parallel " shared
          if (stages > 1) line = line " --pipeline-schedule " any("1f1b gpipe")
        } else if (rand() < 0.4) {
          line = line " --micro-batch-order " any("layer-major micro-batch-major")
        }
        print i, line
      }
    }'
}

# plan NUMBER FLAG...: makes a plan. Prints its seconds of processor time, the exit code and the flags.
plan() {
  local number=$1 code=0 seconds
  shift
  TIMEFORMAT='%U %S'
  seconds=$({ time timeout $((limit_s * 20)) "$terrace" train --init random --data "$work/text.txt" \
    --data-format text --validation-fraction 0 --max-steps 1 --run-dir "$work/run-$number" --dry-run \
    "${@//DRIVE/$work/drive}" >"$work/$number.log" 2>&1; } 2>&1) || code=$?
  awk -v seconds="$seconds" -v code="$code" -v flags="$*" \
    'BEGIN { split(seconds, part, " "); printf "%.2f %d %s\n", part[1] + part[2], code, flags }'
  if ((code == 0 || code == 3)); then rm -f "$work/$number.log"; else tail -n 3 "$work/$number.log" >&2; fi
}
export -f plan
export terrace work limit_s

draw | xargs -P "$(./tools/jobs.sh)" -d '\n' -n 1 bash -c 'plan $0' >"$work/times"

awk '{ ++codes[$2] } END { for (code in codes) printf "exit %d: %d plans\n", code, codes[code] }' "$work/times" | sort
echo "slowest ten, in seconds of processor time, with exit code:"
sort -rn "$work/times" | head -n 10
awk -v limit="$limit_s" '
  $1 > limit { ++slow }
  $2 != 0 && $2 != 3 { ++failed }
  END {
    printf "%d plans: %d took more than %s s, %d failed\n", NR, slow, limit, failed
    exit slow + failed > 0
  }' "$work/times"
