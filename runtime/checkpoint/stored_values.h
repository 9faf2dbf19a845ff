#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/model/parameter_layout.h"

// Values of safetensors files as fp32, in which F32, BF16 and F16 are exact.
namespace terrace {

// Returns whether tensors of this type can be read: F32, BF16 and F16.
bool is_loadable(SafetensorsType type);
// Convert the type of a loadable tensor to a DType, and back.
DType dtype_of_values(SafetensorsType type);
SafetensorsType type_in_file(DType dtype);

// Returns the shape of the stored tensor that has a parameter's rows.
std::vector<std::uint64_t> stored_shape(const ParameterTensor& tensor);

// Reads elements [first, first + out.size()) of a tensor of a loadable type, in the file's order.
// Throws IoError.
void read_values(const SafetensorsFile& file, const SafetensorsTensor& tensor, std::int64_t first,
                 std::span<float> out);
// Reads elements [first, first + out.size()) of the parameter that a stored vector is the sum of
// (ParameterTensor::addends). Throws IoError.
void read_addends(const SafetensorsFile& file, const SafetensorsTensor& tensor, std::int64_t first,
                  std::span<float> out);

}  // namespace terrace
