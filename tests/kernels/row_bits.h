#pragma once

#include "base/dtype.h"
#include "kernels/cpu/cpu_arithmetic.h"

namespace terrace::test {

// Whether some rows of a weight's gradient, multiplied by themselves, have the bits that they have
// in the whole gradient. oneDNN's fp32 products for AVX2 add up in an order that depends on how
// many rows there are; docs/tuning.md says so.
inline bool rows_have_bits_of_whole(DType type) {
  return type != DType::kF32 || cpu_arithmetic().find("avx2") == std::string::npos;
}

}  // namespace terrace::test
