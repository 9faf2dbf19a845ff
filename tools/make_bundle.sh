#!/usr/bin/env bash
# Packs the small libraries that Terrace needs, with their headers, for a machine that cannot install
# packages: tools/make_bundle.sh FILE.tar.gz
#
# Takes them from the Debian or Ubuntu packages that are installed here. So make the bundle on the
# distribution of the machine that it is for, or on an older one. That machine must have g++, cmake,
# ninja, pkg-config, and for the GPU the CUDA toolkit with NCCL. tools/gpu_build.sh builds from the bundle.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(
  liburing-dev libhwloc-dev libtbb-dev libdnnl-dev ocl-icd-opencl-dev opencl-c-headers libhwy-dev
  libfmt-dev libcli11-dev nlohmann-json3-dev libtomlplusplus-dev libxxhash-dev zlib1g-dev libzstd-dev libgtest-dev
  libgmock-dev
)

fail() {
  echo "make_bundle: $*" >&2
  exit 4
}

(($# == 1)) || { echo "usage: tools/make_bundle.sh FILE.tar.gz" >&2; exit 2; }
target=$1
command -v dpkg-query >/dev/null || fail "this is not Debian or Ubuntu"

# Prints the libraries that packages depend on or recommend, without the ones that every system has.
libraries_of() {
  dpkg-query -W -f='${Depends},${Recommends}\n' "$@" 2>/dev/null | tr ',|' '\n\n' |
    sed 's/([^)]*)//; s/:any//; s/ //g' | grep -E '^lib' | grep -v -E '^libc6|^libgcc|^libstdc' |
    sort -u
}

installed() { dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/terrace-bundle
mkdir -p "$root"

for package in "${packages[@]}"; do
  installed "$package" || fail "$package is not installed; run tools/install-deps.sh"
done
# Follows dependencies for two steps: the linker asks for no library that is three steps away.
mapfile -t wanted < <(
  mapfile -t first < <(libraries_of "${packages[@]}")
  printf '%s\n' "${packages[@]}" "${first[@]}" $(libraries_of "${first[@]}")
)
for package in "${wanted[@]}"; do
  installed "$package" || continue
  dpkg-query -L "$package"
done | grep -E '^/(usr/)?(include|lib)/' | grep -v -E '\.(py|sh)$|/systemd/' | sort -u |
  while IFS= read -r path; do
    if [[ -d $path && ! -L $path ]]; then continue; fi
    # With merged /usr both names are the same file.
    place=$root/usr/${path#/}
    place=${place/"/usr/usr/"/"/usr/"}
    mkdir -p "$(dirname "$place")"
    cp -P "$path" "$place"
  done

# pkg-config files name /usr. Here they are changed to name the place where they are.
find "$root" -name '*.pc' -exec sed -i \
  -e 's|^prefix=.*|prefix=${pcfiledir}/../../..|' -e 's|=/usr/|=${prefix}/|g' -e 's|-\([IL]\)/usr/|-\1${prefix}/|g' {} +

cat >"$root/environment.sh" <<'END'
# Source this: cmake, pkg-config and the loader then find the libraries of the bundle.
bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
libraries=$(find "$bundle/usr/lib" -maxdepth 1 -name '*-linux-gnu' -type d | head -n 1)
export CMAKE_PREFIX_PATH=$bundle/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
export PKG_CONFIG_PATH=$libraries/pkgconfig:$bundle/usr/share/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
export CPLUS_INCLUDE_PATH=$bundle/usr/include${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}
export LIBRARY_PATH=$libraries${LIBRARY_PATH:+:$LIBRARY_PATH}
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
unset bundle libraries
END
# toml++, CLI11 and JSON are headers, and have files for cmake or pkg-config under share.
for package in libtomlplusplus-dev libcli11-dev nlohmann-json3-dev; do
  dpkg-query -L "$package" | grep -E '^/usr/share/(pkgconfig|cmake)/' || true
done | while IFS= read -r path; do
  if [[ -d $path ]]; then continue; fi
  mkdir -p "$root$(dirname "$path")"
  cp -P "$path" "$root$path"
done
find "$root/usr/share" -name '*.pc' -exec sed -i 's|^prefix=.*|prefix=${pcfiledir}/../..|' {} + 2>/dev/null || true

# Takes the headers, and nothing else, of pip's wheel for attention by cuDNN. Without them a build has only
# its own kernels.
frontend=$(python3 -c 'import site
print(*[*site.getsitepackages(), site.getusersitepackages()], sep="\n")' 2>/dev/null |
  while IFS= read -r packages; do
    if [[ -e $packages/include/cudnn_frontend.h ]]; then echo "$packages/include"; fi
  done | head -n 1) || true
if [[ -n $frontend ]]; then
  mkdir -p "$root/usr/include"
  cp "$frontend"/cudnn_*.h "$root/usr/include/"
  cp -R "$frontend/cudnn_frontend" "$root/usr/include/"
fi

mkdir -p "$(dirname "$target")"
tar -C "$work" -czf "$target" terrace-bundle
echo "make_bundle: $target has $(find "$root" -type f | wc -l) files, $(du -sh "$target" | cut -f1)"
