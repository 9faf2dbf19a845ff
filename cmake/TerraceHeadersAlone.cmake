# terrace_headers_alone(): defines an object library with one source for each header of the project that
# no source of the same name includes first. Such a source includes its header first, and then a second
# time. So a header that relies on other headers' includes, or that cannot be read twice, breaks the
# build. A header that its own source includes first is proved by that source, which the preset release
# compiles by itself. The list is written to headers_alone.txt for the test that compares it with the tree.
function(terrace_headers_alone)
  set(folders base memory offload kernels optim parallel runtime)
  set(patterns ${folders})
  list(TRANSFORM patterns REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/\\1/*.h")
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${patterns})
  if(NOT TERRACE_CUDA)
    list(FILTER headers EXCLUDE REGEX "/(cuda|nccl)/")
  endif()
  list(SORT headers)

  set(sources "")
  set(alone "")
  foreach(header IN LISTS headers)
    string(REGEX REPLACE "\\.h$" ".cc" own_source ${header})
    if(EXISTS ${PROJECT_SOURCE_DIR}/${own_source})
      file(STRINGS ${PROJECT_SOURCE_DIR}/${own_source} first REGEX "^#include" LIMIT_COUNT 1)
      if(first STREQUAL "#include \"${header}\"")
        continue()
      endif()
    endif()
    list(APPEND alone ${header})
    set(source ${CMAKE_CURRENT_BINARY_DIR}/headers_alone/${header}.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"@header@\"\n#include \"@header@\"\n" @ONLY)
    list(APPEND sources ${source})
  endforeach()
  string(REPLACE ";" "\n" lines "${alone}")
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/headers_alone.txt "${lines}\n")

  add_library(terrace_headers_alone OBJECT EXCLUDE_FROM_ALL ${sources})
  set_target_properties(terrace_headers_alone PROPERTIES UNITY_BUILD OFF)
  target_compile_options(terrace_headers_alone PRIVATE -O0 -g0)
  target_link_libraries(
    terrace_headers_alone PRIVATE terrace_flags fmt::fmt TBB::tbb DNNL::dnnl PkgConfig::liburing
                                  PkgConfig::hwloc PkgConfig::highway)
  if(TERRACE_CUDA)
    target_link_libraries(terrace_headers_alone PRIVATE CUDA::cudart_static terrace_nccl)
  endif()
  if(TARGET MPI::MPI_CXX)
    target_link_libraries(terrace_headers_alone PRIVATE MPI::MPI_CXX)
  endif()
endfunction()
