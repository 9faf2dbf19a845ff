#!/usr/bin/env bash
# Packs the programs of the preset cuda, which are built here, to run on a machine with a GPU. That machine
# needs neither a compiler nor packages:
#
#   ./tools/build.sh cuda terrace gpu_tests
#   tools/pack_gpu_programs.sh FILE.tar.gz [BUILD]      BUILD: build/cuda
#
# tools/gpu_tests.sh and tools/gpu_bench.sh take FILE.tar.gz instead of a bundle of tools/make_bundle.sh,
# from which they would build. The machine must have this distribution or a newer one, and CUDA's libraries,
# from the toolkit or from pip's packages for python3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "pack_gpu_programs: $*" >&2
  exit 4
}

(($# == 1 || $# == 2)) || { echo "usage: tools/pack_gpu_programs.sh FILE.tar.gz [BUILD]" >&2; exit 2; }
target=$1
build=${2:-build/cuda}
programs=("$build/terrace" "$build/tests/gpu/gpu_tests")
for program in "${programs[@]}"; do
  [[ -x $program ]] || fail "there is no $program: ./tools/build.sh cuda terrace gpu_tests"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/terrace-programs
mkdir -p "$root/lib"

libraries=$(ldd "${programs[@]}")
if missing=$(grep 'not found' <<<"$libraries"); then fail "libraries are missing: $missing"; fi
for program in "${programs[@]}"; do
  strip --strip-debug -o "$root/$(basename "$program")" "$program"
done

# The libraries of the compiler and the C library are the machine's own, since its other libraries may need
# newer ones. CUDA's libraries are large, and are there already.
of_system='^(ld-linux.*|linux-vdso|libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+)\.so'
of_cuda='^lib(nccl|cublas|cublasLt)\.so'
mapfile -t names < <(awk '$2 == "=>" {print $1, $3}' <<<"$libraries" | sort -u)
asked=(libcudnn.so.9 libcudart.so.13)  # loaded by name, if they are there
needed=()
for name_and_path in "${names[@]}"; do
  read -r name path <<<"$name_and_path"
  if [[ $name =~ $of_system ]]; then continue; fi
  if [[ $name =~ $of_cuda ]]; then
    needed+=("$name")
  else
    cp -L "$path" "$root/lib/$name"
  fi
done

{
  echo "# Source this: the loader then finds the libraries of terrace and gpu_tests beside it."
  echo "needed='${needed[*]}'"
  echo "asked='${asked[*]}'"
  cat <<'END'
programs=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
places=$programs/lib
cuda=${CUDA_HOME:-/usr/local/cuda}
of_python=$(python3 -c 'import site
print(*[*site.getsitepackages(), site.getusersitepackages()], sep="\n")' 2>/dev/null || true)
for library in $needed $asked; do
  place=$(ldconfig -p 2>/dev/null | sed -n "s|.*$library .*=> \(.*\)/[^/]*\$|\1|p" | head -n 1 || true)
  for folder in "$cuda/lib64" "$cuda/lib"; do
    if [[ -z $place && -e $folder/$library ]]; then place=$folder; fi
  done
  while [[ -z $place ]] && IFS= read -r packages; do
    place=$(find "$packages/nvidia" -name "$library" -printf '%h\n' 2>/dev/null | head -n 1 || true)
  done <<<"$of_python"
  if [[ -n $place ]]; then
    places=$places:$place
  elif [[ " $needed " == *" $library "* ]]; then
    echo "there is no $library here: install CUDA, or set CUDA_HOME" >&2
  fi
done
export LD_LIBRARY_PATH=$places${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
unset needed asked programs places cuda of_python library place folder packages
END
} >"$root/environment.sh"

mkdir -p "$(dirname "$target")"
tar -C "$work" -czf "$target" terrace-programs
echo "pack_gpu_programs: $target has $(ls "$root/lib" | wc -l) libraries, $(du -sh "$target" | cut -f1)"
