#!/usr/bin/env bash
# Installs what is missing and builds: tools/build.sh [PRESET] [TARGET...]
#
# PRESET is one of CMakePresets.json (release unless named). The program is then build/<PRESET>/terrace.
# Without targets everything of the preset is built.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=${1:-release}
shift || true

./tools/install-deps.sh

options=()
if command -v ccache >/dev/null; then
  options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
  # A different compiler flag is a miss. Neither the timestamps of headers nor the folder in build/ count:
  # release has compiled most sources of the preset cuda before, which are then hits.
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
fi
# Uses the quicker linker if the compiler knows it: it halves the time that relinking the tests takes.
if command -v mold >/dev/null && g++ -fuse-ld=mold -Wl,--version 2>/dev/null | grep -q mold; then
  options+=(-DCMAKE_EXE_LINKER_FLAGS_INIT=-fuse-ld=mold -DCMAKE_SHARED_LINKER_FLAGS_INIT=-fuse-ld=mold)
fi

# Looks in the CUDA toolkit's usual place, for shells whose PATH does not have it.
nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
if [[ -z ${CUDACXX:-} && -x $nvcc ]] && ! command -v nvcc >/dev/null; then export CUDACXX=$nvcc; fi

cmake --preset "$preset" "${options[@]}"
targets=()
if (($#)); then targets=(--target "$@"); fi
cmake --build "build/$preset" --parallel "$(./tools/jobs.sh)" "${targets[@]}"
