#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

// Products of a few rows with many rows that are read where they lie: with weights, and with cached
// keys and values. Reading the bytes of these is nearly all the work. Highway with run-time
// dispatch; single-threaded.
namespace terrace {

// sums[r, c] = row r of a . row c of b, in fp32. Each row of b is read once. The depth and the
// instruction set determine the order of a sum, so its bits do not depend on the number of rows.
// Strides are in elements.
struct RowDots {
  DType dtype = DType::kF32;  // of a and b: fp32 or bf16
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  std::int64_t a_stride = 0, b_stride = 0;
  std::int64_t a_rows = 0, b_rows = 0, depth = 0;
  float* sums = nullptr;
  std::int64_t sums_stride = 0;
};
void dot_rows(const RowDots& dots);

// sums[r, d] = the sum over rows j of weights[r, j] * b[j, d], in fp32, j in order.
struct RowMix {
  DType dtype = DType::kF32;  // of b: fp32 or bf16
  const float* weights = nullptr;
  const std::byte* b = nullptr;
  std::int64_t weights_stride = 0, b_stride = 0;
  std::int64_t rows = 0, b_rows = 0, width = 0;
  float* sums = nullptr;  // rows of `width`, one behind the other
};
void mix_rows(const RowMix& mix);

}  // namespace terrace
