# For scripts that measure trainings by two MPI ranks, one of which may use only half of a core (a quota of the
# cgroup controller cpu). To be sourced. Gives them `work`, a directory, which goes when the script ends;
# "$work/at-half", a program that starts a command within the quota; and the functions below. Exits 77 without
# mpirun, or where no group of processes can be given a quota (needs root).

work=$(mktemp -d)
group=
clean() {
  [[ -z $group ]] || rmdir "$group" 2>/dev/null || true
  rm -rf "$work"
}
trap clean EXIT
skip() {
  echo "skipped: $1" >&2
  exit 77
}

command -v mpirun >/dev/null || skip "there is no mpirun"
for parent in /sys/fs/cgroup/cpu /sys/fs/cgroup; do
  group="$parent/terrace-half-$$"
  mkdir "$group" 2>/dev/null || continue
  if echo 50000 2>/dev/null >"$group/cpu.cfs_quota_us" || echo "50000 100000" 2>/dev/null >"$group/cpu.max"; then
    break
  fi
  rmdir "$group"
  group=
done
[[ -n $group ]] || skip "no group can be given a quota of processor time"

cat >"$work/at-half" <<END
#!/usr/bin/env bash
echo \$\$ >"$group/cgroup.procs"
exec "\$@"
END
chmod +x "$work/at-half"

# median NAME [ROWS]: the median seconds of the last steps of a run, without the first.
median() {
  sed -E 's/.*"step_s":([^,]*),.*/\1/' "$work/$1/metrics.jsonl" | tail -n +2 | tail -n "${2:-1000}" | sort -g |
    awk '{ rows[NR] = $1 } END { print NR % 2 ? rows[(NR + 1) / 2] : (rows[NR / 2] + rows[NR / 2 + 1]) / 2 }'
}
