#pragma once

#include <cstdint>
#include <span>

#include "runtime/model/parameter_layout.h"

// The values a parameter starts from when it is not loaded.
namespace terrace {

// Fills `out` with elements [begin, begin + out.size()) of `tensor`. A value depends only on the
// seed, the tensor's random stream and the element's number. So any division into ranges, on any
// thread or machine, gives the same bits. Thread-safe.
void init_parameter(const ParameterTensor& tensor, std::uint64_t seed, std::int64_t begin,
                    std::span<float> out);

}  // namespace terrace
