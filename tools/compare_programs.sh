#!/usr/bin/env bash
# Shows how the programs that steps are compiled to differ from those of another commit.
#
#   tools/compare_programs.sh COMMIT         names the cases that differ, and counts them
#   tools/compare_programs.sh COMMIT CASE    prints what differs in a case, the commit's version on the left
#   tools/compare_programs.sh --keep         writes tests/programs/fingerprints.txt anew, if the difference is meant
#
# Builds COMMIT under build/commits/, and the working tree. COLUMNS is the width of the output (200).
# Exits with 1 if something differs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit "$1"
}
(($#)) || usage 2
case $1 in -h | --help) usage 0 ;; esac

./tools/build.sh release show_programs >&2
ours=build/release/tests/programs/show_programs
kept=tests/programs/fingerprints.txt

if [[ $1 == --keep ]]; then
  "$ours" --fingerprints >build/fingerprints.txt
  changed=$(diff <(cat "$kept" 2>/dev/null) build/fingerprints.txt | grep -c '^>' || true)
  mv build/fingerprints.txt "$kept"
  echo "$kept: $changed of $(wc -l <"$kept") lines are new or other than before"
  exit 0
fi

theirs=$(./tools/build_commit.sh "$1" show_programs)/tests/programs/show_programs
if (($# == 1)); then
  diff --old-line-format='%L' --new-line-format='' --unchanged-line-format='' \
    <("$theirs" --fingerprints) <("$ours" --fingerprints) >build/different.txt || true
  awk '{ print $1 }' build/different.txt
  echo "$(wc -l <build/different.txt) of $("$theirs" --names | wc -l) programs differ"
  [[ ! -s build/different.txt ]]
  exit
fi

"$theirs" "$2" >build/program-theirs.txt
"$ours" "$2" >build/program-ours.txt
# Prints the first line of every operation that differs, and the lines that differ. No program has the signs
# that diff puts between the columns.
diff --side-by-side --expand-tabs --width="${COLUMNS:-200}" build/program-{theirs,ours}.txt | awk '
  /^[a-z]/ { head = $0; printed = 0; ++number }
  /[|<>]/ {
    ++lines
    if (!printed && head != $0) print number ": " head
    printed = 1
    print
  }
  END {
    printf "%d lines differ\n", lines
    exit lines > 0
  }'
