#include "memory/host/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "memory/host/topology.h"
#include "tests/sanitized.h"

namespace terrace {
namespace {

std::size_t resident_pages(std::span<std::byte> bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages(divide_up(bytes.size(), page));
  EXPECT_EQ(::mincore(bytes.data(), bytes.size(), pages.data()), 0);
  return static_cast<std::size_t>(
      std::ranges::count_if(pages, [](unsigned char state) { return (state & 1) != 0; }));
}

bool is_mapped(std::byte* page) {
  unsigned char state = 0;
  return ::mincore(page, 1, &state) == 0;
}

TEST(HostMemoryTest, IsExactAlignedAndZero) {
  for (const std::size_t size : {1UL, 4095UL, 4097UL, 2 * kMiB, 3 * kMiB + 5}) {
    for (const bool huge_pages : {false, true}) {
      const HostMemory memory(size, {.huge_pages = huge_pages});
      EXPECT_EQ(memory.bytes().size(), size);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.bytes().data()) % (2 * kMiB), 0U);
      EXPECT_TRUE(
          std::ranges::all_of(memory.bytes(), [](std::byte b) { return b == std::byte{}; }));
      std::ranges::fill(memory.bytes(), std::byte{0xAB});
      EXPECT_EQ(memory.bytes().back(), std::byte{0xAB});
    }
  }
}

TEST(HostMemoryTest, TouchFaultsEveryPageIn) {
  const std::size_t pages = 3 * kMiB / static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const HostMemory touched(3 * kMiB, {.huge_pages = false});
  EXPECT_EQ(resident_pages(touched.bytes()), pages);
  const HostMemory untouched(3 * kMiB, {.huge_pages = false, .touch = false});
  EXPECT_EQ(resident_pages(untouched.bytes()), 0U);
}

TEST(HostMemoryTest, HugePagesOnlyWhereTheyFit) {
  EXPECT_FALSE(HostMemory(kMiB, {}).has_huge_pages());
  EXPECT_FALSE(HostMemory(4 * kMiB, {.huge_pages = false}).has_huge_pages());
}

TEST(HostMemoryTest, MovesItsMapping) {
  HostMemory first(8192, {});
  std::byte* const data = first.bytes().data();
  first.bytes()[5] = std::byte{42};
  HostMemory second = std::move(first);
  EXPECT_EQ(second.bytes().data(), data);
  EXPECT_TRUE(first.bytes().empty());  // NOLINT(bugprone-use-after-move): the state after a move
  HostMemory third(4096, {});
  std::byte* const replaced = third.bytes().data();
  third = std::move(second);
  EXPECT_EQ(third.bytes().data(), data);
  EXPECT_EQ(third.bytes()[5], std::byte{42});
  EXPECT_FALSE(is_mapped(replaced));
}

TEST(HostMemoryTest, GivesPagesBackAndTakesThemAgain) {
  for (const bool is_locked : {false, true}) {
    HostMemory memory(3 * kMiB + 5, {.huge_pages = false});
    const std::size_t pages = resident_pages(memory.pages());
    EXPECT_EQ(memory.pages().size() % 4096, 0U);
    std::ranges::fill(memory.bytes(), std::byte{7});
    if (is_locked && ::mlock(memory.bytes().data() + kMiB, 4096) != 0) GTEST_SKIP();
    memory.give_pages_back();
    EXPECT_EQ(resident_pages(memory.pages()), 0U);
    memory.take_pages();
    EXPECT_EQ(resident_pages(memory.pages()), pages);
    EXPECT_TRUE(std::ranges::all_of(memory.bytes(), [](std::byte b) { return b == std::byte{}; }));
    // The pages are locked again as a whole, so the system gives none of them back. The sanitizers
    // make mlock() do nothing.
    EXPECT_EQ(::madvise(memory.bytes().data(), memory.pages().size(), MADV_DONTNEED) != 0,
              is_locked && !kSanitized);
  }
}

TEST(HostMemoryTest, UnmapsWhenDestroyed) {
  std::byte* data = nullptr;
  {
    const HostMemory memory(8192, {});
    data = memory.bytes().data();
    EXPECT_TRUE(is_mapped(data));
  }
  EXPECT_FALSE(is_mapped(data));
}

TEST(HostMemoryTest, EmptyMapsNothing) {
  const HostMemory memory(0, {});
  EXPECT_TRUE(memory.bytes().empty());
}

TEST(HostMemoryTest, RefusesMoreThanThereIs) {
  for (const bool touch : {false, true}) {
    for (const std::size_t size : {std::size_t{1} << 50, SIZE_MAX - 5}) {
      try {
        const HostMemory memory(size, {.touch = touch});
        ADD_FAILURE() << "mapped " << size;
      } catch (const OutOfMemory& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr(format_size(size) + " requested"));
        EXPECT_THAT(error.what(), testing::HasSubstr(" free"));
      }
    }
  }
}

TEST(HostMemoryTest, BindsToANode) {
  const int node = read_topology().numa_nodes.front().os_index;
  try {
    const HostMemory memory(kMiB, {.numa_nodes = {node}});
    const HostMemory in_turn(kMiB, {.numa_nodes = {node, node}});
    std::ranges::fill(memory.bytes(), std::byte{1});
  } catch (const EnvironmentError& error) {
    GTEST_SKIP() << error.what();
  }
}

TEST(HostMemoryTest, RefusesANodeThatIsNotThere) {
  EXPECT_THROW(HostMemory(kMiB, {.numa_nodes = {4095}}), ConfigError);
}

}  // namespace
}  // namespace terrace
