# Two network namespaces as two hosts, which reach each other over a virtual cable only. To be
# sourced by bash scripts; needs root, iproute2 and, unless `needs_mpirun` is "no", mpirun. Exits 77 where something is
# missing.
# Gives them `work`, a directory, which goes with the hosts when the script ends, and the functions
# at the end of the file.

id=$$
hosts=(10.213.77.1 10.213.77.2)
work=$(mktemp -d)

skip() {
  echo "skipped: $1" >&2
  exit 77
}

clean() {
  for host in 0 1; do ip netns delete "terrace$id-$host" 2>/dev/null || true; done
  rm -rf "$work"
}
trap clean EXIT

[[ ${needs_mpirun-} == no ]] || command -v mpirun >/dev/null || skip "there is no mpirun"
command -v ip >/dev/null || skip "there is no ip (iproute2)"
[[ $(id -u) == 0 ]] || skip "network namespaces need root"
ip netns add "terrace$id-0" 2>/dev/null || skip "network namespaces are not allowed here"
ip netns add "terrace$id-1"
ip link add "terr$id-0" type veth peer name "terr$id-1" 2>/dev/null ||
  skip "virtual network cables are not allowed here"
for host in 0 1; do
  ip link set "terr$id-$host" mtu 9000 netns "terrace$id-$host"
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

export ASAN_OPTIONS=detect_leaks=0
mpi=(mpirun -x ASAN_OPTIONS --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1
  --mca btl self,tcp,vader)
network=(--mca oob_tcp_if_include 10.213.77.0/24 --mca btl_tcp_if_include 10.213.77.0/24
  --mca plm_rsh_agent "$work/on")

# on_one_host RANKS COMMAND...
on_one_host() {
  local ranks=$1
  shift
  "${mpi[@]}" -n "$ranks" "$@"
}

# on_two_hosts RANKS COMMAND...: half of the ranks on each. No word of the command has a space.
on_two_hosts() {
  local ranks=$1
  shift
  "$work/on" "${hosts[0]}" "${mpi[*]} ${network[*]}" \
    "--host ${hosts[0]}:$((ranks / 2)),${hosts[1]}:$((ranks / 2)) -n $ranks $*"
}

# carried_bytes [HOST]: bytes that went from a host to the other so far, from host 0 unless given.
carried_bytes() {
  local host=${1:-0}
  ip netns exec "terrace$id-$host" cat "/sys/class/net/terr$id-$host/statistics/tx_bytes"
}
