#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernel_context.h"

// The least that an update can do, or another kernel: the same memory traffic with hardly any
// arithmetic. What benchmarks measure them against.
namespace terrace {

struct StreamedArray {
  enum class Access : std::uint8_t {
    kRead,
    kUpdate,  // read, and written in place
    kWrite,
  };
  std::byte* data = nullptr;  // 64-aligned
  std::size_t bytes_per_element = 1;
  Access access = Access::kRead;

  // Bytes between memory and processor, for so many elements.
  double traffic_bytes(std::int64_t elements) const {
    return static_cast<double>(elements) * static_cast<double>(bytes_per_element) *
           (access == Access::kUpdate ? 2 : 1);
  }
};

// How a pass moves the bytes: which way is the fastest depends on the processor and on the size.
struct StreamForm {
  bool asks_ahead = true;  // for lines before their turn; else the processor finds out by itself
  bool past_cache = true;  // what is only written
};

// One pass over `elements` elements of all arrays, side by side, on the context's workers. What is
// updated keeps its values; what is written is unspecified. Elements are a multiple of 64.
void stream_pass(const KernelContext& context, std::span<const StreamedArray> arrays,
                 std::int64_t elements, const StreamForm& form = {});

}  // namespace terrace
