# terrace_headers_alone(): an object library with one source per header of the project. Each includes
# its header first and a second time, so a header that leans on what others include, or that cannot be
# read twice, breaks the build. The list is written to headers_alone.txt for the test that compares it
# with the tree.
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
  foreach(header IN LISTS headers)
    set(source ${CMAKE_CURRENT_BINARY_DIR}/headers_alone/${header}.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"@header@\"\n#include \"@header@\"\n" @ONLY)
    list(APPEND sources ${source})
  endforeach()
  string(REPLACE ";" "\n" lines "${headers}")
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/headers_alone.txt "${lines}\n")

  add_library(terrace_headers_alone OBJECT EXCLUDE_FROM_ALL ${sources})
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
