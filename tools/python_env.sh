#!/usr/bin/env bash
# Makes the Python environment of tests/golden, tests/tokenizer and tests/python, outside the
# checkout, and prints its folder.
#
#   tools/python_env.sh           makes the environment, unless it is there and up to date
#   tools/python_env.sh --check   only looks: exits with 3 if it is missing or out of date
#
# The folder is $TERRACE_PYTHON_ENV, or terrace/python in the user's cache. It holds the packages
# that tests/golden/requirements.txt names, about 6 GB: the usual index has no torch without CUDA
# for Linux. If PIP_INDEX_URL names an index of CPU builds, pip takes those. Needs Python 3.11 or later
# with its venv module; PYTHON names it if it is not python3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

environment=${TERRACE_PYTHON_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/terrace/python}
requirements=tests/golden/requirements.txt
# A copy of the requirements, which is written last: an environment that has it is complete.
installed=$environment/terrace-requirements.txt

if [[ -x $environment/bin/python ]] && cmp -s "$requirements" "$installed"; then
  echo "$environment"
  exit 0
fi
if [[ ${1:-} == --check ]]; then
  echo "python_env.sh: $environment has not what $requirements names; run tools/python_env.sh" >&2
  exit 3
fi

rm -f "$installed"
"${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/python" -m pip install --quiet --requirement "$requirements" >&2
cp "$requirements" "$installed"
echo "$environment"
