#pragma once

#include "base/dtype.h"
#include "kernels/cpu/cpu_arithmetic.h"

namespace terrace::test {

// Returns whether some rows of a weight's gradient, computed in a product of their own, have the
// same bits as in the whole gradient. oneDNN's fp32 products for AVX2 sum in an order that depends
// on the number of rows (docs/tuning.md).
inline bool rows_have_bits_of_whole(DType type) {
  return type != DType::kF32 || cpu_arithmetic().find("avx2") == std::string::npos;
}

}  // namespace terrace::test
