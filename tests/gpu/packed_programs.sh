#!/usr/bin/env bash
# Tests that programs that tools/pack_gpu_programs.sh has packed run elsewhere, with the libraries packed with them:
# packed_programs.sh BUILD
set -euo pipefail
build=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$(dirname "${BASH_SOURCE[0]}")/../../tools/pack_gpu_programs.sh" "$work/programs.tar.gz" "$build"
tar -C "$work" -xzf "$work/programs.tar.gz"
cd "$work/terrace-programs"
# shellcheck disable=SC1091
source ./environment.sh
own=$(ldd ./terrace ./gpu_tests | grep -c "$work/terrace-programs/lib/") || true
((own > 10)) || { echo "only $own libraries are those that came along" >&2; exit 1; }
./terrace --version
./gpu_tests --gtest_filter='RankProcesses.*'
