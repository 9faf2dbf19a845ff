#pragma once

#include <cstddef>

// The functions of the CUDA driver that are loaded by name, in types that need no cuda.h: results,
// devices, flags and attributes are int and unsigned, handles are void*, device addresses are
// unsigned long long.
namespace terrace {

using DriverAddress = unsigned long long;  // CUdeviceptr

struct DriverFunctions {
  int (*init)(unsigned flags) = nullptr;
  int (*get_error_string)(int error, const char** text) = nullptr;
  int (*device_get)(int* device, int ordinal) = nullptr;
  int (*context_retain)(void** context, int device) = nullptr;
  int (*context_release)(int device) = nullptr;
  int (*context_push)(void* context) = nullptr;
  int (*context_pop)(void** context) = nullptr;
  int (*stream_create)(void** stream, unsigned flags) = nullptr;
  int (*stream_destroy)(void* stream) = nullptr;
  int (*stream_synchronize)(void* stream) = nullptr;
  int (*stream_wait_event)(void* stream, void* event, unsigned flags) = nullptr;
  int (*event_create)(void** event, unsigned flags) = nullptr;
  int (*event_destroy)(void* event) = nullptr;
  int (*event_record)(void* event, void* stream) = nullptr;
  int (*event_synchronize)(void* event) = nullptr;
  int (*copy_to_host)(void* host, DriverAddress device, std::size_t bytes, void* stream) = nullptr;
  int (*copy_to_device)(DriverAddress device, const void* host, std::size_t bytes,
                        void* stream) = nullptr;
  int (*host_register)(void* memory, std::size_t bytes, unsigned flags) = nullptr;
  int (*host_unregister)(void* memory) = nullptr;
  int (*pointer_attribute)(void* value, int attribute, DriverAddress address) = nullptr;
};

}  // namespace terrace
