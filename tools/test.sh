#!/usr/bin/env bash
# Goes from a bare machine to a tested build: packages, release build, tests.
#
#   tools/test.sh          tells a newcomer that the program builds, and does what it should; runs all
#                          tests except the ones that compare whole runs at length
#   tools/test.sh --all    also runs these, the format, clang-tidy, the sanitizers, the CUDA build and the
#                          demo; continuous integration runs this
#   tools/test.sh --long   also runs the tests that take minutes (label long); with or without --all
#   tools/test.sh --python also runs the tests that need Python's packages (label python), which it installs
#                          outside the checkout: 6 GB from the package index; with or without the others
#
# docs/testing.md lists the parts. Goes on after a failure, so that one run tells everything. At the end it
# prints the names and first words of failed tests, if there are any, the seconds of each part, and ctest's
# summary of the release preset. Exits with 0 if everything passed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

runs_all=false
runs_python=false
release_tests=newcomer
for argument in "$@"; do
  case $argument in
    --all) runs_all=true ;;
    --long) release_tests=release-long ;;
    --python) runs_python=true ;;
    *)
      echo "test.sh: unknown argument $argument; there are --all, --long and --python" >&2
      exit 2
      ;;
  esac
done
if $runs_all && [[ $release_tests == newcomer ]]; then release_tests=release; fi

# The folder where the CUDA toolkit installs itself, for shells whose PATH does not have it.
cuda_home=${CUDA_HOME:-/usr/local/cuda}
failures=()
table=()

# part NAME COMMAND...: runs the command, and remembers whether it failed and how long it took.
part() {
  local name=$1 begin=$SECONDS outcome=held
  shift
  printf '\n== %s\n' "$name"
  if ! "$@"; then
    failures+=("$name")
    outcome=FAILED
  fi
  table+=("$(printf '%6d s  %-6s  %s' $((SECONDS - begin)) "$outcome" "$name")")
  printf '== %s: %s (%d s)\n' "$name" "$outcome" $((SECONDS - begin))
}

# gate NAME PROGRAM SCRIPT: runs a gate. If the program that it needs is not here, says so and leaves it out;
# only in continuous integration must it run.
gate() {
  local name=$1 program=$2 script=$3
  if command -v "$program" >/dev/null || [[ ${CI:-} == true ]]; then
    part "$name" "$script"
  else
    printf '\n== %s: left out, %s is not to be had here\n' "$name" "$program"
  fi
}

# timely MINUTES NAME COMMAND...: runs the command. Continuous integration ends a run after 90 minutes, and
# where nothing is in the compiler's cache the builds alone take most of them. There, a part that would begin
# later than that is left out. The next run finds the cache filled, and has it.
timely() {
  local minutes=$1 name=$2
  shift 2
  if [[ ${CI:-} == true ]] && ((SECONDS > minutes * 60)); then
    printf '\n== %s: left out, %d minutes have passed\n' "$name" $((SECONDS / 60))
    table+=("$(printf '%6d s  %-6s  %s' 0 "none" "$name: left out")")
    return
  fi
  "$@"
}

# sanitizer_tests PRESET TARGET MINUTES NAME: builds the tests of a preset and runs them. In continuous integration
# the build has until this minute; otherwise its tests are left out, and what it has compiled is in the cache.
sanitizer_tests() {
  local preset=$1 target=$2 minutes=$3 name=$4 state=0 begin=$SECONDS
  local seconds=$((minutes * 60 - SECONDS))
  if [[ ${CI:-} != true ]]; then seconds=0; fi  # timeout: no limit
  printf '\n== build %s\n' "$preset"
  timeout "$seconds" ./tools/build.sh "$preset" "$target" || state=$?
  if ((state == 124)); then
    printf '\n== build %s: not ended in time, its tests are left out\n' "$preset"
    table+=("$(printf '%6d s  %-6s  %s' $((SECONDS - begin)) "none" "build $preset: not ended in time")")
    return
  fi
  part "build $preset" test "$state" = 0
  part "$name" run_ctest "$preset"
}

# Builds the program and runs the tests on the GPU (without one they say so), and the CPU tests that are close
# to code that a build with CUDA changes. `ctest --preset cuda` runs all tests, once all are built.
cuda_tests() {
  local failed=0
  ./tools/build.sh cuda terrace gpu_tests memory_tests optim_tests || return
  run_ctest cuda --label-regex '^gpu$' || failed=1
  build/cuda/tests/memory/memory_tests --gtest_brief=1 || failed=1
  build/cuda/tests/optim/optim_tests --gtest_brief=1 || failed=1
  return "$failed"
}

# run_ctest PRESET [OPTION...]: runs ctest, and keeps its output for tell_failures and tell_summary.
run_ctest() {
  ctest --preset "$1" "${@:2}" --parallel "$(./tools/jobs.sh)" </dev/null 2>&1 | tee "build/$1.ctest.log"
}

# Prints which tests of a preset failed and what they said first, for readers who see only a log's end.
tell_failures() {
  local log=build/$1.ctest.log
  [[ -f $log ]] || return 0
  sed -n '/^The following tests FAILED:/,/^$/p' "$log" | head -n 30
  grep -E -A 4 ': Failure$|ERROR: |WARNING: ThreadSanitizer|runtime error: ' "$log" | head -n 60
}

# Prints once more the summary that ctest ended with.
tell_summary() {
  grep -E '^[0-9]+% tests passed|^Total Test time' "build/$1.ctest.log"
}

# Keeps every thread of a test busy with its own work, not with waiting for the others' cores.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# Tests may start ranks of MPI as root, and on fewer cores than there are ranks.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1

rm -f build/*.ctest.log
part "packages" ./tools/install-deps.sh
((${#failures[@]} == 0)) || exit 4  # the exit code of missing packages
part "build release" ./tools/build.sh release
# If this part fails, nothing that follows means anything.
((${#failures[@]} == 0)) || exit 1

if $runs_all; then
  gate "format" clang-format-19 ./tools/check_format.sh
  part "demo" ./tools/demo.sh
fi
part "tests ($release_tests)" run_ctest "$release_tests"
if $runs_all; then
  if command -v nvcc >/dev/null || [[ -n ${CUDACXX:-} || -x $cuda_home/bin/nvcc ]]; then
    part "build cuda, and its tests" cuda_tests
  else
    printf '\n== build cuda: left out, there is no nvcc here\n'
  fi
  timely 70 "build debug, and its tests" sanitizer_tests debug tests_sanitized 72 \
    "tests under AddressSanitizer and UndefinedBehaviorSanitizer"
  # This reads the unity sources that the debug build has put together.
  timely 62 "clang-tidy" gate "clang-tidy" clang-tidy-19 ./tools/check_tidy.sh
  timely 62 "tests under ThreadSanitizer, and their build" sanitizer_tests tsan tests_threads 74 \
    "tests under ThreadSanitizer"
  timely 70 "fuzzers" gate "fuzzers" clang++-19 ./tools/fuzz.sh
fi
if $runs_python; then
  part "Python's packages" ./tools/python_env.sh
  part "tests (python)" run_ctest python
fi

if ((${#failures[@]})); then
  for preset in debug tsan cuda "$release_tests" python; do tell_failures "$preset" >&2; done
fi
printf '\n'
printf '%s\n' "${table[@]}"
printf '%6d s  in all\n\n' "$SECONDS"
tell_summary "$release_tests"
if ((${#failures[@]})); then
  printf 'test.sh: failed:' >&2
  printf ' [%s]' "${failures[@]}" >&2
  printf '\n' >&2
  exit 1
fi
