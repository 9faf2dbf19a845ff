#!/usr/bin/env bash
# Prints the C++ sources of the tree, one path on each line: the files that git tracks, and new files that
# git does not ignore. Outside a git checkout, prints every source that is not under build/ or runs/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  git ls-files --cached --others --exclude-standard -- '*.h' '*.cc' '*.cu' '*.cuh'
else
  find . -name .git -prune -o -path ./build -prune -o -path ./runs -prune -o \
    -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print | sed 's|^\./||'
fi | sort -u | while IFS= read -r file; do
  # A file deleted in the working tree is still listed by git.
  if [[ -f $file ]]; then printf '%s\n' "$file"; fi
done
