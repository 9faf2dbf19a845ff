#!/usr/bin/env bash
# Fails if a source is not formatted as .clang-format says, and names each such file.
# tools/check_format.sh --fix rewrites the files instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v clang-format-19 >/dev/null; then
  echo "check_format: clang-format-19 is not installed; run tools/install-deps.sh as root" >&2
  exit 4
fi

mapfile -t files < <(./tools/source_files.sh)
if ((${#files[@]} == 0)); then exit 0; fi
if [[ ${1:-} == --fix ]]; then
  clang-format-19 -i "${files[@]}"
  exit
fi

report=$(clang-format-19 --dry-run "${files[@]}" 2>&1) || {
  printf '%s\n' "$report" >&2
  exit 1
}
# One line for each file, with the first place in it.
places=$(awk -F: '/clang-format-violations/ && !($1 in seen) { seen[$1] = 1; print $1 ":" $2 }' <<<"$report")
if [[ -n $report ]]; then
  printf '%s\n' "${places:-$report}" >&2
  echo "check_format: the files above are not formatted; run tools/check_format.sh --fix" >&2
  exit 1
fi
