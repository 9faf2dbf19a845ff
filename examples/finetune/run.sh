#!/usr/bin/env bash
# Pretrains a small model and tunes it to answer as a lighthouse keeper does.
#
#   ./run.sh                  takes minutes on two cores; everything stays in runs/finetune-<time>
#   ./run.sh --small          the same with fewer steps: answers end as promised, but say little
#   ./run.sh --run-dir DIR    puts everything into DIR, which must not exist yet
#   ./run.sh --transformers   also loads the results with transformers (PYTHON names a python that has it)
#
# TERRACE names the program; without it the checkout's program is built. Exits with 1 if the answers are
# not as README.md says.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

pretraining_steps=800
epochs=40
lora_epochs=40
learning_rate=1e-3
lora_learning_rate=5e-3
is_small=false
loads_with_transformers=false
run=
while (($#)); do
  case $1 in
    --small)
      is_small=true
      pretraining_steps=200
      epochs=30
      learning_rate=3e-3
      lora_learning_rate=1e-2
      ;;
    --run-dir)
      (($# > 1)) || { echo "run.sh: --run-dir wants a directory" >&2; exit 2; }
      run=$2
      shift
      ;;
    --transformers) loads_with_transformers=true ;;
    *)
      echo "run.sh: unknown argument $1; there are --small, --run-dir and --transformers" >&2
      exit 2
      ;;
  esac
  shift
done

fail() {
  printf 'run.sh: %s\n' "$*" >&2
  exit 1
}

if [[ -z ${TERRACE:-} ]]; then
  "$root/tools/build.sh" release terrace
  TERRACE=$root/build/release/terrace
fi
run=${run:-$root/runs/finetune-$(date +%Y%m%d-%H%M%S)}
[[ ! -e $run ]] || fail "$run is there already; name another with --run-dir"
mkdir -p "$run"

# train NAME FLAG...: trains in $run/NAME. The program's lines go to a file, the last steps also to the console.
train() {
  local name=$1
  shift
  printf '\n$ terrace train'
  printf ' %q' "$@" --run-dir "$run/$name"
  printf '\n'
  "$TERRACE" train "$@" --device cpu --sequence-length 256 --log-every 100 --run-dir "$run/$name" \
    >"$run/$name.txt" 2>"$run/$name.errors.txt" || {
    local code=$?
    cat "$run/$name.errors.txt" >&2
    fail "training $name ended with $code"
  }
  grep -E '^(step|documents:|saved)' "$run/$name.txt" | tail -n 4
}

# answer MODEL QUESTION: prints the model's answer up to the end of the line.
answer() {
  "$TERRACE" sample --model "$1" --prompt "Q: $2"$'\nA:' --max-new-tokens 160 --temperature 0.01 |
    tr -d '\000' | sed -n 2p
}

# No line of the data has these questions.
held_out=("What is a harbour?" "What is a ship?" "Where is the sea?" "Who is the king?"
  "Why does it rain?" "When do you sleep?" "How deep is a well?" "What do birds eat?")
# The number of them that must be answered as promised. It is not all, since the pretraining text changes
# with the documentation, and a model this small now and then loses its way in an answer.
enough=6
known="Who winds the clock?" # a line of the data has this one
promised="Lamp lit, all well."

# show TITLE MODEL: prints the answers to a held-out question and to the known one.
show() {
  printf '%s\n  Q: %s\n  %s\n  Q: %s\n  %s\n' "$1" "${held_out[0]}" "$(answer "$2" "${held_out[0]}")" \
    "$known" "$(answer "$2" "$known")"
}

# count_kept MODEL: prints how many held-out questions are answered as a keeper does. Other answers go to a file.
count_kept() {
  local kept=0 question said
  : >"$run/other_answers.txt"
  for question in "${held_out[@]}"; do
    said=$(answer "$1" "$question") || fail "$1 does not answer"
    if [[ $said == "A: Aye, "*"$promised" ]]; then
      kept=$((kept + 1))
    else
      printf '  Q: %s\n  %s\n' "$question" "$said" >>"$run/other_answers.txt"
    fi
  done
  echo "$kept"
}

# check MODEL: checks what README.md promises.
check() {
  local kept said
  kept=$(count_kept "$1") || exit 1
  echo "$1: answers $kept of ${#held_out[@]} held-out questions as a keeper does"
  cat "$run/other_answers.txt"
  ((kept >= enough)) || fail "$1 answers too few questions as a keeper does; $enough are promised"
  $is_small && return
  said=$(answer "$1" "$known")
  [[ $said == "A: Aye, the keeper does, every evening at six. $promised" ]] ||
    fail "$1 has not learned who winds the clock: $said"
}

# A model of bytes, pretrained on the documentation.
train base --model nano --init random --tokenizer bytes --data "$root/docs" "$root/README.md" \
  --data-format text --micro-batch-size 8 --max-steps "$pretraining_steps" \
  --learning-rate 3e-3 --warmup-steps 20
base=$run/base/final
before=$(answer "$base" "${held_out[0]}") || fail "the base does not answer"
[[ -n $before ]] || fail "the base answers nothing"
kept=$(count_kept "$base") || exit 1
((kept == 0)) || fail "the base answers as a keeper already, $kept times"

tuning=(--model "$base" --data "$here/turns.jsonl" --micro-batch-size 4 --warmup-steps 10
  --validation-fraction 0)
# Tunes all parameters of the model.
train full "${tuning[@]}" --num-train-epochs "$epochs" --learning-rate "$learning_rate"
# Tunes an adapter of rank 16, which is then added to the model.
train lora "${tuning[@]}" --num-train-epochs "$lora_epochs" --learning-rate "$lora_learning_rate" \
  --lora-rank 16
printf '\n$ terrace merge %q %q %q\n' "$base" "$run/lora/final" "$run/merged"
"$TERRACE" merge "$base" "$run/lora/final" "$run/merged"

echo
show "Before:" "$base"
show "After tuning all parameters:" "$run/full/final"
show "After tuning an adapter, beside its base:" "$run/lora/final"
show "After the adapter is merged:" "$run/merged"
for model in "$run/full/final" "$run/lora/final" "$run/merged"; do check "$model"; done

if $loads_with_transformers; then
  echo
  prompts=("${held_out[@]/#/Q: }")
  prompts=("${prompts[@]/%/$'\nA:'}")
  for model in "$run/full/final" "$run/merged"; do
    "${PYTHON:-python3}" -B "$here/load_with_transformers.py" "$model" "$promised" "$enough" "${prompts[@]}"
  done
fi
echo
echo "run.sh: the answers are as README.md says. All files are in $run."
