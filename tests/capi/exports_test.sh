#!/usr/bin/env bash
# The shared library exports the functions of the headers and nothing else: exports_test.sh LIBRARY HEADER...
set -euo pipefail
shown=$(nm -D --defined-only "$1" | awk '{print $3}' | sort)
declared=$(grep -oh '\bterrace_[a-z_]*(' "${@:2}" | tr -d '(' | sort -u)
# Functions that the headers' comments name are declared in them, too, so the two lists must be equal.
if [[ $shown != "$declared" ]]; then
  diff <(echo "$declared") <(echo "$shown") | sed 's/^</declared and not shown:/; s/^>/shown and not declared:/' >&2
  exit 1
fi
[[ -n $shown ]]
