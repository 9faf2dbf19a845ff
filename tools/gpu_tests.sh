#!/usr/bin/env bash
# Runs the tests that need a GPU:
#
#   tools/gpu_tests.sh BUNDLE.tar.gz              the label gpu; a skipped test is a failure
#   tools/gpu_tests.sh BUNDLE.tar.gz --sanitize   again under compute-sanitizer: memcheck, racecheck
#
# BUNDLE.tar.gz is of tools/pack_gpu_programs.sh, with the programs, or of tools/make_bundle.sh, to
# build them. Needs what tools/gpu_build.sh needs; exits 4, naming it, where something is missing.
# tools/gpu_bench.sh measures.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "gpu_tests: $*" >&2
  exit 4
}

bundle=${1:-}
[[ -f $bundle ]] || { echo "usage: tools/gpu_tests.sh BUNDLE.tar.gz [--sanitize]" >&2; exit 2; }
sanitize=${2:-}
[[ -z $sanitize || $sanitize == --sanitize ]] || { echo "gpu_tests: unknown argument $2" >&2; exit 2; }

./tools/gpu_build.sh "$bundle" terrace gpu_tests
# shellcheck disable=SC1091
source build/gpu/environment.sh

report=build/gpu/gpu_tests.log
build/gpu/gpu_tests 2>&1 | tee "$report"
if grep -q '\[  SKIPPED \]' "$report"; then
  echo "gpu_tests: tests were skipped, and there is a GPU" >&2
  exit 1
fi
if [[ -n $sanitize ]]; then
  command -v compute-sanitizer >/dev/null || fail "there is no compute-sanitizer here"
  for tool in memcheck racecheck; do
    # Ranks are processes of their own.
    compute-sanitizer --tool "$tool" --error-exitcode 1 build/gpu/gpu_tests --gtest_filter='*Gpu*-*GpuRanks*'
  done
fi
