#!/usr/bin/env bash
# Runs compare.py in the Python environment: compare.sh PROGRAM MEGABYTES [NAME...]
#
# Without the environment the test is skipped (77). It fails instead if TERRACE_PYTHON_TESTS=required
# says that it was asked for.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

if ! environment=$("$root/tools/python_env.sh" --check); then
  [[ ${TERRACE_PYTHON_TESTS:-} == required ]] && exit 1
  echo "skipped: tools/python_env.sh makes the environment that this test needs"
  exit 77
fi
exec "$environment/bin/python" "$root/tests/tokenizer/compare.py" "$@"
