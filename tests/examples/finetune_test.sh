#!/usr/bin/env bash
# Runs examples/finetune in small: finetune_test.sh SOURCE TERRACE [--transformers]
#
# With --transformers it is skipped (77) without the Python environment, which is a failure where
# TERRACE_PYTHON_TESTS=required says that it was asked for.
set -euo pipefail
source_dir=$1
export TERRACE=$2
shift 2
if (($#)); then
  if ! environment=$("$source_dir/tools/python_env.sh" --check); then
    [[ ${TERRACE_PYTHON_TESTS:-} == required ]] && exit 1
    echo "skipped: tools/python_env.sh makes the environment that this test needs"
    exit 77
  fi
  export PYTHON=$environment/bin/python
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$source_dir/examples/finetune/run.sh" --small --run-dir "$folder/run" "$@"
# A directory that exists is left alone.
code=0
"$source_dir/examples/finetune/run.sh" --small --run-dir "$folder/run" 2>/dev/null || code=$?
((code == 1)) || { echo "run.sh takes a directory that is there, or says $code" >&2; exit 1; }
