#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernel_context.h"

// The least that an update can do: the same memory traffic with hardly any arithmetic. What AdamW
// is measured against.
namespace terrace {

struct StreamedArray {
  enum class Access : std::uint8_t {
    kRead,
    kUpdate,  // read, and written in place
    kWrite,   // past the cache
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

// One pass over `elements` elements of all arrays, side by side, on the context's workers. What is
// updated keeps its values; what is written is unspecified. Elements are a multiple of 64.
void stream_pass(const KernelContext& context, std::span<const StreamedArray> arrays,
                 std::int64_t elements);

}  // namespace terrace
