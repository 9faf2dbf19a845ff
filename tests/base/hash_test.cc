#include "base/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace terrace {
namespace {

std::vector<std::byte> some_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 131 + (i >> 8));
  return bytes;
}

// From the specification of XXH3.
TEST(HashTest, KnownValue) { EXPECT_EQ(hash_bytes({}), 0x2D06800538D394C2ULL); }

TEST(HashTest, EveryBitCounts) {
  std::vector<std::byte> bytes = some_bytes(257);
  const std::uint64_t whole = hash_bytes(bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{1};
    EXPECT_NE(hash_bytes(bytes), whole);
    bytes[i] ^= std::byte{1};
  }
  EXPECT_EQ(hash_bytes(bytes), whole);
}

TEST(HashTest, DoesNotDependOnAlignment) {
  std::vector<std::byte> room = some_bytes(1100);
  const std::vector<std::byte> bytes = some_bytes(1000);
  for (std::size_t shift = 0; shift < 64; ++shift) {
    std::ranges::copy(bytes, room.begin() + static_cast<std::ptrdiff_t>(shift));
    EXPECT_EQ(hash_bytes(std::span(room).subspan(shift, 1000)), hash_bytes(bytes));
  }
}

TEST(StreamingHashTest, PiecesHashAsTheWhole) {
  const std::vector<std::byte> bytes = some_bytes(10000);
  for (const std::size_t piece : {1U, 7U, 64U, 1000U, 9999U, 10000U}) {
    StreamingHash hash;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      hash.add(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
    }
    EXPECT_EQ(hash.value(), hash_bytes(bytes));
  }
}

TEST(StreamingHashTest, ValueMayBeReadBetween) {
  const std::vector<std::byte> bytes = some_bytes(600);
  StreamingHash hash;
  EXPECT_EQ(hash.value(), hash_bytes({}));
  hash.add(std::span(bytes).first(300));
  EXPECT_EQ(hash.value(), hash_bytes(std::span(bytes).first(300)));
  hash.add({});
  hash.add(std::span(bytes).subspan(300));
  EXPECT_EQ(hash.value(), hash_bytes(bytes));
}

}  // namespace
}  // namespace terrace
