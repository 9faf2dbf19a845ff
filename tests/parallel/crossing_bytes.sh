#!/usr/bin/env bash
# Two network namespaces act as two hosts of two or four ranks each. Counts the bytes that cross the
# cable between them in each direction, and compares them with the formulas of docs/parallel.md.
# Prints a line for each collective. Exit code 1: a count is more than 3 % from its formula.
#
# tests/parallel/crossing_bytes.sh CROSSING_BYTES
#
# Exits 77 if namespaces cannot be made (needs root and iproute2) or there is no mpirun.
set -euo pipefail

program=$(realpath "$1")
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/two_hosts_network.sh"

mib=16
calls=6
failed=0

# count RANKS KIND TYPE HIERARCHICAL FORTH BACK: the last two are the formulas for the bytes from the
# first host to the second and back, as multiples of the data of a call.
count() {
  local before=("$(carried_bytes 0)" "$(carried_bytes 1)")
  on_two_hosts "$1" "$program" "$2" "$3" "$mib" "$calls" "$4"
  local after=("$(carried_bytes 0)" "$(carried_bytes 1)")
  awk -v what="$1 ranks, $2 of $3, $4" -v whole=$((mib * calls << 20)) -v forth="$5" -v back="$6" \
    -v first=$((after[0] - before[0])) -v second=$((after[1] - before[1])) 'BEGIN {
      first /= whole
      second /= whole
      printf "%-38s forth %.3f (formula %.3f), back %.3f (formula %.3f)\n",
        what, first, forth, second, back
      off = first > forth * 1.03 || first < forth || second > back * 1.03 || second < back
      exit off
    }' || failed=1
}

for half in 2 4; do
  ranks=$((2 * half))
  # Between all ranks, each rank of a host sends its part to each rank of the other. Through one rank
  # of a host, a part crosses once.
  count $ranks all_gather fp32 off $((half / 2)) $((half / 2))
  count $ranks all_gather fp32 auto 0.5 0.5
  # In a chain the sums of all parts go from the first host to the second, which sends back half of
  # the results.
  count $ranks reduce_scatter fp32 off $((half / 2)) $((half / 2))
  count $ranks reduce_scatter fp32 auto 1 0.5
  count $ranks all_reduce fp32 off "$half" "$half"
  count $ranks all_reduce fp32 auto 1.5 1
done
# Sums of bf16 cross as fp32, so the chain is taken with four ranks on a host, and not with two.
count 4 reduce_scatter bf16 auto 1 1
count 8 reduce_scatter bf16 auto 2 0.5
exit $failed
