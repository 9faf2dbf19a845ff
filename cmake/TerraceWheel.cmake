# How scikit-build-core compiles what goes into the wheel of pyproject.toml: without the symbols that
# nothing in it reads, and through ccache where that is installed. Files that another clone has compiled
# are found again, since no path of the clone counts.
add_link_options(-s)
find_program(TERRACE_CCACHE ccache)
if(TERRACE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${TERRACE_CCACHE})
endif()
