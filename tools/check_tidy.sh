#!/usr/bin/env bash
# Fails if clang-tidy-19 finds what .clang-tidy lists, or if no target builds a source:
# tools/check_tidy.sh [FILE...]. Without FILE it checks all sources outside tests/: the tests would double
# the time of the gate, and the compiler's warnings and the sanitizers already watch them.
#
# Needs the debug preset configured and built (its compile commands, and its record of which file includes
# which). There several sources are one translation unit, so that the system's headers, which are most of
# clang-tidy's input, are read once for all of them. A unit that was clean is not checked again until one of
# our sources or headers in it, its command line or the rules change: the cache has an empty file that is
# named by the hash of all these. All checkouts share the cache: TERRACE_TIDY_CACHE, or terrace/tidy in the
# user's cache folder ($XDG_CACHE_HOME, else ~/.cache).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=build/debug
cache=${TERRACE_TIDY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/terrace/tidy}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! command -v clang-tidy-19 >/dev/null; then
  echo "check_tidy: clang-tidy-19 is not installed; run tools/install-deps.sh as root" >&2
  exit 4
fi
if [[ ! -f $build/compile_commands.json ]]; then
  echo "check_tidy: the debug preset is not configured; run tools/build.sh debug tests_sanitized" >&2
  exit 4
fi
mkdir -p "$cache"

# Writes "unit <tab> command" for each translation unit; CMake writes one key on each line.
awk -v root="$PWD/" '
  # Takes the root out of a text: a unit is the same in every checkout.
  function without_root(text,   at, folder, rest) {
    folder = substr(root, 1, length(root) - 1)
    while ((at = index(text, folder)) > 0) {
      rest = rest substr(text, 1, at - 1) "."
      text = substr(text, at + length(folder))
    }
    return rest text
  }
  /^ *"command": / { command = $0 }
  /^ *"file": / {
    file = $0
    sub(/^ *"file": "/, "", file)
    sub(/",?$/, "", file)
    if (index(file, root) != 1) next
    print substr(file, length(root) + 1) "\t" without_root(command)
  }' "$build/compile_commands.json" | sort -u -t $'\t' -k1,1 >"$work/commands"

# Writes "source <tab> unit" with the first unit that has the source, alone or joined with others by CMake.
cut -f1 "$work/commands" | while read -r unit; do
  case $unit in
    */Unity/unity_*) sed -n "s|^#include \"$PWD/\(.*\)\"$|\1\t$unit|p" "$unit" ;;
    build/*) ;;
    *) printf '%s\t%s\n' "$unit" "$unit" ;;
  esac
done | sort -u -t $'\t' -k1,1 >"$work/units"
cut -f1 "$work/units" >"$work/built"

./tools/source_files.sh >"$work/all"
if (($#)); then printf '%s\n' "$@" | sort -u >"$work/wanted"; else grep -v '^tests/' "$work/all" >"$work/wanted"; fi

# Sources for CUDA, NCCL and cpp-httplib are only built where these are, and the sources that replace them
# only elsewhere. So either may be in no target. An example is a program of its own, which its users build.
grep '\.cc$' "$work/wanted" | grep -v -e '^examples/' >"$work/sources" || true
comm -23 "$work/sources" "$work/built" | grep -v -e '/cuda/' -e '/nccl/' -e '/live/' >"$work/orphans" || true
failed=0
if [[ -s $work/orphans ]]; then
  sed 's/$/: is in no target of the build/' "$work/orphans" >&2
  failed=1
fi
comm -12 "$work/sources" "$work/built" >"$work/checked"
join -t $'\t' -o 2.2 "$work/checked" "$work/units" | sort -u >"$work/checked_units"

# Writes "unit <tab> file" for each file of ours that a unit includes, directly or through others.
ninja -C "$build" -t deps | awk -v root="$PWD/" -v build="$build" '
  /^[^ ]/ { unit = ""; next }
  NF {
    path = $1
    sub(/^\.\.\/\.\.\//, root, path)
    if (path !~ /^\//) path = root build "/" path
    if (index(path, root) != 1) next
    path = substr(path, length(root) + 1)
    if (unit == "") unit = path; else print unit "\t" path
  }' | sort -u >"$work/includes"
xargs -r -d '\n' sha256sum <"$work/all" | awk '{ print $2 "\t" $1 }' >"$work/hashes"

# Writes "key <space> unit" for each unit to be checked.
rules=$({ clang-tidy-19 --version; find . -name build -prune -o -name .clang-tidy -exec cat {} +; } | sha256sum)
awk -F '\t' -v rules="$rules" '
  FILENAME ~ /hashes$/ { hash[$1] = $2; next }
  FILENAME ~ /commands$/ { command[$1] = $2; next }
  FILENAME ~ /includes$/ { text[$1] = text[$1] " " hash[$2]; next }
  { print $1 "\t" rules hash[$1] command[$1] text[$1] }
' "$work/hashes" "$work/commands" "$work/includes" "$work/checked_units" |
  while IFS=$'\t' read -r unit text; do
    key=$(sha256sum <<<"$text")
    key=${key%% *}
    if [[ ! -e $cache/$key ]]; then printf '%s %s\n' "$key" "$unit"; fi
  done >"$work/stale"

# g++ has omp.h, which clang lacks. clang does not know g++'s attribute malloc(deallocator).
gcc_include=$(g++ -print-file-name=include)

# shellcheck disable=SC2317  # xargs calls it
check_one() {
  local key=$1 unit=$2 report
  # clang-tidy writes the counts of warnings that it suppresses in the system's headers to standard error.
  if report=$(clang-tidy-19 --quiet -p "$build" \
    --extra-arg=-idirafter"$gcc_include" '--extra-arg=-D__malloc__(...)=__malloc__' "$unit" 2>"$work/$key.log"); then
    touch "$cache/$key"
  else
    printf '%s\n' "$report" | sed "s|^$PWD/||"
    grep -v -e 'warnings\? generated' -e '^Suppressed' "$work/$key.log" || true
    return 1
  fi
}
export -f check_one
export build cache work gcc_include

echo "check_tidy: $(wc -l <"$work/checked") sources in $(wc -l <"$work/checked_units") units, $(wc -l <"$work/stale") units to be looked at"
# shellcheck disable=SC2016  # the shell that xargs starts expands them
xargs -r -P "$(./tools/jobs.sh)" -n 2 bash -c 'check_one "$0" "$1"' <"$work/stale" >&2 || failed=1
if ((failed)); then echo "check_tidy: failed" >&2; fi
exit "$failed"
