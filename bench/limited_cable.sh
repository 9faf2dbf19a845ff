# For scripts that measure trainings between the two hosts of tests/e2e/two_hosts_network.sh while their
# cable is limited to a rate. Source this after that file. Uses its variables, and `ranks` and `steps`.

limit_rate() {
  for host in 0 1; do
    ip netns exec "terrace$id-$host" tc qdisc replace dev "terr$id-$host" root tbf rate "$1" \
      burst 256kb latency 100ms
  done
}
lift_limit() {
  for host in 0 1; do
    ip netns exec "terrace$id-$host" tc qdisc delete dev "terr$id-$host" root 2>/dev/null || true
  done
}

# measure NAME RATE COMMAND ARGUMENTS...: COMMAND takes the number of steps before its arguments. The
# bytes of a step are the difference between a run of one step and one of several.
measure() {
  local name=$1 rate=$2 command=$3
  shift 3
  lift_limit
  local start=("$(carried_bytes 0)" "$(carried_bytes 1)")
  "$command" 1 "$@" >/dev/null || return 1
  local one=("$(carried_bytes 0)" "$(carried_bytes 1)") seconds
  limit_rate "$rate"
  seconds=$("$command" "$steps" "$@") || return 1
  local all=("$(carried_bytes 0)" "$(carried_bytes 1)")
  printf '{"name": "%s", "ranks": %d, "rate": "%s", "step_s": %s, "forth_bytes": %d, "back_bytes": %d}\n' \
    "$name" "$ranks" "$rate" "$seconds" \
    $(((all[0] - 2 * one[0] + start[0]) / (steps - 1))) $(((all[1] - 2 * one[1] + start[1]) / (steps - 1)))
}

# gloo_ranks STEPS STRATEGY MODEL: trains with peers/gloo_ranks.py, and prints the median seconds of the steps
# after the first. `python` has torch.
gloo_ranks() {
  local processes=() warmup=$(($1 > 1 ? 1 : 0))
  for ((rank = 0; rank < ranks; ++rank)); do
    local host=$((rank * 2 / ranks))
    ip netns exec "terrace$id-$host" env RANK=$rank WORLD_SIZE="$ranks" MASTER_ADDR="${hosts[0]}" MASTER_PORT=29511 \
      GLOO_SOCKET_IFNAME="terr$id-$host" "$python" "$here/peers/gloo_ranks.py" --model "$3" --data "$text" \
      --strategy "$2" --warmup $warmup --steps $(($1 - warmup)) >"$work/gloo-$rank" 2>"$work/gloo-$rank.log" &
    processes+=($!)
  done
  for process in "${processes[@]}"; do
    wait "$process" || { tail -5 "$work"/gloo-*.log >&2; return 1; }
  done
  "$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["step_s"])' "$work/gloo-0"
}
