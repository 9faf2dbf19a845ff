#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "memory/tensor.h"
#include "runtime/capi/terrace.h"
#include "runtime/session/parameter_session.h"

// From the structs of terrace.h to those of the session. All throw SessionError for what does not
// fit, naming the field.
namespace terrace {

// Throws where a pointer is null; `what` is its name.
void check_pointer(const void* pointer, const char* what);
// Throws where `size` is less than what every version has, or where bytes that this library does
// not know are not zero.
void check_struct(const void* given, std::size_t known_bytes, const char* what);

// A struct of the caller's, with zeros for what it lacks. `First` is the size of the struct's first
// version.
template <typename Struct>
Struct read_struct(const Struct* given, const char* what) {
  check_pointer(given, what);
  check_struct(given, sizeof(Struct), what);
  Struct all = {};
  std::memcpy(&all, given, sizeof(Struct));
  return all;
}

SessionOptions session_options_of(const terrace_session_options& options);
DType dtype_of(std::int32_t dtype, const char* what);
// The memory of a buffer, which is the CPU's.
TensorView view_of(const terrace_buffer& buffer, const char* what);
SessionTensor tensor_of(const terrace_tensor_options& options, std::int32_t group);
SessionStepOptions step_options_of(const terrace_step_options& options);

}  // namespace terrace
