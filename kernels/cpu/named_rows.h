#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "memory/tensor.h"

// Sums of rows that a list of names picks: the data that the loops of cpu_embedding.cc work on.
namespace terrace {

// The names of the rows of dh: an i32 [R] per micro-batch. Row n of a target belongs to the name
// first + n.
struct Names {
  std::span<const TensorView> of_rows;
  std::int64_t first = 0, count = 0;
  bool skips_others = false;                            // else there are no other names
  std::optional<std::int64_t> left_out = std::nullopt;  // a name that is skipped
};

// Row n of target gets scale times the sum of the rows of dh that have its name, stored or added.
struct NamedRows {
  std::span<const TensorView> dh;  // one [R,C] per micro-batch
  TensorView target;
  float scale = 1;
  bool accumulate = false;
};

// Some of the sorted keys of all rows, and some columns.
struct KeyBlock {
  std::size_t begin = 0, end = 0;
  std::int64_t column = 0, columns = 0;
};

}  // namespace terrace
