#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// The ids of texts: a flat hash table that is written once. Thread-safe for readers.
class TokenTable {
 public:
  static constexpr std::int32_t kNone = -1;

  // Makes room for `texts` texts.
  explicit TokenTable(std::size_t texts);

  // Adds a text with its id. If the text is already there, its id changes.
  void add(std::string_view text, std::int32_t id);
  // Returns the id of the text; kNone where it has none.
  std::int32_t find(std::string_view text) const;

 private:
  struct Slot {
    std::uint32_t hash = 0;
    std::int32_t id = kNone;
    std::uint64_t begin = 0;  // of the text, in texts_
    std::uint64_t size_bytes = 0;
  };

  // Returns the slot of the text, or the empty one where it would stand.
  std::size_t place_of(std::string_view text, std::uint64_t hash) const;

  std::vector<Slot> slots_;
  std::size_t mask_;
  std::string texts_;
  std::size_t longest_ = 0;  // bytes of a text
};

}  // namespace terrace
