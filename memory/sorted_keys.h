#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <utility>
#include <vector>

namespace terrace {

// The place of an item of the packer (memory/arena_plan.h): its offset, and the item's index.
using PlacedKey = std::pair<std::size_t, std::uint32_t>;

// Sorted keys. They lie in blocks, so that an insertion moves only few of them.
class SortedKeys {
 public:
  void clear() {
    order_.clear();
    size_ = 0;
  }

  void insert(PlacedKey key) {
    ++size_;
    if (order_.empty()) return append_block({key});
    const auto behind = std::ranges::upper_bound(
        order_, key, {}, [this](std::uint32_t block) { return blocks_[block].front(); });
    const auto at = behind == order_.begin() ? behind : std::prev(behind);
    std::vector<PlacedKey>& block = blocks_[*at];
    block.insert(std::ranges::upper_bound(block, key), key);
    if (block.size() >= kBlockKeys) split(at);
  }

  std::size_t size() const { return size_; }

  // Calls visit for each key until it returns true, and then returns true.
  template <typename Visit>
  bool any_of(Visit visit) const {
    for (const std::uint32_t block : order_) {
      if (std::ranges::any_of(blocks_[block], visit)) return true;
    }
    return false;
  }

  void append_to(std::vector<PlacedKey>& keys) const {
    for (const std::uint32_t block : order_) {
      keys.insert(keys.end(), blocks_[block].begin(), blocks_[block].end());
    }
  }

 private:
  static constexpr std::size_t kBlockKeys = 256;

  void append_block(std::initializer_list<PlacedKey> keys) {
    const std::uint32_t block = new_block();
    blocks_[block] = keys;
    order_.push_back(block);
  }

  // The memory of blocks is kept when all are cleared.
  std::uint32_t new_block() {
    const auto used = static_cast<std::uint32_t>(order_.size());
    if (used == blocks_.size()) blocks_.emplace_back().reserve(kBlockKeys);
    blocks_[used].clear();
    return used;
  }

  void split(std::vector<std::uint32_t>::iterator at) {
    const std::ptrdiff_t position = at - order_.begin();
    const std::uint32_t other = new_block();  // may move the blocks
    std::vector<PlacedKey>& block = blocks_[order_[position]];
    const auto middle = block.begin() + static_cast<std::ptrdiff_t>(block.size() / 2);
    blocks_[other].assign(middle, block.end());
    block.erase(middle, block.end());
    order_.insert(order_.begin() + position + 1, other);
  }

  std::vector<std::vector<PlacedKey>> blocks_;  // the first order_.size() are in use
  std::vector<std::uint32_t> order_;            // of block indices; no block is empty
  std::size_t size_ = 0;
};

}  // namespace terrace
