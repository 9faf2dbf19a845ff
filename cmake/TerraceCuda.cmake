# Adds what TERRACE_CUDA needs: the language, cuBLASLt, NCCL, cuDNN's headers, and the options that .cu
# files are compiled with.
#
# Neither the driver (libcuda) nor NVML is linked, so a program that was built with CUDA starts on a
# machine without a driver too, and says what is missing there.

# Compiles code for A100 and H100, and the virtual instructions of H100 for newer GPUs.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90")
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "TERRACE_CUDA is ON and there is no nvcc: install the CUDA toolkit and put its "
                      "bin directory in PATH, or name nvcc in CUDACXX")
endif()
enable_language(CUDA)
# CMake 3.25 does not know that nvcc has C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
find_package(CUDAToolkit REQUIRED)

# The oldest of the architectures, which the device requires of GPUs. The kernels need features that
# sm_80 introduced.
set(terrace_architectures ${CMAKE_CUDA_ARCHITECTURES})
if(terrace_architectures STREQUAL native)
  set(terrace_architectures ${CMAKE_CUDA_ARCHITECTURES_NATIVE})
endif()
set(TERRACE_CUDA_CAPABILITY_MIN 1000)
foreach(architecture IN LISTS terrace_architectures)
  if(NOT architecture MATCHES "^([0-9]+)" OR CMAKE_MATCH_1 LESS 80)
    message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES has '${architecture}': name the architectures by their "
                        "numbers, 80 or more, or leave it unset")
  endif()
  if(CMAKE_MATCH_1 LESS TERRACE_CUDA_CAPABILITY_MIN)
    set(TERRACE_CUDA_CAPABILITY_MIN ${CMAKE_MATCH_1})
  endif()
endforeach()

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
add_library(terrace_nccl INTERFACE)
target_include_directories(terrace_nccl SYSTEM INTERFACE ${NCCL_INCLUDE_DIR})
target_link_libraries(terrace_nccl INTERFACE ${NCCL_LIBRARY} CUDA::cudart_static)

# cuDNN's attention is built if cuDNN's headers and cudnn_frontend's headers are found. Pip's wheel
# nvidia-cudnn-frontend installs the latter beside python's packages. The library is not linked but
# loaded by name.
set(terrace_python_includes "")
find_program(TERRACE_PYTHON python3)
if(TERRACE_PYTHON)
  execute_process(
    COMMAND ${TERRACE_PYTHON} -c "import site; print(';'.join(p + '/include' for p in [*site.getsitepackages(), site.getusersitepackages()]))"
    OUTPUT_VARIABLE terrace_python_includes
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
          HINTS ${CUDNN_FRONTEND_DIR} ${CUDNN_FRONTEND_DIR}/include ${terrace_python_includes})
# The backward needs features that cuDNN has since version 9.
set(terrace_cudnn_major 0)
if(CUDNN_INCLUDE_DIR AND EXISTS ${CUDNN_INCLUDE_DIR}/cudnn_version.h)
  file(STRINGS ${CUDNN_INCLUDE_DIR}/cudnn_version.h terrace_cudnn_line REGEX "define CUDNN_MAJOR [0-9]+")
  string(REGEX MATCH "[0-9]+" terrace_cudnn_major "${terrace_cudnn_line}")
endif()
if(CUDNN_FRONTEND_INCLUDE_DIR AND terrace_cudnn_major GREATER_EQUAL 9)
  message(STATUS "Attention by cuDNN: headers in ${CUDNN_INCLUDE_DIR} and ${CUDNN_FRONTEND_INCLUDE_DIR}")
  add_library(terrace_cudnn INTERFACE)
  target_include_directories(terrace_cudnn SYSTEM INTERFACE ${CUDNN_INCLUDE_DIR} ${CUDNN_FRONTEND_INCLUDE_DIR})
else()
  message(STATUS "Attention by own kernels only: cudnn.h of version 9 or newer is wanted, and is "
                 "${terrace_cudnn_major} in '${CUDNN_INCLUDE_DIR}'; cudnn_frontend.h is in "
                 "'${CUDNN_FRONTEND_INCLUDE_DIR}'; CUDNN_FRONTEND_DIR can name the latter's directory")
endif()

# A multiplication and an addition are not contracted: where the code wants a fused one it says so, and
# the same source gives the same bits on the host. Denormals are kept, and divisions and roots are
# rounded correctly (nvcc's defaults, written down because bits depend on them).
set(terrace_cuda_options
    --expt-relaxed-constexpr
    --fmad=false
    --ftz=false
    --prec-div=true
    --prec-sqrt=true
    -Xcompiler=-Wall,-Wextra,-ffp-contract=off
    -Xcudafe=--display_error_number
    # fmt 9 leaves constexpr out for every nvcc, so that C++20 does not compile.
    -DFMT_USE_CONSTEXPR=1)
if(TERRACE_WERROR)
  list(APPEND terrace_cuda_options --Werror=all-warnings -Xcompiler=-Werror)
endif()
