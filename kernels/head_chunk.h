#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace terrace {

// Returns the number of rows of logits that the head computes at once: the largest power of two
// whose fp32 logits fit in 128 MiB, within [64, 4096]. Fixed by the vocabulary alone, so that no
// budget can change bits: the weight gradient of a micro-batch is the sum of its chunks' gradients
// in chunk order, from the first.
inline std::int64_t head_chunk_rows(std::int64_t vocabulary) {
  constexpr std::uint64_t kLogitsMax = (std::uint64_t{128} << 20) / sizeof(float);
  const std::uint64_t fitting = kLogitsMax / static_cast<std::uint64_t>(vocabulary);
  return static_cast<std::int64_t>(std::clamp<std::uint64_t>(std::bit_floor(fitting), 64, 4096));
}

}  // namespace terrace
