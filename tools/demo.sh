#!/usr/bin/env bash
# Goes from a bare machine to a model that was trained out of core, and a sample of its text.
#
#   tools/demo.sh [--data PATH]    text to learn from, a file or a directory; /usr/include unless named
#
# Installs what is missing, builds, and trains a small model with budgets that are too small for it:
# the optimizer state and the parameters live on the drive and visit memory when the step needs them.
# How much memory a step needs depends on the processor and the number of threads. So the demo asks the
# program for the least budgets, and gives the training half as much again.
# Then it checks in metrics.jsonl that the loss fell and that bytes moved over every link, and lets
# the model write. Everything stays in runs/demo-<time>. Exits with 1 if a check fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

data=/usr/include

model=nano
precision=bf16
sequence_length=128
micro_batch_size=8
accumulation_steps=2
steps=400
learning_rate=2e-3
warmup_steps=20
validation_fraction=0.0005
# The training gets this many percent of the least budgets. That is a fraction of the memory that its
# whole state and its activations would take.
budget_percent=150

# The loss of random guessing is ln 256 = 5.5 nats a byte. The mean of the last rows must be this far
# below the first row.
loss_fall_min=1.5
last_rows=10

prompt='#include <'
new_tokens=240

fail() {
  printf 'demo: %s\n' "$*" >&2
  exit 1
}

while (($#)); do
  case $1 in
    --data)
      (($# > 1)) || { echo "demo.sh: --data wants a path" >&2; exit 2; }
      data=$2
      shift 2
      ;;
    -h | --help)
      sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *)
      echo "demo.sh: unknown argument $1; usage: tools/demo.sh [--data PATH]" >&2
      exit 2
      ;;
  esac
done

./tools/build.sh release terrace
terrace=build/release/terrace
[[ -e $data ]] || fail "there is nothing at $data; name a file or directory of text with --data"

run=runs/demo-$(date +%Y%m%d-%H%M%S)
nvme=$run/nvme
mkdir -p "$nvme"

# Prints the flags that give every tier a budget.
budgets() {
  printf '%s\n' --device-memory "$1" --host-memory "$2" --nvme "$nvme:$3"
}

train=(
  "$terrace" train --model "$model" --init random
  --data "$data" --data-format text --tokenizer bytes --validation-fraction "$validation_fraction"
  --precision "$precision" --sequence-length "$sequence_length"
  --micro-batch-size "$micro_batch_size" --gradient-accumulation-steps "$accumulation_steps"
  --max-steps "$steps" --learning-rate "$learning_rate" --warmup-steps "$warmup_steps"
  --device cpu --place-parameters nvme --place-optimizer nvme
  --log-every 50 --run-dir "$run"
)

# No step fits these budgets, so the dry run prints the least budgets that do fit, and exits with 3.
mapfile -t asked < <(budgets 1KiB 1KiB 1KiB)
code=0
document=$("${train[@]}" "${asked[@]}" --dry-run --json 2>"$run/dry-run.txt") || code=$?
((code == 3)) || { cat "$run/dry-run.txt" >&2; fail "the dry run ended with exit code $code"; }

# Prints the budget for a tier.
budget_of() {
  awk -v tier="\"$1\"," -v percent="$budget_percent" '
    $1 == "\"name\":" { is_tier = $2 == tier }
    is_tier && $1 == "\"least_bytes\":" { printf "%dKiB\n", ($2 + 0) * percent / 100 / 1024 + 1 }
  ' <<<"$document"
}
mapfile -t given < <(budgets "$(budget_of device)" "$(budget_of host)" "$(budget_of nvme)")
train+=("${given[@]}")

printf '\n$'
printf ' %q' "${train[@]}"
printf '\n\n'
"${train[@]}" || fail "training ended with exit code $? (see above)"

metrics=$run/metrics.jsonl
[[ -s $metrics ]] || fail "training left no $metrics"

# Prints the value of a number in every row, one value on each line.
column() {
  awk -v key="\"$1\":" '
    {
      at = index($0, key)
      if (at == 0) next
      value = substr($0, at + length(key))
      sub(/^ */, "", value)
      sub(/[^-+.0-9eE].*/, "", value)
      print value
    }' "$metrics"
}

# check_positive NAME: checks that a number's sum over the run and its value in the last step are not zero.
check_positive() {
  local summary
  summary=$(column "$1" | awk '{ sum += $1; last = $1 } END { printf "%.0f %.0f", sum, last }')
  local sum=${summary% *} last=${summary#* }
  printf '  %-18s %15s in all, %12s in the last step\n' "$1" "$sum" "$last"
  [[ $sum != 0 && $last != 0 ]] || fail "$1 is zero: nothing moved over that link, see $metrics"
}

echo
echo "Checks of $metrics:"
rows=$(column step | wc -l)
((rows == steps)) || fail "$metrics has $rows rows and the run had $steps steps"
column loss | awk -v rows="$rows" -v last_rows="$last_rows" -v fall_min="$loss_fall_min" '
  NR == 1 { first = $1 }
  NR > rows - last_rows { sum += $1; ++count }
  END {
    last = count ? sum / count : first
    printf "  loss %.3f in step 1, %.3f in the mean of the last %d steps\n", first, last, count
    exit !(NR == rows && first - last >= fall_min)
  }' || fail "the loss did not fall by $loss_fall_min nats a token: the model did not learn"
for bytes in upload_bytes download_bytes nvme_read_bytes nvme_write_bytes; do
  check_positive "$bytes"
done

final=$run/final
[[ -s $final/config.json ]] || fail "$final has no config.json"
compgen -G "$final/*.safetensors" >/dev/null || fail "$final has no safetensors"

echo
echo "The model continues \"$prompt\":"
echo
sample=$("$terrace" sample --model "$final" --prompt "$prompt" --max-new-tokens "$new_tokens" \
  --temperature 0.7 --seed 1 | tr -d '\000' && echo .) || fail "sampling from $final failed"
sample=${sample%.}
printf '%s\n' "$sample"
((${#sample} >= new_tokens / 2)) || fail "the sample has only ${#sample} characters"

echo
echo "demo: all checks held. The run is in $run, the model in $final."
