# Says how every library, program and test of the project is compiled.

# The folder that headers are named from. In a build of the project itself it is the checkout. For
# another project it is a folder that has only the libraries' folders, so that the project does not see
# tests/ or docs/ among its own folders.
if(PROJECT_IS_TOP_LEVEL)
  set(terrace_include_dir ${PROJECT_SOURCE_DIR})
else()
  set(terrace_include_dir ${PROJECT_BINARY_DIR}/include)
  file(MAKE_DIRECTORY ${terrace_include_dir})
  foreach(folder base memory offload kernels optim parallel runtime)
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${folder} ${terrace_include_dir}/${folder} SYMBOLIC)
  endforeach()
endif()

# These flags are for this project only: a project that links its libraries gets none of them.
add_library(terrace_flags INTERFACE)
set(terrace_warnings -Wall -Wextra -Wconversion -Wno-sign-conversion $<$<BOOL:${TERRACE_WERROR}>:-Werror>)
target_compile_options(
  terrace_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${terrace_warnings};-ffp-contract=off>")
if(TERRACE_CUDA)
  target_compile_options(terrace_flags
                         INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${terrace_cuda_options}>")
endif()
# Source names in messages are relative to the checkout, so that another checkout compiles to the same
# bytes.
target_compile_options(
  terrace_flags
  INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>")
target_include_directories(terrace_flags INTERFACE ${PROJECT_SOURCE_DIR})
# In a unity build, names that are hidden in a file are hidden in an included file, which gcc warns of.
if(CMAKE_UNITY_BUILD)
  target_compile_options(terrace_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()
if(TERRACE_SANITIZE)
  target_compile_options(terrace_flags INTERFACE -fsanitize=${TERRACE_SANITIZE}
                                                 -fno-omit-frame-pointer)
  target_link_options(terrace_flags INTERFACE -fsanitize=${TERRACE_SANITIZE})
endif()

# The ThreadSanitizer of GCC before 14 does not start if mappings are randomised by more than 28 bits.
# The tests under it then run with randomisation off.
if(TERRACE_SANITIZE STREQUAL "thread" AND EXISTS /proc/sys/vm/mmap_rnd_bits)
  file(READ /proc/sys/vm/mmap_rnd_bits terrace_random_bits)
  find_program(TERRACE_SETARCH setarch)
  if(terrace_random_bits GREATER 28 AND TERRACE_SETARCH)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${TERRACE_SETARCH} -R)
  endif()
endif()

# terrace_add_folders(names...): adds the named folders that exist and have a CMakeLists.txt.
function(terrace_add_folders)
  foreach(folder IN LISTS ARGN)
    if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/CMakeLists.txt)
      add_subdirectory(${folder})
    endif()
  endforeach()
endfunction()

# terrace_folder(NAME SOURCES... DEPENDS targets...): defines the static library terrace_NAME of a folder.
# A project that builds Terrace as a part of it calls the library Terrace::NAME. The library passes on the
# C++ standard that its headers need, and the folder that they are named from.
function(terrace_folder name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS")
  add_library(terrace_${name} STATIC ${arg_SOURCES})
  # Highway includes such a source again for each instruction set, by the source's own name.
  foreach(source IN LISTS arg_SOURCES)
    file(STRINGS ${source} highway REGEX "HWY_TARGET_INCLUDE" LIMIT_COUNT 1)
    if(highway)
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
  add_library(Terrace::${name} ALIAS terrace_${name})
  set_target_properties(terrace_${name} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(terrace_${name} PUBLIC cxx_std_20)
  target_include_directories(
    terrace_${name}
    PRIVATE ${PROJECT_SOURCE_DIR}
    INTERFACE $<BUILD_INTERFACE:${terrace_include_dir}> $<INSTALL_INTERFACE:include/terrace>)
  target_link_libraries(
    terrace_${name}
    PUBLIC ${arg_DEPENDS}
    PRIVATE $<BUILD_INTERFACE:terrace_flags> ${arg_PRIVATE_DEPENDS})
endfunction()

# Adds each test of the program under its own name, as the program lists them when ctest starts. So a
# program that cannot start fails the tests and not the build.
function(terrace_discover_tests name environment labels timeout processors cost)
  if(environment)
    set(environment ENVIRONMENT ${environment})
  endif()
  gtest_discover_tests(
    ${name}
    DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 120
    PROPERTIES TIMEOUT ${timeout} PROCESSORS ${processors} COST ${cost} ${environment})

  # The discovery passes on one label at most. This file, which is read after it, sets all labels. A
  # program that is not built stands for its tests, and is selected as they would be.
  set(script ${CMAKE_CURRENT_BINARY_DIR}/${name}_labels.cmake)
  file(WRITE ${script} "if(NOT ${name}_TESTS)\n"
                       "  set(${name}_TESTS ${name}_NOT_BUILT)\n"
                       "endif()\n"
                       "foreach(test IN LISTS ${name}_TESTS)\n"
                       "  set_tests_properties(\"\${test}\" PROPERTIES LABELS \"${labels}\")\n"
                       "endforeach()\n")
  set_property(
    DIRECTORY
    APPEND
    PROPERTY TEST_INCLUDE_FILES ${script})
endfunction()

# Adds the tests of the program as COUNT processes, each of which runs every COUNT-th test.
function(terrace_add_shards name count environment labels timeout processors cost)
  math(EXPR last "${count} - 1")
  foreach(index RANGE ${last})
    math(EXPR number "${index} + 1")
    set(test ${name}.part_${number}_of_${count})
    add_test(NAME ${test} COMMAND ${name} --gtest_brief=1)
    set_tests_properties(
      ${test}
      PROPERTIES TIMEOUT ${timeout} PROCESSORS ${processors} COST ${cost} LABELS "${labels}" ENVIRONMENT
                 "${environment};GTEST_TOTAL_SHARDS=${count};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()

# terrace_test(NAME SOURCES... DEPENDS... LABELS... TIMEOUT seconds PROCESSORS count SHARDS count
# COST seconds ONE_PROCESSOR): defines a GoogleTest program. ctest knows each test by its own name, and by the
# number of processors that it keeps busy (1). With SHARDS, and always under the sanitizers, where a process
# takes long to start, ctest knows parts of the program instead, each a process that runs several tests. COST
# is the time of the program's longest test, if that is long: ctest starts such tests first, so that none is
# left alone at the end. ONE_PROCESSOR is for programs that do not test threads, though many meet in them: each
# process stays on a processor of its own (tests/one_processor.cc), which saves a tenth to a sixth of its time.
# A test has the labels given here and its folder's labels (TERRACE_FOLDER_LABELS, set by
# tests/CMakeLists.txt);
# docs/testing.md says what each label selects.
# The target tests_LABEL builds the programs of a label. tests_sanitized builds the programs that the debug
# preset runs, and tests_threads the programs that the tsan preset runs.
function(terrace_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "ONE_PROCESSOR" "TIMEOUT;PROCESSORS;SHARDS;COST"
                        "SOURCES;DEPENDS;LABELS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 1)
  endif()
  if(NOT arg_COST)
    set(arg_COST 0)
  endif()
  if(TERRACE_SANITIZE)
    set(arg_SHARDS 6)
    math(EXPR arg_TIMEOUT "4 * ${arg_TIMEOUT}")
  endif()
  if(arg_ONE_PROCESSOR)
    list(APPEND arg_SOURCES ${PROJECT_SOURCE_DIR}/tests/one_processor.cc)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE terrace_flags ${arg_DEPENDS} GTest::gtest GTest::gmock
                                        GTest::gtest_main)
  # Only the GPU tests see a GPU: the other tests are not about the device that --device auto would take.
  set(environment "")
  if(NOT "gpu" IN_LIST TERRACE_FOLDER_LABELS)
    set(environment CUDA_VISIBLE_DEVICES=)
  endif()
  set(labels ${TERRACE_FOLDER_LABELS} ${arg_LABELS})
  list(REMOVE_DUPLICATES labels)
  if(arg_SHARDS)
    terrace_add_shards(${name} ${arg_SHARDS} "${environment}" "${labels}" ${arg_TIMEOUT} ${arg_PROCESSORS}
                       ${arg_COST})
  else()
    terrace_discover_tests(${name} "${environment}" "${labels}" ${arg_TIMEOUT} ${arg_PROCESSORS}
                       ${arg_COST})
  endif()

  set(groups ${labels})
  list(TRANSFORM groups PREPEND tests_)
  if(labels MATCHES "(^|;)(long|bits|large|tidy)(;|$)")
    list(REMOVE_ITEM groups tests_threads)
  elseif(NOT labels MATCHES "(^|;)(races|unsanitized)(;|$)")
    list(APPEND groups tests_sanitized)
  endif()
  foreach(group IN LISTS groups)
    if(NOT TARGET ${group})
      add_custom_target(${group})
    endif()
    add_dependencies(${group} ${name})
  endforeach()
endfunction()
