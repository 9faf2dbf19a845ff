#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.h"

// The bf16 or fp16 values of a parameter, as ParameterMemory gives them, beside the fp32 master of
// one of its chunks, which has as many elements.
namespace terrace {

// Sets a master to the parameter's values.
void read_parameter(DType dtype, std::span<const std::byte> parameter, float* master);
// Writes the parameter as an update would, from its master.
void round_parameter(DType dtype, std::span<std::byte> parameter, const float* master);

}  // namespace terrace
