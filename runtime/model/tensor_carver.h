#pragma once

#include <cstddef>
#include <span>

#include "base/bytes.h"
#include "base/check.h"
#include "memory/tensor.h"

namespace terrace {

// Cuts tensors off a piece of memory, each on a 64-byte boundary. With no memory it only counts, so
// that one function both sizes a buffer and lays it out.
class TensorCarver {
 public:
  explicit TensorCarver(std::span<std::byte> memory) : memory_(memory) {}
  static TensorCarver counting() { return TensorCarver(std::span<std::byte>{}); }

  TensorView take(DType dtype, std::int64_t d0, std::int64_t d1 = 1, std::int64_t d2 = 1) {
    TensorView tensor = view(nullptr, dtype, d0, d1, d2);
    const std::size_t begin = used_;
    used_ = round_up(used_ + tensor.size_bytes(), 64);
    if (!memory_.empty()) {
      TERRACE_CHECK_LE(used_, memory_.size());
      tensor.data = memory_.data() + begin;
    }
    return tensor;
  }
  // What has not been cut off yet.
  std::span<std::byte> rest() const { return memory_.empty() ? memory_ : memory_.subspan(used_); }
  std::size_t used_bytes() const { return used_; }

 private:
  std::span<std::byte> memory_;
  std::size_t used_ = 0;
};

}  // namespace terrace
