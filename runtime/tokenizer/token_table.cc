#include "runtime/tokenizer/token_table.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "runtime/tokenizer/piece_hash.h"

namespace terrace {

TokenTable::TokenTable(std::size_t texts)
    : slots_(std::bit_ceil(std::max<std::size_t>(2 * texts, 16))), mask_(slots_.size() - 1) {}

std::size_t TokenTable::place_of(std::string_view text, std::uint64_t hash) const {
  const auto high = static_cast<std::uint32_t>(hash >> 32);
  for (std::size_t at = hash & mask_;; at = (at + 1) & mask_) {
    const Slot& slot = slots_[at];
    if (slot.id == kNone) return at;
    if (slot.hash == high && slot.size_bytes == text.size() &&
        std::string_view(texts_).substr(slot.begin, slot.size_bytes) == text) {
      return at;
    }
  }
}

void TokenTable::add(std::string_view text, std::int32_t id) {
  TERRACE_CHECK(!text.empty() && id >= 0);
  const std::uint64_t hash = piece_hash(text);
  Slot& slot = slots_[place_of(text, hash)];
  if (slot.id == kNone) {
    slot = {static_cast<std::uint32_t>(hash >> 32), id, texts_.size(), text.size()};
    texts_ += text;
    longest_ = std::max(longest_, text.size());
  }
  slot.id = id;
}

std::int32_t TokenTable::find(std::string_view text) const {
  if (text.empty() || text.size() > longest_) return kNone;
  return slots_[place_of(text, piece_hash(text))].id;
}

}  // namespace terrace
