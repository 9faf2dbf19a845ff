#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernel_context.h"

// The least that an update, or another kernel, can do: the same memory traffic with hardly any
// arithmetic. Benchmarks measure kernels against it.
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

  // Returns the bytes between memory and processor for `elements` elements.
  double traffic_bytes(std::int64_t elements) const {
    return static_cast<double>(elements) * static_cast<double>(bytes_per_element) *
           (access == Access::kUpdate ? 2 : 1);
  }
};

// How a pass moves the bytes: which way is the fastest depends on the processor and on the size.
struct StreamForm {
  bool asks_ahead = true;  // prefetches lines; else the processor finds out by itself
  bool past_cache = true;  // for arrays that are only written
};

// Makes one pass over `elements` elements of all arrays, side by side, on the context's workers.
// Arrays that are updated keep their values; those that are written have unspecified values.
// `elements` is a multiple of 64.
void stream_pass(const KernelContext& context, std::span<const StreamedArray> arrays,
                 std::int64_t elements, const StreamForm& form = {});

}  // namespace terrace
