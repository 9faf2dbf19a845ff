#!/usr/bin/env bash
# A header compiles alone, as C99 and as C++, every warning an error: header_test.sh HEADER COMPILER
set -euo pipefail
header=$(realpath "$1")
compiler=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '#include "%s"\n#include "%s"\nint main(void) { terrace_session_options o = {sizeof o}; return (int)o.threads; }\n' \
  "$header" "$header" >"$work/alone.c"
cp "$work/alone.c" "$work/alone.cc"
strict="-Wall -Wextra -Wpedantic -Wstrict-prototypes -Werror -Wno-missing-field-initializers -fsyntax-only"
cc -std=c99 $strict "$work/alone.c"
for standard in c++11 c++20; do
  "$compiler" -std=$standard ${strict/-Wstrict-prototypes/} "$work/alone.cc"
done
