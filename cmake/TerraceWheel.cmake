# Says how scikit-build-core compiles the programs of pyproject.toml's wheel: without the symbols, which
# nothing in the wheel reads, and through ccache if that is installed. ccache finds files again that
# another clone has compiled, since no path of the clone counts.
add_link_options(-s)
# The wheel has the files as they are built, with no run path. A run path that CMake means to change when
# it installs ends in an empty folder name, which stands for whatever folder a process is in.
set(CMAKE_SKIP_RPATH ON)
find_program(TERRACE_CCACHE ccache)
if(TERRACE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${TERRACE_CCACHE})
endif()
# The objects of the preset release are in ccache's cache if it was built before. They are found again if
# they are compiled by the same command: by the same name of the compiler (pip says g++ where CMake says
# c++) and with the same flags. The debug information is removed when the wheel's files are linked.
set(terrace_release ${PROJECT_SOURCE_DIR}/build/release)
if(TERRACE_CCACHE AND EXISTS ${terrace_release}/CMakeCache.txt)
  load_cache(${terrace_release} READ_WITH_PREFIX release_ CMAKE_CXX_COMPILER CMAKE_CXX_FLAGS_RELEASE
             TERRACE_WERROR)
  file(REAL_PATH ${release_CMAKE_CXX_COMPILER} terrace_compiler_of_release)
  file(REAL_PATH ${CMAKE_CXX_COMPILER} terrace_compiler)
  if(terrace_compiler STREQUAL terrace_compiler_of_release)
    message(STATUS "Compiles as build/release does: ccache has what was compiled there")
    set(CMAKE_CXX_COMPILER ${release_CMAKE_CXX_COMPILER})
    set(CMAKE_CXX_FLAGS_RELEASE ${release_CMAKE_CXX_FLAGS_RELEASE})
    set(TERRACE_WERROR ${release_TERRACE_WERROR})
  endif()
endif()
