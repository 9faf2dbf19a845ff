#pragma once

#include <fmt/format.h>

#include <cstdint>

#include "runtime/tokenizer/bpe_merges.h"
#include "runtime/tokenizer/json_node.h"

namespace terrace {

// The largest id that a tokenizer may have. No vocabulary is known that comes near it.
inline constexpr std::int32_t kTokenIdMax = BpeMerges::kIdMax;

// Reads an id. One that is too large is refused, a negative one is damage.
inline std::int32_t read_token_id(const JsonNode& node) {
  const std::int64_t id = node.integer();
  if (id < 0) node.corrupt(fmt::format("{} is not an id", id));
  if (id > kTokenIdMax) {
    node.refuse(
        fmt::format("the id {} is larger than {}, the largest that is built", id, kTokenIdMax));
  }
  return static_cast<std::int32_t>(id);
}

}  // namespace terrace
