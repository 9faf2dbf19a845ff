#!/usr/bin/env bash
# Trains with two pipeline stages of one thread each, as MPI ranks, the second of which may use only half of a
# core. Compares the cut that --stage-speeds auto makes after its first steps with every cut that a sweep of
# given speeds makes.
#
# bench/uneven_stages.sh PROGRAM MODEL TEXT
#
# MODEL is a directory with config.json or a preset, TEXT a text file whose bytes are tokens. Prints a JSON
# document: the median seconds of a step with the model cut for equal speeds, cut by auto, and for each speed
# of the sweep; the ideal, as if the ranks shared the work of a step without waiting; and the bubble, the share
# of a step in which the ideal would already have ended. Exits 77 as half_core.sh says.
set -euo pipefail

program=$(realpath "$1")
model=$2
text=$(realpath "$3")
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/half_core.sh"

# train NAME STEPS FLAGS...
train() {
  local name=$1 steps=$2
  shift 2
  "$program" train --model "$model" --init random --data "$text" --tokenizer bytes --sequence-length 256 \
    --precision fp32 --max-steps "$steps" --validation-fraction 0 --threads 1 --host-memory 2GiB --progress off \
    --gradient-accumulation-steps 12 --checkpoint-every 1000 --run-dir "$work/$name" "$@"
}
export -f train
export program model text work
stages() {
  local name=$1 steps=$2
  shift 2
  mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 \
    -n 1 bash -c "train $name $steps --pipeline-parallel 2 $*" : \
    -n 1 "$work/at-half" bash -c "train $name $steps --pipeline-parallel 2 $*" >"$work/$name.log" 2>&1 ||
    { cat "$work/$name.log" >&2; return 1; }
}

train whole 4 >"$work/whole.log" 2>&1
stages equal 5
stages auto 16 --stage-speeds auto
cuts=
for speed in 0.2 0.3 0.4 0.5 0.6 0.7 0.8; do
  stages "cut-$speed" 5 --stage-speeds 1 $speed
  cuts+=" $speed=$(median "cut-$speed")"
done
awk -v whole="$(median whole)" -v equal="$(median equal)" -v auto="$(median auto 6)" -v cuts="$cuts" \
  -v speeds="$(grep -oE 'speeds [0-9., ]+' "$work/auto.log" | tail -1 | sed 's/speeds //; s/[,. ]*$//')" 'BEGIN {
    ideal = whole / 1.5
    best = equal
    count = split(cuts, list, " ")
    printf "{\"schema\": \"terrace.uneven_stages/1\", \"whole_step_s\": %s, \"equal_step_s\": %s, ", whole, equal
    for (i = 1; i <= count; ++i) {
      split(list[i], cut, "=")
      if (cut[2] < best) best = cut[2]
      printf "%s[%s, %s]", i == 1 ? "\"speed_and_step_s\": [" : ", ", cut[1], cut[2]
    }
    printf "], \"auto_speeds\": \"%s\", \"auto_step_s\": %s, \"best_step_s\": %s, ", speeds, auto, best
    printf "\"auto_to_best\": %.3f, \"auto_bubble\": %.3f, \"best_bubble\": %.3f}\n", \
      auto / best, 1 - ideal / auto, 1 - ideal / best
  }'
