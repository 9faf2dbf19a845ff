#!/usr/bin/env bash
# Fuzzes the code that reads files, with libFuzzer under AddressSanitizer and UndefinedBehaviorSanitizer.
#
#   tools/fuzz.sh [SECONDS [NAME...]]   runs each fuzzer, or the named ones, for SECONDS; one on each core
#
# Without SECONDS each fuzzer begins from the same seed and takes 20 s. With SECONDS the seed differs each time.
# Needs clang-19, libclang-rt-19-dev and libomp-19-dev, which apt-get installs. The names are the folders of
# tests/fuzz/corpus, with whose files a fuzzer begins. The inputs that it finds go to build/fuzz/found/NAME, and it
# goes on from them the next time. A file that ends a fuzzer is build/fuzz/crash-NAME-*; the program
# build/fuzz/tests/fuzz/fuzz_NAME reads it again. Exits with 1 if there is such a file.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

seed=$((${#} ? 0 : 1))  # 0: libFuzzer draws one
seconds=${1:-20}
[[ $seconds =~ ^[0-9]+$ ]] || { echo "fuzz.sh: $seconds is no number of seconds" >&2; exit 2; }
shift || true
names=("$@")
((${#names[@]})) || mapfile -t names < <(ls tests/fuzz/corpus)

command -v clang++-19 >/dev/null || { echo "fuzz.sh: clang++-19 is not here: apt-get install clang-19 libclang-rt-19-dev libomp-19-dev" >&2; exit 4; }
./tools/build.sh fuzz fuzzers || exit

# Most fuzzers write each input to a file.
[[ -w /dev/shm ]] && export TMPDIR=${TMPDIR:-/dev/shm}
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export seconds seed

# fuzz NAME: runs a fuzzer. Prints its result at the end, in one piece, since others run beside it.
fuzz() {
  local name=$1 outcome=held
  mkdir -p "build/fuzz/found/$name"
  "build/fuzz/tests/fuzz/fuzz_$name" -max_total_time="$seconds" -timeout=10 -seed="$seed" -rss_limit_mb=2048 \
    -print_final_stats=1 -artifact_prefix="build/fuzz/crash-$name-" \
    "build/fuzz/found/$name" "tests/fuzz/corpus/$name" >"build/fuzz/$name.log" 2>&1 || outcome=FAILED
  printf '== %s, %s s: %s\n%s\n' "$name" "$seconds" "$outcome" \
    "$(grep -E '^(stat::number_of_executed_units|SUMMARY|does not hold)|ERROR:' "build/fuzz/$name.log")"
  [[ $outcome == held ]]
}
export -f fuzz

for name in "${names[@]}"; do
  [[ -x build/fuzz/tests/fuzz/fuzz_$name ]] || { echo "fuzz.sh: there is no fuzzer $name" >&2; exit 2; }
done
printf '%s\n' "${names[@]}" | xargs -P "$(./tools/jobs.sh)" -I{} bash -c 'fuzz "$1"' _ {} ||
  { echo "fuzz.sh: found something, see above and build/fuzz/NAME.log" >&2; exit 1; }
