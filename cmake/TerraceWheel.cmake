# How scikit-build-core compiles what goes into the wheel of pyproject.toml: without the symbols that
# nothing in it reads, and through ccache where that is installed. Files that another clone has compiled
# are found again, since no path of the clone counts.
add_link_options(-s)
# The wheel has what is built, as it is built: with no run path. One that CMake means to change when it
# installs ends in an empty folder, which is whatever folder a process is in.
set(CMAKE_SKIP_RPATH ON)
find_program(TERRACE_CCACHE ccache)
if(TERRACE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${TERRACE_CCACHE})
endif()
