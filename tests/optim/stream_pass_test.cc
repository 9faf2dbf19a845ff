#include "optim/stream_pass.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/host/worker_arena.h"

namespace terrace {
namespace {

constexpr std::int64_t kElements = 70016;

// Bytes that begin at a cache line.
struct Lines {
  explicit Lines(std::size_t bytes) : storage(bytes + 64) {
    const auto address = reinterpret_cast<std::uintptr_t>(storage.data());
    data = storage.data() + (64 - address % 64) % 64;
  }
  std::vector<std::byte> storage;
  std::byte* data;
};

void keeps_what_it_reads(const StreamForm& form) {
  using Access = StreamedArray::Access;
  WorkerArena workers(2);
  KernelContext context;
  context.workers = &workers;
  for (const std::size_t width : {1U, 2U, 4U}) {
    const std::size_t bytes = kElements * width;
    Lines read(bytes), updated(bytes), written(bytes);
    for (std::size_t i = 0; i < bytes; ++i) {
      read.data[i] = std::byte{0xff};
      updated.data[i] = static_cast<std::byte>(i * 7 + 1);
      written.data[i] = std::byte{0x55};
    }
    const std::vector<StreamedArray> arrays = {{read.data, width, Access::kRead},
                                               {updated.data, width, Access::kUpdate},
                                               {written.data, width, Access::kWrite}};
    stream_pass(context, arrays, kElements, form);
    for (std::size_t i = 0; i < bytes; ++i) {
      ASSERT_EQ(updated.data[i], static_cast<std::byte>(i * 7 + 1)) << i;
      ASSERT_NE(written.data[i], std::byte{0x55}) << i;
      ASSERT_EQ(read.data[i], std::byte{0xff}) << i;
    }
  }
}

TEST(StreamPass, KeepsWhatItReadsAndUpdatesAndWritesTheRest) {
  for (const bool asks_ahead : {true, false}) {
    for (const bool past_cache : {true, false}) {
      keeps_what_it_reads({.asks_ahead = asks_ahead, .past_cache = past_cache});
    }
  }
}

TEST(StreamPass, CountsWhatIsUpdatedTwice) {
  const StreamedArray updated = {nullptr, 4, StreamedArray::Access::kUpdate};
  const StreamedArray written = {nullptr, 2, StreamedArray::Access::kWrite};
  EXPECT_EQ(updated.traffic_bytes(100), 800);
  EXPECT_EQ(written.traffic_bytes(100), 200);
}

}  // namespace
}  // namespace terrace
