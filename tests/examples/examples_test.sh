#!/usr/bin/env bash
# Builds and runs the programs of examples/: examples_test.sh SOURCE BUILD CMAKE_OPTION...
#
# The project of examples/ names no C++ standard and no flags: what Terrace's headers need comes with its
# libraries, and nothing else does.
set -euo pipefail
source_dir=$1
build=$2
shift 2

# Sources that another checkout has compiled need not be compiled again (tools/build.sh).
export CCACHE_BASEDIR=$source_dir CCACHE_NOHASHDIR=1
cmake -S "$source_dir/examples" -B "$build" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON "$@" >/dev/null
cmake --build "$build" --parallel 2 >/dev/null

drive=$(mktemp -d)
trap 'rm -rf "$drive"' EXIT
for example in store adamw_on_nvme two_units; do
  "$build/$example" "$drive"
  # Nothing is left on the drive, and a directory that does not exist is named.
  [[ -z $(ls -A "$drive") ]] || { echo "$example leaves files: $(ls -A "$drive")" >&2; exit 1; }
  if told=$("$build/$example" "$drive/absent" 2>&1); then
    echo "$example takes a directory that is not there" >&2
    exit 1
  fi
  [[ $told == *absent* ]] || { echo "$example does not name the directory: $told" >&2; exit 1; }
done

# The trainer in C keeps its saved state, and nothing else.
"$build/c_trainer" "$source_dir/README.md" "$drive"
[[ $(ls -A "$drive") == state ]] || { echo "c_trainer leaves files: $(ls -A "$drive")" >&2; exit 1; }
if told=$("$build/c_trainer" "$source_dir/README.md" "$drive/absent" 2>&1); then
  echo "c_trainer takes a directory that is not there" >&2
  exit 1
fi
[[ $told == *absent* ]] || { echo "c_trainer does not name the directory: $told" >&2; exit 1; }

# A project that links Terrace sees the libraries' folders of the checkout, and no other ones.
includes=$(grep -o -- '-I *[^ ]*\|-isystem *[^ ]*' <<<"$(grep -F '"command"' "$build/compile_commands.json" |
  grep -F CMakeFiles/store.dir/)" | sed 's/^-I *//; s/^-isystem *//' | sort -u)
for folder in $includes; do
  for other in tests docs bench tools examples cmake; do
    [[ ! -e $folder/$other ]] || { echo "$folder/$other is seen by who links Terrace" >&2; exit 1; }
  done
done
[[ -n $includes ]] || { echo "no include folder reaches who links Terrace" >&2; exit 1; }

# A project that links Terrace does not get Terrace's own warnings and arithmetic.
command=$(grep -F '"command"' "$build/compile_commands.json" | grep -F CMakeFiles/store.dir/)
for flag in -Wall -Wextra -Werror -Wconversion -ffp-contract -fmacro-prefix-map; do
  [[ $command != *"$flag"* ]] || { echo "$flag reaches who links Terrace: $command" >&2; exit 1; }
done
