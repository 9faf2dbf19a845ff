# Everything comes from the system's packages (tools/install-deps.sh); nothing is downloaded. A project
# that builds Terrace as a part of it links the packages with Terrace's libraries.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)

set(terrace_missing "")

# terrace_needs_package(NAME): finds a package by find_package, and notes it if it is missing.
macro(terrace_needs_package name)
  find_package(${name} QUIET)
  if(NOT ${name}_FOUND)
    string(STRIP "${name} ${${name}_NOT_FOUND_MESSAGE}" terrace_lacking)
    list(APPEND terrace_missing "${terrace_lacking}")
  endif()
endmacro()

# terrace_needs_module(NAME MODULE): finds a module by pkg_check_modules, and notes it if it is missing.
macro(terrace_needs_module name module)
  if(PKG_CONFIG_FOUND) # else only pkg-config is named as missing
    pkg_check_modules(${name} QUIET IMPORTED_TARGET GLOBAL ${module})
    if(NOT ${name}_FOUND)
      list(APPEND terrace_missing "${module}.pc")
    endif()
  endif()
endmacro()

find_package(Threads REQUIRED)
find_package(PkgConfig QUIET)
if(NOT PKG_CONFIG_FOUND)
  list(APPEND terrace_missing "pkg-config")
endif()
foreach(package fmt TBB CLI11 nlohmann_json dnnl)
  terrace_needs_package(${package})
endforeach()
terrace_needs_module(liburing liburing)
terrace_needs_module(hwloc hwloc)
terrace_needs_module(xxhash libxxhash)
terrace_needs_module(highway libhwy)
terrace_needs_module(tomlplusplus tomlplusplus)
terrace_needs_module(zlib zlib)
terrace_needs_module(zstd libzstd)
terrace_needs_module(pcre2 libpcre2-8)
terrace_needs_module(utf8proc libutf8proc)
terrace_needs_module(sentencepiece sentencepiece)
if(TERRACE_TESTS)
  terrace_needs_package(GTest)
  include(GoogleTest)
endif()
if(terrace_missing)
  list(JOIN terrace_missing "\n  " terrace_missing)
  message(FATAL_ERROR "Terrace needs packages that this system does not have:\n"
                      "  ${terrace_missing}\n"
                      "Run tools/install-deps.sh: it installs them on Debian and Ubuntu, and names "
                      "them elsewhere.")
endif()

# Serves the page of terrace train --live. Without it the flag is refused.
if(PKG_CONFIG_FOUND)
  pkg_check_modules(cpphttplib QUIET IMPORTED_TARGET GLOBAL cpp-httplib)
endif()

# Users who run several processes ask for MPI by this option. Without it MpiSession refuses.
if(TERRACE_MPI)
  find_package(MPI QUIET COMPONENTS CXX)
endif()
