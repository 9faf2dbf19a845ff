#!/usr/bin/env bash
# Compares what two builds plan: tools/compare_plans.sh BEFORE AFTER
#
# BEFORE and AFTER are terrace programs. Each makes a dry run, as JSON, of every command line below: presets
# with different budgets, numbers of micro-batches, homes, and ranks. Two documents count as equal if they
# differ in nothing but times. Prints the command lines whose documents are not equal, with the difference,
# and exits with 1 if there are any. If KEEP is set, the documents of a run are kept there, and BEFORE's
# documents that are there already are not made again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

before=$(realpath "$1")
after=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
keep=${KEEP:-$work}
mkdir -p "$keep/before" "$keep/after" "$keep/drive"
[[ -e $keep/text.txt ]] || seq 1 400000 >"$keep/text.txt"

command_lines() {
  local steps
  for steps in 1 2 5 16; do
    echo "--model nano --sequence-length 128 --gradient-accumulation-steps $steps --host-memory 40MiB"
    echo "--model gpt2-124m --sequence-length 512 --gradient-accumulation-steps $steps --host-memory 900MiB --nvme DRIVE"
    echo "--model gpt2-124m --sequence-length 256 --gradient-accumulation-steps $steps --host-memory 700MiB --device-memory 400MiB --nvme DRIVE"
    echo "--model gpt2-xl --sequence-length 512 --gradient-accumulation-steps $steps --host-memory 3GiB --device-memory 1500MiB --nvme DRIVE --max-grad-norm 0"
    echo "--model llama-1b --sequence-length 1024 --gradient-accumulation-steps $steps --host-memory 8GiB --device-memory 3GiB --nvme DRIVE"
    echo "--model llama-1b --sequence-length 512 --gradient-accumulation-steps $steps --host-memory 2500MiB --nvme DRIVE --max-grad-norm 0"
    echo "--model llama-3b --sequence-length 2048 --gradient-accumulation-steps $steps --host-memory 6GiB --nvme DRIVE"
    echo "--model llama-8b --sequence-length 2048 --gradient-accumulation-steps $steps --host-memory 20GiB --device-memory 12GiB --nvme DRIVE"
    echo "--model nano --sequence-length 128 --gradient-accumulation-steps $steps --local-ranks 2 --zero-stage 3 --host-memory 40MiB --nvme DRIVE"
    echo "--model nano --sequence-length 128 --gradient-accumulation-steps $steps --local-ranks 4 --zero-stage 1 --tensor-parallel 2 --host-memory 40MiB"
    echo "--model gpt2-124m --sequence-length 128 --gradient-accumulation-steps $steps --local-ranks 2 --pipeline-parallel 2 --host-memory 600MiB --nvme DRIVE"
    echo "--model llama-1b --sequence-length 256 --gradient-accumulation-steps $steps --local-ranks 4 --pipeline-parallel 2 --tensor-parallel 2 --host-memory 2GiB --nvme DRIVE"
  done
  echo "--model llama-8b --sequence-length 2048 --gradient-accumulation-steps 32 --host-memory 3GiB --nvme DRIVE"
  echo "--model llama-8b --sequence-length 2048 --gradient-accumulation-steps 4 --host-memory 40GiB --device-memory 4GiB"
  echo "--model llama-1b --sequence-length 512 --gradient-accumulation-steps 8 --host-memory 1GiB --device-memory 600MiB --nvme DRIVE"
  echo "--model llama-1b --sequence-length 512 --gradient-accumulation-steps 4 --host-memory 16GiB --micro-batch-order micro-batch-major --nvme DRIVE --place-activations nvme"
  echo "--model gpt2-xl --sequence-length 256 --gradient-accumulation-steps 8 --host-memory 2GiB --device-memory 900MiB --nvme DRIVE --recompute none"
  echo "--model llama-3b --sequence-length 1024 --gradient-accumulation-steps 8 --host-memory 20GiB --device-memory 8GiB --place-optimizer nvme --nvme DRIVE --lookahead 6"
}

# document PROGRAM FLAG...: prints the parts of a document that do not change from one run to the next.
document() {
  local program=$1 code=0
  shift
  OMP_NUM_THREADS=1 "$program" train --init random --data "$keep/text.txt" --data-format text \
    --validation-fraction "${VALIDATION:-0}" --max-steps 1 --run-dir "$keep/run" --threads 1 --dry-run --json \
    "${@//DRIVE/$keep/drive}" >"$work/document" 2>/dev/null || code=$?
  python3 - "$code" "$work/document" <<'PYTHON'
import json, sys
text = open(sys.argv[2]).read()
document = json.loads(text) if text else {}
for key in ("here", "host", "version"):
    document.pop(key, None)
if "results" in document:
    document["results"] = [one for one in document["results"] if one["name"] != "prediction"]
document["exit_code"] = sys.argv[1]
print(json.dumps(document, indent=1))
PYTHON
}

different=0
number=0
while IFS= read -r line; do
  number=$((number + 1))
  read -ra flags <<<"$line"
  [[ -s $keep/before/$number ]] || document "$before" "${flags[@]}" >"$keep/before/$number"
  [[ ${ONLY_BEFORE:-} ]] && continue
  document "$after" "${flags[@]}" >"$keep/after/$number"
  if ! diff "$keep/before/$number" "$keep/after/$number" >"$work/difference"; then
    different=$((different + 1))
    echo "$line"
    cat "$work/difference"
  fi
done < <(command_lines)
echo "$number command lines, $different with other plans"
exit $((different > 0))
