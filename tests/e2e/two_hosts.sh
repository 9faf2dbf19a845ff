#!/usr/bin/env bash
# Two network namespaces as two hosts, which reach each other over a virtual cable only, and mpirun
# over them: the losses must be those of as many ranks on one host.
#
# tests/e2e/two_hosts.sh PROGRAM
#
# Exits 77 where namespaces cannot be made (needs root and iproute2) or there is no mpirun.
set -euo pipefail

program=$(realpath "$1")
id=$$
hosts=(10.213.77.1 10.213.77.2)
work=$(mktemp -d)

skip() {
  echo "skipped: $1"
  exit 77
}

clean() {
  for host in 0 1; do ip netns delete "terrace$id-$host" 2>/dev/null || true; done
  rm -rf "$work"
}
trap clean EXIT

command -v mpirun >/dev/null || skip "there is no mpirun"
command -v ip >/dev/null || skip "there is no ip (iproute2)"
[[ $(id -u) == 0 ]] || skip "network namespaces need root"
ip netns add "terrace$id-0" 2>/dev/null || skip "network namespaces are not allowed here"
ip netns add "terrace$id-1"
ip link add "terr$id-0" type veth peer name "terr$id-1" 2>/dev/null ||
  skip "virtual network cables are not allowed here"
for host in 0 1; do
  ip link set "terr$id-$host" netns "terrace$id-$host"
  ip -n "terrace$id-$host" address add "${hosts[host]}/24" dev "terr$id-$host"
  ip -n "terrace$id-$host" link set "terr$id-$host" up
  ip -n "terrace$id-$host" link set lo up
done

# on ADDRESS COMMAND...: what mpirun takes for ssh. A host has a name of its own, too.
cat >"$work/on" <<END
#!/usr/bin/env bash
address=\$1
shift
exec ip netns exec terrace$id-\$((\${address##*.} - 1)) \\
  unshare --uts sh -c "hostname host-\${address##*.}; \$*"
END
chmod +x "$work/on"

words=(a model that is larger than the memory of one machine learns from text on two hosts)
for ((i = 0; i < 4000; ++i)); do
  printf '%s ' "${words[(i * i + i / 7) % ${#words[@]}]}"
done >"$work/text.txt"

train=("$program" train --model nano --data "$work/text.txt" --sequence-length 64 --max-steps 12
  --gradient-accumulation-steps 4 --validation-fraction 0 --threads 1 --host-memory 256MiB
  --collective-timeout 60 --progress off)
export ASAN_OPTIONS=detect_leaks=0
mpi=(mpirun -x ASAN_OPTIONS --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1
  --mca btl self,tcp,vader)
network=(--mca oob_tcp_if_include 10.213.77.0/24 --mca btl_tcp_if_include 10.213.77.0/24
  --mca plm_rsh_agent "$work/on" --host "${hosts[0]}:2,${hosts[1]}:2")

# The columns that must be equal to the last bit.
losses() {
  sed -E 's/.*"loss":([^,]*),"grad_norm":([^,]*),.*/\1 \2/' "$1/metrics.jsonl"
}

# From the first host to the second, so far.
carried_bytes() {
  ip netns exec "terrace$id-0" cat "/sys/class/net/terr$id-0/statistics/tx_bytes"
}

compare() {
  local name=$1
  shift
  "${mpi[@]}" -n 4 "${train[@]}" "$@" --run-dir "$work/one-$name" >"$work/one.log" 2>&1 ||
    { cat "$work/one.log"; return 1; }
  "$work/on" "${hosts[0]}" "${mpi[*]} ${network[*]} -n 4 ${train[*]} $* --run-dir $work/two-$name" \
    >"$work/two.log" 2>&1 || { cat "$work/two.log"; return 1; }
  local carried
  carried=$(carried_bytes)
  if ((carried < 1000000)); then
    echo "$name: only $carried bytes went from one host to the other"
    return 1
  fi
  if ! diff <(losses "$work/one-$name") <(losses "$work/two-$name"); then
    echo "$name: two hosts have other losses than one"
    return 1
  fi
  local steps
  steps=$(wc -l <"$work/two-$name/metrics.jsonl")
  echo "$name: $steps steps on two hosts have the losses of one ($carried bytes over the cable)"
}

compare data-parallel --zero-stage 3
compare pipeline --zero-stage 1 --pipeline-parallel 2 --pipeline-schedule interleaved
