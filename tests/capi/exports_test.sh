#!/usr/bin/env bash
# The shared library shows the functions of the header, and nothing else: exports_test.sh LIBRARY HEADER
set -euo pipefail
shown=$(nm -D --defined-only "$1" | awk '{print $3}' | sort)
declared=$(grep -o '\bterrace_[a-z_]*(' "$2" | tr -d '(' | sort -u)
# What comments name as functions is declared, too, so the two lists are equal.
if [[ $shown != "$declared" ]]; then
  diff <(echo "$declared") <(echo "$shown") | sed 's/^</declared and not shown:/; s/^>/shown and not declared:/' >&2
  exit 1
fi
[[ -n $shown ]]
