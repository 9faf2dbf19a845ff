#!/usr/bin/env bash
# Puts programs of the preset cuda into build/gpu, on a machine with a GPU on which they will run. Adds
# environment.sh, which must be sourced before they are run:
#
#   tools/gpu_build.sh BUNDLE.tar.gz TARGET...
#
# BUNDLE.tar.gz is from tools/pack_gpu_programs.sh, and has the programs, or it is from tools/make_bundle.sh.
# With the latter the programs are built, which needs g++, cmake, ninja, pkg-config, the CUDA toolkit and
# NCCL. Either way there must be a GPU with its driver. If something is missing, names it and exits with 4.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "gpu_build: $*" >&2
  exit 4
}

bundle=${1:-}
[[ -f $bundle && $# -gt 1 ]] || { echo "usage: tools/gpu_build.sh BUNDLE.tar.gz TARGET..." >&2; exit 2; }
shift
[[ -e /dev/nvidiactl ]] || fail "there is no GPU here, or no driver (/dev/nvidiactl)"

rm -rf build/gpu build/terrace-programs
mkdir -p build
tar -C build -xzf "$bundle"
if [[ -d build/terrace-programs ]]; then
  mv build/terrace-programs build/gpu
  for target in "$@"; do
    [[ -x build/gpu/$target ]] || fail "$bundle has no $target"
  done
  exit
fi

for program in g++ cmake ninja pkg-config nvcc; do
  command -v "$program" >/dev/null || fail "there is no $program here"
done
mkdir build/gpu
echo "source '$PWD/build/terrace-bundle/environment.sh'" >build/gpu/environment.sh
# shellcheck disable=SC1091
source build/terrace-bundle/environment.sh
cmake --preset cuda -DTERRACE_MPI=OFF
cmake --build build/cuda --parallel "$(./tools/jobs.sh)" --target "$@"
for target in "$@"; do
  ln -s "../../$(find build/cuda -name "$target" -type f -executable | head -n 1)" "build/gpu/$target"
done
