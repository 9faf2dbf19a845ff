#!/usr/bin/env bash
# Another project takes the sources by FetchContent, from a directory of this machine:
#
#   fetch_test.sh SOURCE CXX_COMPILER
#
# The project is configured but not built: tests/examples builds the targets that add_subdirectory gives, and the
# targets here are the same. The test also checks that the project's own settings stay as they are.
set -euo pipefail
source_dir=$1
compiler=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/CMakeLists.txt" <<'END_OF_PROJECT'
cmake_minimum_required(VERSION 3.24)
project(Fetching LANGUAGES CXX)
include(FetchContent)
FetchContent_Declare(Terrace SOURCE_DIR ${TERRACE_SOURCES})
FetchContent_MakeAvailable(Terrace)
foreach(name terrace base memory kernels offload optim parallel runtime)
  if(NOT TARGET Terrace::${name})
    message(FATAL_ERROR "FetchContent gives no Terrace::${name}")
  endif()
endforeach()
foreach(option TERRACE_TESTS TERRACE_WERROR TERRACE_INSTALL)
  if(${option})
    message(FATAL_ERROR "${option} is on in another project")
  endif()
endforeach()
if(CMAKE_CXX_STANDARD)
  message(FATAL_ERROR "the project's own C++ standard has changed")
endif()
END_OF_PROJECT
cmake -S "$work" -B "$work/build" -DTERRACE_SOURCES="$source_dir" -DCMAKE_CXX_COMPILER="$compiler" >/dev/null
