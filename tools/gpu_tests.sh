#!/usr/bin/env bash
# Runs the tests that need a GPU:
#
#   tools/gpu_tests.sh BUNDLE.tar.gz         runs the label gpu; a skipped test is a failure
#   tools/gpu_tests.sh BUNDLE.tar.gz TOOL    runs the tests of our own kernels under compute-sanitizer;
#                                            TOOL is memcheck or racecheck
#
# If GTEST_FILTER is set, it says which tests are run. BUNDLE.tar.gz is from tools/pack_gpu_programs.sh, and
# has the programs, or from tools/make_bundle.sh, and they are built. Needs the same as tools/gpu_build.sh. If
# something is missing, names it and exits with 4. tools/gpu_bench.sh measures.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "gpu_tests: $*" >&2
  exit 4
}

usage() {
  echo "usage: tools/gpu_tests.sh BUNDLE.tar.gz [memcheck|racecheck]" >&2
  exit 2
}

bundle=${1:-}
tool=${2:-}
[[ -f $bundle ]] || usage
[[ -z $tool || $tool == memcheck || $tool == racecheck ]] || usage

./tools/gpu_build.sh "$bundle" terrace gpu_tests
# shellcheck disable=SC1091
source build/gpu/environment.sh

run=(build/gpu/gpu_tests)
if [[ -n $tool ]]; then
  command -v compute-sanitizer >/dev/null || fail "there is no compute-sanitizer here"
  run=(compute-sanitizer --tool "$tool" --error-exitcode 1 "${run[@]}")
  # Leaves out ranks, which are processes of their own, and tests of a library's code alone.
  own='*GpuKernels*:GpuTest.*:*GpuRankSum*:*GpuAttention.IsOwn*-*.Matmul*'
  export GTEST_FILTER=${GTEST_FILTER:-$own}
fi

report=build/gpu/gpu_tests.log
"${run[@]}" 2>&1 | tee "$report"
if grep -q '\[  SKIPPED \]' "$report"; then
  echo "gpu_tests: tests were skipped, and there is a GPU" >&2
  exit 1
fi
if grep -q '\[  PASSED  \] 0 tests' "$report"; then
  echo "gpu_tests: no test has a name like ${GTEST_FILTER:-}" >&2
  exit 1
fi
