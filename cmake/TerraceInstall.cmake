# Says what cmake --install puts under the prefix, by component:
#
#   c        libterrace.so, terrace.h, terrace_units.h, terrace.pc, and the package that find_package(Terrace) finds
#   cpp      the C++ libraries that are useful alone, with their headers in include/terrace
#   program  the program terrace
#   wheel    library and program where the Python package looks for them; pyproject.toml makes a wheel of
#            them and of python/terrace
#
# A project that uses C++ libraries names them: find_package(Terrace CONFIG COMPONENTS offload). Then it
# also needs the packages that they are linked with. libterrace.so brings its own.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(terrace_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Terrace)
set(terrace_cpp_folders base memory kernels offload optim)

install(
  TARGETS terrace_c
  EXPORT TerraceC
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT c)
install(
  FILES ${PROJECT_SOURCE_DIR}/runtime/capi/terrace.h
        ${PROJECT_SOURCE_DIR}/runtime/capi/terrace_units.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT c)
install(
  EXPORT TerraceC
  NAMESPACE Terrace::
  FILE TerraceC.cmake
  DESTINATION ${terrace_package_dir}
  COMPONENT c)

set(terrace_cpp_targets ${terrace_cpp_folders})
list(TRANSFORM terrace_cpp_targets PREPEND terrace_)
install(
  TARGETS ${terrace_cpp_targets}
  EXPORT TerraceCpp
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp)
foreach(folder IN LISTS terrace_cpp_folders)
  install(
    DIRECTORY ${PROJECT_SOURCE_DIR}/${folder}
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/terrace
    COMPONENT cpp
    FILES_MATCHING
    PATTERN "*.h"
    PATTERN "*.inl")
endforeach()
install(
  EXPORT TerraceCpp
  NAMESPACE Terrace::
  FILE TerraceCpp.cmake
  DESTINATION ${terrace_package_dir}
  COMPONENT cpp)

install(TARGETS terrace RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)

configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/TerraceConfig.cmake.in ${PROJECT_BINARY_DIR}/package/TerraceConfig.cmake
  INSTALL_DESTINATION ${terrace_package_dir}
  NO_SET_AND_CHECK_MACRO)
# Interfaces may still change between minor versions.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/TerraceConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH terrace_prefix_from_pc /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${PROJECT_SOURCE_DIR}/cmake/terrace.pc.in ${PROJECT_BINARY_DIR}/package/terrace.pc @ONLY)
install(
  FILES ${PROJECT_BINARY_DIR}/package/TerraceConfig.cmake
        ${PROJECT_BINARY_DIR}/package/TerraceConfigVersion.cmake
  DESTINATION ${terrace_package_dir}
  COMPONENT c)
install(
  FILES ${PROJECT_BINARY_DIR}/package/terrace.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  COMPONENT c)

# A wheel holds no links, so it has the library once, under the name that it is loaded by.
install(
  FILES $<TARGET_FILE:terrace_c>
  DESTINATION terrace/lib
  RENAME $<TARGET_SONAME_FILE_NAME:terrace_c>
  COMPONENT wheel)
install(PROGRAMS $<TARGET_FILE:terrace> DESTINATION terrace/bin COMPONENT wheel)
