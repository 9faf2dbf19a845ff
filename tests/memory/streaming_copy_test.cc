#include "memory/host/streaming_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/bytes.h"

namespace terrace {
namespace {

// Uses sizes and places for every way in which the copy is made: nothing, small, whole lines, and a
// head and a tail that are not whole lines.
TEST(StreamingCopy, CopiesEveryByteAndNoOther) {
  constexpr std::size_t kRoom = kMiB + 512;
  constexpr std::byte kUntouched{0xAB};
  std::mt19937_64 random(7);
  std::vector<std::byte> source(kRoom);
  for (std::byte& byte : source) byte = static_cast<std::byte>(random());
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, 256 * kKiB - 1, 256 * kKiB,
                                 256 * kKiB + 65, kMiB - 1, kMiB}) {
    for (const std::size_t from : {0U, 1U, 64U}) {
      for (const std::size_t to : {0U, 3U, 63U, 64U}) {
        std::vector<std::byte> target(kRoom, kUntouched);
        streaming_copy(std::span(target).subspan(to, size),
                       std::span<const std::byte>(source).subspan(from, size));
        const auto untouched = [](std::byte byte) { return byte == kUntouched; };
        const auto begin = target.begin() + static_cast<std::ptrdiff_t>(to);
        const auto end = begin + static_cast<std::ptrdiff_t>(size);
        EXPECT_TRUE(std::all_of(target.begin(), begin, untouched))
            << size << " " << from << " " << to;
        EXPECT_TRUE(std::all_of(end, target.end(), untouched)) << size << " " << from << " " << to;
        EXPECT_TRUE(std::equal(begin, end, source.begin() + static_cast<std::ptrdiff_t>(from)))
            << size << " " << from << " " << to;
      }
    }
  }
}

}  // namespace
}  // namespace terrace
