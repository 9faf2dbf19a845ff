#pragma once

#include <cstddef>
#include <memory>

#include "kernels/cpu/onednn_gemm.h"

namespace terrace {

// A oneDNN matrix product whose b oneDNN has packed once, in the form that it prefers. It is no
// kernel; products are measured against it. One thread at a time may use it.
class PackedGemm {
 public:
  // Sums are rounded to the shape's output; it has no bias and accumulates nothing. Throws
  // DeviceError if oneDNN fails.
  PackedGemm(const GemmShape& shape, const std::byte* b);
  ~PackedGemm();

  // Runs on the calling thread alone.
  void run(const std::byte* a, std::byte* c);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
