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
