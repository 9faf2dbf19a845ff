#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace terrace {

// The most fp32 logits, in bytes, that the head computes at once: on processors, and on a GPU,
// which needs larger products.
inline constexpr std::uint64_t kHeadLogitsBytes = std::uint64_t{128} << 20;
inline constexpr std::uint64_t kGpuHeadLogitsBytes = std::uint64_t{512} << 20;

// Returns the number of rows of logits that the head computes at once: the largest power of two
// whose fp32 logits fit in `most` bytes, within [64, 4096]. Fixed by the vocabulary alone, so that
// no budget can change bits: the weight gradient of a micro-batch is the sum of its chunks'
// gradients in chunk order, from the first.
inline std::int64_t head_chunk_rows(std::int64_t vocabulary,
                                    std::uint64_t most = kHeadLogitsBytes) {
  const std::uint64_t fitting = most / sizeof(float) / static_cast<std::uint64_t>(vocabulary);
  return static_cast<std::int64_t>(std::clamp<std::uint64_t>(std::bit_floor(fitting), 64, 4096));
}

}  // namespace terrace
