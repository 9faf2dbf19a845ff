#!/usr/bin/env bash
# Builds targets of an earlier commit in release: tools/build_commit.sh COMMIT TARGET...
#
# The commit's sources and build stay in build/commits/, so that the next time is quick. Prints the folder
# of the build. The compiler's output goes to standard error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if (($# < 2)); then
  echo "usage: tools/build_commit.sh COMMIT TARGET..." >&2
  exit 2
fi
commit=$(git rev-parse --verify --quiet "$1^{commit}") || {
  echo "build_commit.sh: git knows no commit '$1'" >&2
  exit 2
}
shift

tree=build/commits/${commit:0:12}
if [[ ! -d $tree ]]; then
  rm -rf "$tree.partial"
  mkdir -p "$tree.partial"
  git archive "$commit" | tar -x -C "$tree.partial"
  mv "$tree.partial" "$tree"
fi
"$tree/tools/build.sh" release "$@" >&2 || {
  echo "build_commit.sh: commit ${commit:0:12} does not build: $*" >&2
  exit 1
}
realpath "$tree/build/release"
