#pragma once

#include <cstdint>
#include <vector>

#include "memory/tensor.h"

namespace terrace {

struct ProductRun {
  DType type = DType::kBF16;
  std::int64_t rows = 512;
  std::int64_t width = 2048;
  int threads = 1;
  std::vector<int> cpus = {};  // that the threads are pinned to; empty: none
};

// Returns the rate of the CPU device's product [rows, width] x [width, width]: the fastest of a few
// tries, which take some hundredths of a second together.
double product_flops_per_s(const ProductRun& run);

}  // namespace terrace
