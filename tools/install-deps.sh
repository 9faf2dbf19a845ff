#!/usr/bin/env bash
# Installs the packages that building and testing Terrace needs, where they are missing.
#
# On Debian and Ubuntu, as root or with sudo, apt-get installs what is missing. Elsewhere, or without
# the right to install, this names what is missing and exits with 4. Quick and silent if nothing is missing.
set -euo pipefail

required=(
  g++ cmake ninja-build ccache pkg-config
  liburing-dev libhwloc-dev libtbb-dev libdnnl-dev ocl-icd-opencl-dev libhwy-dev
  libopenmpi-dev openmpi-bin libfmt-dev libcli11-dev nlohmann-json3-dev libtomlplusplus-dev
  libxxhash-dev zlib1g-dev libzstd-dev libpcre2-dev libutf8proc-dev libsentencepiece-dev
  libgtest-dev libgmock-dev libbenchmark-dev
)
# The build does not need these packages. terrace train --live is built where the first one is. The format
# and tidy gates of tools/test.sh use the next two, and terrace bench io compares with fio. A test makes
# two hosts of network namespaces with iproute2, others count system calls with strace, and one measures
# classes with universal-ctags.
extras=(libcpp-httplib-dev clang-format-19 clang-tidy-19 clang-19 libclang-rt-19-dev libomp-19-dev fio iproute2 strace universal-ctags)

say() { printf 'install-deps: %s\n' "$*" >&2; }

fail() {
  say "$*"
  exit 4
}

# Prints the arguments that dpkg does not list as installed.
missing_packages() {
  dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" 2>/dev/null |
    awk -v wanted="$*" '
      $2 == "installed" { have[$1] = 1 }
      END {
        count = split(wanted, names, " ")
        for (i = 1; i <= count; ++i) if (!(names[i] in have)) print names[i]
      }'
}

check_versions() {
  local version
  version=$(cmake --version | awk 'NR == 1 { print $3 }')
  if ! printf '3.24\n%s\n' "$version" | sort -V -C; then
    fail "cmake is $version and 3.24 or newer is needed; install a newer one and put it first in PATH"
  fi
}

# Without dpkg this can only look for the programs, the pkg-config names and the headers.
check_without_dpkg() {
  local lacking=() name
  for name in g++ cmake ninja pkg-config; do
    command -v "$name" >/dev/null || lacking+=("$name")
  done
  if command -v pkg-config >/dev/null; then
    for name in liburing hwloc tbb fmt libhwy libxxhash tomlplusplus zlib libzstd libpcre2-8 libutf8proc \
      sentencepiece gtest gmock benchmark; do
      pkg-config --exists "$name" || lacking+=("$name")
    done
  fi
  for name in oneapi/dnnl/dnnl.hpp CL/cl.h CLI/CLI.hpp nlohmann/json.hpp; do
    [[ -e /usr/include/$name || -e /usr/local/include/$name ]] || lacking+=("$name")
  done
  if ((${#lacking[@]})); then
    fail "this is not Debian or Ubuntu; install with its package manager: ${lacking[*]}"
  fi
  check_versions
}

apt() {
  local as_root=()
  if ((EUID != 0)); then as_root=(sudo -n); fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 \
    -o Acquire::Retries=3 "$@" </dev/null
}

may_install() {
  ((EUID == 0)) || { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }
}

have_package_lists() {
  compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null
}

main() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    check_without_dpkg
    return
  fi

  local lacking optional name wanted=()
  mapfile -t lacking < <(missing_packages "${required[@]}")
  mapfile -t optional < <(missing_packages "${extras[@]}")
  if ((${#lacking[@]} == 0 && ${#optional[@]} == 0)); then
    check_versions
    return
  fi

  if ! may_install; then
    if ((${#lacking[@]})); then
      fail "missing: ${lacking[*]}; run as root: apt-get install -y ${lacking[*]}"
    fi
    say "not root: left out ${optional[*]}, which only --live, the gates of tools/test.sh and terrace bench use"
    check_versions
    return
  fi

  if ((${#lacking[@]})) || ! have_package_lists; then
    apt update || say "apt-get update failed; trying with the package lists that are here"
  fi
  if ((${#lacking[@]})); then
    say "installing ${lacking[*]}"
    apt install -y --no-install-recommends "${lacking[@]}" ||
      fail "apt-get could not install: ${lacking[*]}"
  fi
  for name in "${optional[@]}"; do
    if [[ -n $(apt-cache show "$name" 2>/dev/null | head -c 1) ]]; then wanted+=("$name"); fi
  done
  if ((${#wanted[@]})); then
    apt install -y --no-install-recommends "${wanted[@]}" ||
      say "apt-get could not install ${wanted[*]}, which only --live, the gates of tools/test.sh and terrace bench use"
  fi
  check_versions
}

cudnn_frontend=nvidia-cudnn-frontend==1.32.0
# Prints `lacking` if pip may install and the headers are not beside python's packages.
cudnn_frontend_state='
import importlib.util, os, site, sys, sysconfig
folders = [*site.getsitepackages(), site.getusersitepackages()]
managed = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
if any(os.path.exists(f + "/include/cudnn_frontend.h") for f in folders):
    print("there")
elif importlib.util.find_spec("pip") is None:
    print("no pip")
elif os.path.exists(managed) and sys.prefix == sys.base_prefix:
    print("the system forbids it")
else:
    print("lacking")
'

# Installs the headers of cudnn_frontend, for attention by cuDNN. Without them a build with CUDA has only
# its own kernels. Tries this only if there are nvcc and cuDNN to build with. It is no failure if pip cannot.
install_cudnn_frontend() {
  local toolkit=${CUDA_HOME:-/usr/local/cuda}
  command -v nvcc >/dev/null || [[ -x $toolkit/bin/nvcc ]] || return 0
  [[ -e $toolkit/include/cudnn.h || -e /usr/include/cudnn.h ]] || return 0
  local state
  state=$(python3 -c "$cudnn_frontend_state" 2>/dev/null) || return 0
  [[ $state == lacking ]] || return 0
  say "installing $cudnn_frontend"
  python3 -m pip install -q --no-deps --no-input --retries 1 --timeout 10 \
    --disable-pip-version-check --root-user-action ignore "$cudnn_frontend" </dev/null >/dev/null 2>&1 ||
    say "pip could not install $cudnn_frontend, whose headers attention by cuDNN needs"
}

main "$@"
install_cudnn_frontend
