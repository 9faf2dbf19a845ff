#!/usr/bin/env bash
# Runs bench collective between two hosts, which are network namespaces of this machine with a
# virtual cable between them, beside the MPI library's own collectives over the same cable. The
# kernel copies the data that crosses it, on the processors that the ranks compute on. So the ratios
# say how the two compare, and the rates say little of a real network.
#
# bench/two_hosts.sh PROGRAM [RANKS [OPTIONS of bench collective...]]
#
# Prints the document of terrace bench collective --json. RANKS is 2 unless given, half of them on
# each host. Exits 77 where namespaces cannot be made (needs root and iproute2) or without mpirun.
set -euo pipefail

program=$(realpath "$1")
ranks=${2:-2}
shift $(($# < 2 ? $# : 2))
. "$(dirname "${BASH_SOURCE[0]}")/../tests/e2e/two_hosts_network.sh"

on_two_hosts "$ranks" "$program" bench collective --json "$@"
