#!/usr/bin/env bash
# Bare machine to tested: packages, build, gates, the tests under the sanitizers, the tests.
#
#   tools/test.sh          what docs/testing.md lists; exits 0 when all of it holds
#   tools/test.sh --long   also the tests that take minutes (label long)
#
# Goes on after a failure, so that one run tells everything. ctest's summary of the release preset
# comes last; only where something failed, the names and first words of those tests follow, and a
# line that says which parts failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

release_tests=release
for argument in "$@"; do
  case $argument in
    --long) release_tests=release-long ;;
    *)
      echo "test.sh: unknown argument $argument; the only one is --long" >&2
      exit 2
      ;;
  esac
done

# Where the CUDA toolkit installs itself, for shells whose PATH does not know.
cuda_home=${CUDA_HOME:-/usr/local/cuda}
failures=()

# part NAME COMMAND...: runs it, remembers whether it failed, says how long it took.
part() {
  local name=$1 begin=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  if "$@"; then
    printf '== %s: held (%d s)\n' "$name" $((SECONDS - begin))
  else
    failures+=("$name")
    printf '== %s: FAILED (%d s)\n' "$name" $((SECONDS - begin))
  fi
}

# A gate whose program this system does not package is left out, and that is said; continuous
# integration is where it must run.
gate() {
  local name=$1 program=$2 script=$3
  if command -v "$program" >/dev/null || [[ ${CI:-} == true ]]; then
    part "$name" "$script"
  else
    printf '\n== %s: left out, %s is not to be had here\n' "$name" "$program"
  fi
}

# The program and the tests on the GPU (without one they say so), and those of the CPU that are next to
# what a build with CUDA changes; `ctest --preset cuda` runs all, once all is built.
cuda_tests() {
  local failed=0
  ./tools/build.sh cuda terrace gpu_tests memory_tests optim_tests || return
  run_ctest cuda --label-regex '^gpu$' || failed=1
  build/cuda/tests/memory/memory_tests --gtest_brief=1 || failed=1
  build/cuda/tests/optim/optim_tests --gtest_brief=1 || failed=1
  return "$failed"
}

# run_ctest PRESET [OPTION...]: what it printed is kept for tell_failures.
run_ctest() {
  ctest --preset "$1" "${@:2}" --parallel "$(./tools/jobs.sh)" </dev/null 2>&1 | tee "build/$1.ctest.log"
}

# Which tests of a preset failed and what they said first, for those who see only a log's end.
tell_failures() {
  local log=build/$1.ctest.log
  [[ -f $log ]] || return 0
  sed -n '/^The following tests FAILED:/,/^$/p' "$log" | head -n 30
  grep -E -A 4 ': Failure$|ERROR: |WARNING: ThreadSanitizer|runtime error: ' "$log" | head -n 60
}

# Keeps every thread of a test busy with its own work, not with waiting for the others' cores.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# Tests start ranks of MPI as whoever they run as, on however few cores there are.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1

./tools/install-deps.sh || exit
# Nothing that follows means anything when this one fails.
printf '\n== build release\n'
./tools/build.sh release || exit

gate "format" clang-format-19 ./tools/check_format.sh

part "build debug" ./tools/build.sh debug tests_sanitized
# Looks at what that build has put together.
gate "clang-tidy" clang-tidy-19 ./tools/check_tidy.sh
part "tests under AddressSanitizer and UndefinedBehaviorSanitizer" run_ctest debug
part "build tsan" ./tools/build.sh tsan tests_threads
part "tests under ThreadSanitizer" run_ctest tsan

if command -v nvcc >/dev/null || [[ -n ${CUDACXX:-} || -x $cuda_home/bin/nvcc ]]; then
  part "build cuda, and its tests" cuda_tests
else
  printf '\n== build cuda: left out, there is no nvcc here\n'
fi

printf '\n== tests (%s)\n' "$release_tests"
run_ctest "$release_tests" || failures+=("tests")

if ((${#failures[@]})); then
  for preset in debug tsan cuda "$release_tests"; do tell_failures "$preset" >&2; done
  printf 'test.sh: failed:' >&2
  printf ' [%s]' "${failures[@]}" >&2
  printf '\n' >&2
  exit 1
fi
