#!/usr/bin/env bash
# Installs a build and uses it from a clean directory, without the sources, in three ways:
#
#   install_test.sh SOURCE BUILD VERSION CXX_COMPILER
#
# find_package with C and C++ libraries, find_package where only the C library is installed, and
# pkg-config.
set -euo pipefail
source_dir=$1
build=$2
version=$3
compiler=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/c" --component c >/dev/null
cmake --install "$build" --prefix "$work/all" --component c >/dev/null
cmake --install "$build" --prefix "$work/all" --component cpp >/dev/null
# The installed files do not refer to the place where they were built.
if grep -rqF -e "$source_dir" -e "$build" --include='*.cmake' --include='*.pc' "$work/all"; then
  echo "the package names the sources or the build" >&2
  exit 1
fi

mkdir "$work/project" "$work/drive"
cp "$source_dir"/tests/capi/consumer/* "$source_dir/examples/c_trainer.c" \
  "$source_dir/examples/store.cc" "$work/project"
cp "$source_dir/README.md" "$work/text"
cmake -S "$work/project" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/all" \
  -DCMAKE_CXX_COMPILER="$compiler" >/dev/null
cmake --build "$work/build" >/dev/null
"$work/build/c_trainer" "$work/text" "$work/drive"
rm -r "$work/drive/state"
"$work/build/store" "$work/drive"
"$work/build/rules"

# The C library alone is found without any package of its dependencies. The error names a component that is not there.
mkdir "$work/alone"
cat >"$work/alone/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.24)
project(Alone LANGUAGES C)
find_package(Terrace 0.4 CONFIG REQUIRED COMPONENTS ${WANTED})
add_executable(c_trainer ../project/c_trainer.c)
target_link_libraries(c_trainer PRIVATE Terrace::terrace m)
END
cmake -S "$work/alone" -B "$work/alone/build" -DCMAKE_PREFIX_PATH="$work/c" >/dev/null
cmake --build "$work/alone/build" >/dev/null
"$work/alone/build/c_trainer" "$work/text" "$work/drive"
for wanted in offload nothing_of_the_kind; do
  if told=$(cmake -S "$work/alone" -B "$work/alone/other_$wanted" -DCMAKE_PREFIX_PATH="$work/c" \
    -DWANTED=$wanted 2>&1); then
    echo "the component $wanted is found where it is not installed" >&2
    exit 1
  fi
  [[ $told == *"--component cpp"* || $told == *"$wanted"* ]] || { echo "$told" >&2; exit 1; }
done

library=$(dirname "$(find "$work/c" -name libterrace.so)")
export PKG_CONFIG_PATH=$library/pkgconfig
[[ $(pkg-config --modversion terrace) == "$version" ]] || { echo "pkg-config: other version" >&2; exit 1; }
# shellcheck disable=SC2046
cc -std=c99 -O2 "$work/project/c_trainer.c" -o "$work/by_pkg_config" $(pkg-config --cflags --libs terrace) -lm
LD_LIBRARY_PATH=$library "$work/by_pkg_config" "$work/text" "$work/drive"
