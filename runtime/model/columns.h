#pragma once

#include <cstdint>

#include "runtime/model/unit_graph.h"

namespace terrace {

// Some columns of a matrix.
struct Columns {
  TensorId matrix = kNoTensor;
  std::int64_t first = 0;
  std::int64_t width = 0;

  StridedRows of(const UnitRun& run) const {
    return matrix == kNoTensor ? StridedRows{} : columns_of(run.view(matrix), first, width);
  }
};

}  // namespace terrace
