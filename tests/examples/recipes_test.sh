#!/usr/bin/env bash
# Tunes a small model with each recipe of examples/recipes, and asks it: recipes_test.sh SOURCE TERRACE
set -euo pipefail
recipes=$1/examples/recipes
terrace=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

fail() {
  printf 'recipes_test.sh: %s\n' "$*" >&2
  exit 1
}

# A model without a chat template, as base models have none, and conversations about one thing.
seq 1 3000 >text.txt
"$terrace" train --model nano --init random --data text.txt --sequence-length 64 --max-steps 2 \
  --device cpu --run-dir base >/dev/null
for i in $(seq 0 79); do
  printf '{"messages": [{"role": "user", "content": "What is %d?"}, {"role": "assistant", "content": "A number."}]}\n' \
    $((i % 10))
done >chats.jsonl

# run RECIPE RATE FLAG...: trains with the recipe, and checks what the data has chosen.
run() {
  local recipe=$1 rate=$2
  shift 2
  "$terrace" train --config "$recipes/$recipe.toml" --model base/final --data chats.jsonl --chat-template chatml \
    --device cpu --run-dir "$recipe" "$@" >"$recipe.txt" 2>"$recipe.errors" ||
    { cat "$recipe.errors" >&2; fail "$recipe does not train"; }
  grep -q '^chosen by the data: --sequence-length 128 .*--num-train-epochs 3 .*--learning-rate '"$rate" "$recipe.txt" ||
    { cat "$recipe.txt" >&2; fail "$recipe: the data has not chosen $rate"; }
  # Each setting of the recipe is in effect.
  local line
  while IFS= read -r line; do
    grep -qxF "$line" "$recipe/config.toml" || fail "$recipe: config.toml has no line $line"
  done < <(grep -E '^[a-z]' "$recipes/$recipe.toml" | sed -E 's/= ([0-9]+)\.0$/= \1/')
  [[ -s $recipe/final/chat_template.jinja ]] || fail "$recipe: final/ has no chat template"
}

mkdir drive
for recipe in "$recipes"/*.toml; do
  case $(basename "$recipe" .toml) in
    full) run full 1e-5 ;;
    lora) run lora 2e-4 ;;
    nf4) run nf4 2e-4 ;;
    larger-than-memory) run larger-than-memory 1e-5 --nvme drive ;;
    *) fail "$recipe is not tested" ;;
  esac
done

# With a rate that suits so small a model, the answer is the one that was taught.
"$terrace" train --config "$recipes/full.toml" --model base/final --data chats.jsonl --chat-template chatml \
  --device cpu --learning-rate 1e-2 --num-train-epochs 12 --run-dir answers >/dev/null 2>&1
answer=$(printf 'What is 7?\n' | "$terrace" chat answers/final --temperature 0 --max-new-tokens 30)
[[ $answer == "A number."* ]] || fail "the answer is: $answer"
