#!/usr/bin/env bash
# Trains with two MPI ranks of one thread each, one of which may use only half of a core (a quota of
# the cgroup controller cpu), with equal parts of a step and with --rank-shares auto. The ideal is
# computed from the times of each rank alone, as if the two shared the work without waiting.
#
# bench/uneven_ranks.sh PROGRAM MODEL TEXT
#
# MODEL is a directory with config.json or a preset, TEXT a text file whose bytes are tokens. Prints a
# JSON document: the median seconds of a step, the speed of auto relative to the ideal (1 is as good
# as it gets), and the line of each run that says which rank the others waited for. Exits 77 without
# mpirun, or where no group of processes can be given a quota (needs root).
set -euo pipefail

program=$(realpath "$1")
model=$2
text=$(realpath "$3")
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/half_core.sh"

# Micro-batches of a step on each rank, if they are equal.
each=6
# train NAME FLAGS... -- the words before the second rank's program; none: one rank alone.
train() {
  local name=$1
  shift
  "$program" train --model "$model" --init random --data "$text" --tokenizer bytes --sequence-length 256 \
    --precision fp32 --max-steps 6 --validation-fraction 0 --threads 1 --host-memory 1GiB --progress off \
    --checkpoint-every 1000 --run-dir "$work/$name" "$@"
}
waiting() { grep -oE 'rank [0-9]+ makes the others wait.*|for no one rank most' "$work/$1.log" | tail -1; }

export -f train
export program model text work
ranks() {
  local name=$1
  shift
  mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 \
    -n 1 bash -c "train $name --gradient-accumulation-steps $each $*" : \
    -n 1 "$work/at-half" bash -c "train $name --gradient-accumulation-steps $each $*" >"$work/$name.log" 2>&1 ||
    { cat "$work/$name.log" >&2; return 1; }
}

train whole --gradient-accumulation-steps $each >"$work/whole.log" 2>&1
"$work/at-half" bash -c "train half --gradient-accumulation-steps $each" >"$work/half.log" 2>&1 || { cat "$work/half.log" >&2; exit 1; }
ranks equal
ranks auto --rank-shares auto
awk -v whole="$(median whole)" -v half="$(median half)" -v equal="$(median equal)" -v auto="$(median auto)" \
  -v equal_waits="$(waiting equal)" -v auto_waits="$(waiting auto)" \
  -v shares="$(grep -oE 'data-parallel rank: [0-9, ]+' "$work/auto.log" | head -1 | sed 's/.*: //')" 'BEGIN {
    ideal = 2 / (1 / whole + 1 / half)
    printf "{\"schema\": \"terrace.uneven_ranks/1\", \"alone_step_s\": [%s, %s], \"equal_step_s\": %s, ", whole, half, equal
    printf "\"auto_step_s\": %s, \"ideal_step_s\": %.4f, \"auto_of_ideal\": %.3f, \"auto_to_equal\": %.3f, ", \
      auto, ideal, ideal / auto, equal / auto
    printf "\"micro_batches\": [%s], \"equal_waits\": \"%s\", \"auto_waits\": \"%s\"}\n", shares, equal_waits, auto_waits
  }'
