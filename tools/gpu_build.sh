#!/usr/bin/env bash
# Builds targets of the preset cuda from a bundle, for what runs on a machine with a GPU:
#
#   tools/gpu_build.sh BUNDLE.tar.gz TARGET...
#
# BUNDLE.tar.gz is of tools/make_bundle.sh. Needs g++, cmake, ninja, pkg-config, the CUDA toolkit and
# NCCL, and a GPU with its driver; exits 4, naming it, where one is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "gpu_build: $*" >&2
  exit 4
}

bundle=${1:-}
[[ -f $bundle && $# -gt 1 ]] || { echo "usage: tools/gpu_build.sh BUNDLE.tar.gz TARGET..." >&2; exit 2; }
shift

for program in g++ cmake ninja pkg-config nvcc; do
  command -v "$program" >/dev/null || fail "there is no $program here"
done
[[ -e /dev/nvidiactl ]] || fail "there is no GPU here, or no driver (/dev/nvidiactl)"

mkdir -p build
tar -C build -xzf "$bundle"
# shellcheck disable=SC1091
source build/terrace-bundle/environment.sh

cmake --preset cuda -DTERRACE_MPI=OFF
cmake --build build/cuda --parallel "$(./tools/jobs.sh)" --target "$@"
