#pragma once

#include <cstdint>

namespace terrace {

// A micro-batch: B sequences of T positions each.
struct BatchShape {
  std::int64_t sequences = 1;
  std::int64_t positions = 1;
  // Ranks that share the rows of what is not tensor-parallel: those of sequence parallelism.
  std::int64_t row_parts = 1;

  std::int64_t rows() const { return sequences * positions; }
  std::int64_t own_rows() const { return rows() / row_parts; }
};

}  // namespace terrace
