#!/usr/bin/env bash
# Prints how many compilers may run at once: the number of processors that this process may use (affinity
# mask and cgroup quota), limited by memory at 1.5 GiB for each compiler. Always prints at least 1.
set -euo pipefail

# nproc would heed OMP_NUM_THREADS, which is for something else.
cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
if read -r quota period 2>/dev/null </sys/fs/cgroup/cpu.max && [[ $quota != max ]]; then
  allowed=$(((quota + period - 1) / period))
  if ((allowed < cores)); then cores=$allowed; fi
fi

memory_kib=$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)
if read -r limit 2>/dev/null </sys/fs/cgroup/memory.max && [[ $limit != max ]]; then
  used=$(awk '$1 == "anon" { print $2 }' /sys/fs/cgroup/memory.stat 2>/dev/null || echo 0)
  free_kib=$(((limit - ${used:-0}) / 1024))
  if ((free_kib < memory_kib)); then memory_kib=$free_kib; fi
fi

jobs=$((memory_kib / (1536 * 1024)))
if ((jobs > cores)); then jobs=$cores; fi
if ((jobs < 1)); then jobs=1; fi
echo "$jobs"
