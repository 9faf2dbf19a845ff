#pragma once

#include <cstdint>

#include "base/check.h"
#include "memory/tensor.h"

namespace terrace {

// Neighbouring rows, [begin, end).
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t count() const { return end - begin; }
};

// Returns the rows that an op computes whose `row_range` (i32) says so: from its first number up to
// its last one, or all `rows` where it is empty. It is read when the op runs, on the CPU.
inline RowRange rows_in(const TensorView& row_range, std::int64_t rows) {
  if (row_range.empty()) return {0, rows};
  const auto* const numbers = row_range.as<const std::int32_t>();
  const RowRange range = {numbers[0], numbers[row_range.elements() - 1]};
  TERRACE_CHECK_LE(0, range.begin);
  TERRACE_CHECK_LE(range.begin, range.end);
  TERRACE_CHECK_LE(range.end, rows);
  return range;
}

}  // namespace terrace
