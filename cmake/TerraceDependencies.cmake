# Everything comes from the system's packages (tools/install-deps.sh); nothing is downloaded. A project
# that builds Terrace as a part of it links the packages with Terrace's libraries.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(fmt REQUIRED)
find_package(TBB REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(dnnl REQUIRED)
pkg_check_modules(liburing REQUIRED IMPORTED_TARGET GLOBAL liburing)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET GLOBAL hwloc)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET GLOBAL libxxhash)
pkg_check_modules(highway REQUIRED IMPORTED_TARGET GLOBAL libhwy)
pkg_check_modules(tomlplusplus REQUIRED IMPORTED_TARGET GLOBAL tomlplusplus)
pkg_check_modules(zlib REQUIRED IMPORTED_TARGET GLOBAL zlib)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET GLOBAL libzstd)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET GLOBAL libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET GLOBAL libutf8proc)
pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET GLOBAL sentencepiece)

# Asked for by who runs several processes; without it MpiSession refuses.
if(TERRACE_MPI)
  find_package(MPI QUIET COMPONENTS CXX)
endif()

if(TERRACE_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
