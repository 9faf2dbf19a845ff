#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace terrace {

// Code points by class, as the lengths of ranges from U+0000 on: in turn how many code points are
// not of the class and how many are.
struct UnicodeTables {
  std::span<const std::uint32_t> letters;
  std::span<const std::uint32_t> numbers;
  std::span<const std::uint32_t> spaces;
  std::span<const std::uint32_t> numerics;
  std::span<const std::uint32_t> words;
  std::span<const std::uint32_t> nfc_specials;
  std::span<const std::uint32_t> marks;
};

UnicodeTables unicode_tables();

}  // namespace terrace
