#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/dtype.h"
#include "kernels/cpu/packed_strips.h"
#include "kernels/kernel_context.h"

// The last step of a matrix product, on the fp32 sums of a part of it while they are still in the
// cache. Highway with run-time dispatch; single-threaded.
namespace terrace {

// Columns that lie one behind the other in either form of sums.
inline constexpr std::int64_t kSumsRun = 16;

// Sums of rows by columns: row-major, or in the squares of tiles that a StripCode leaves.
struct ProductSums {
  float* data = nullptr;
  std::int64_t stride = 0;       // elements from one row to the next; 0: squares of tiles
  std::int64_t left_strips = 0;  // for tiles: strips of rows in a strip of columns
  std::int64_t rows = 0, columns = 0;

  // Returns the sums of row r in kSumsRun columns from `column` on, a multiple of kSumsRun.
  float* run_at(std::int64_t r, std::int64_t column) const {
    if (stride != 0) return data + r * stride + column;
    const std::int64_t square = column / kStrip * left_strips + r / kStrip;
    return data + square * kStepElements + square_at(r % kStrip, column % kStrip);
  }
};

// Where the sums go: rounded once to `dtype` after the bias is added, or into a gradient (fp32, no
// bias): target = 0 + sum, or target += sum.
struct ProductTarget {
  std::byte* data = nullptr;
  std::int64_t stride = 0;  // elements from one row to the next
  DType dtype = DType::kF32;
  const std::byte* bias = nullptr;  // of the first column; may be null
  DType bias_dtype = DType::kF32;
  std::optional<GradientMode> gradient = std::nullopt;
};
void store_product(const ProductSums& sums, const ProductTarget& target);

}  // namespace terrace
