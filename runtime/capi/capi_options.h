#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "memory/tensor.h"
#include "runtime/capi/terrace.h"
#include "runtime/session/parameter_session.h"
#include "runtime/session/unit_session.h"

// Converts the structs of terrace.h to the structs of the sessions. All functions throw
// SessionError, which names the field, for a value that is not possible.
namespace terrace {

// Throws if a pointer is null; `what` is its name.
void check_pointer(const void* pointer, const char* what);
// Throws if the struct is smaller than it was in the first version, or if bytes that this library
// does not know are not zero.
void check_struct(const void* given, std::size_t known_bytes, const char* what);

// Returns a copy of a struct of the caller.
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
// Returns the memory of a buffer, which must be the CPU's.
TensorView view_of(const terrace_buffer& buffer, const char* what);
// Returns where the memory of a buffer is, for calls that also take a GPU's. elements_of() returns
// the memory.
GpuPlace place_of(const terrace_buffer& buffer, const char* what);
TensorView elements_of(const terrace_buffer& buffer, const char* what);
SessionTensor tensor_of(const terrace_tensor_options& options, std::int32_t group);
SessionStepOptions step_options_of(const terrace_step_options& options);
// Returns the memory of a buffer of fp32 elements.
std::span<float> floats_of(const terrace_buffer& buffer, const char* what);
std::vector<NamedValue> named_values(const terrace_hyperparameter* values, std::uint32_t count);
UnitSessionOptions units_options_of(const terrace_units_options& options);
SessionUnit unit_of(const terrace_unit_options& options);
StepTask task_of(std::int32_t unit, std::int32_t pass, std::int32_t micro_batch);

}  // namespace terrace
