#!/usr/bin/env bash
# Starts a command as several ranks of this host, with the variables that torchrun sets.
#
# tests/e2e/socket_ranks.sh RANKS COMMAND...
#
# Exits with the largest exit code of the ranks.
set -uo pipefail

ranks=$1
shift
export WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1
# Below the ports that the system gives away; 16 more are tried if it is in use.
export MASTER_PORT=$((10000 + $$ * 17 % 22000))
export TORCHELASTIC_RUN_ID=socket-ranks-$$
processes=()
for ((rank = 0; rank < ranks; ++rank)); do
  RANK=$rank LOCAL_RANK=$rank "$@" &
  processes+=($!)
done
trap 'kill "${processes[@]}" 2>/dev/null' TERM INT HUP

largest=0
for process in "${processes[@]}"; do
  # A signal ends the wait, and not the process.
  wait "$process"
  code=$?
  while kill -0 "$process" 2>/dev/null; do
    wait "$process"
    code=$?
  done
  ((code > largest)) && largest=$code
done
exit "$largest"
