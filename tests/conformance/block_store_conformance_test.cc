#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "offload/nvme_store.h"
#include "tests/offload/store_fixture.h"

// Tests the behaviour of every block store, whatever it is made of.
namespace terrace {
namespace {

struct StoreCase {
  std::string name;
  std::function<std::unique_ptr<BlockStore>(const ScratchDirectory&)> make;
};

StoreCase nvme_case(const std::string& name, IoEngineKind engine, int directories, int depth) {
  return {.name = name, .make = [=](const ScratchDirectory& scratch) {
            NvmeStoreOptions options;
            options.engine = engine;
            options.queue_depth = depth;
            for (int i = 0; i < directories; ++i) {
              NvmeDirectory directory;
              directory.path = scratch.make(std::to_string(i));
              options.directories.push_back(directory);
            }
            static SilentLog log;  // outlives the store
            return make_nvme_store(options, log);
          }};
}

std::vector<StoreCase> store_cases() {
  return {
      {.name = "memory", .make = [](const ScratchDirectory&) { return make_memory_store(); }},
      {.name = "faulty_without_faults",
       .make = [](const ScratchDirectory&) { return make_faulty_store(FaultPlan{}); }},
      {.name = "faulty_late_and_short",
       .make =
           [](const ScratchDirectory&) {
             FaultPlan plan;
             plan.seed = 11;
             plan.delay_rate = 0.1;
             plan.short_rate = 0.3;
             return make_faulty_store(plan);
           }},
      // auto_engine is the engine that the machine allows: io_uring, or posix where that is
      // forbidden.
      nvme_case("auto_engine", IoEngineKind::kAuto, 1, 32),
      nvme_case("posix", IoEngineKind::kPosix, 1, 32),
      nvme_case("auto_engine_striped", IoEngineKind::kAuto, 3, 4),
      nvme_case("posix_striped", IoEngineKind::kPosix, 3, 4),
      nvme_case("auto_engine_one_deep", IoEngineKind::kAuto, 1, 1),
      nvme_case("posix_one_deep", IoEngineKind::kPosix, 1, 1),
  };
}

class BlockStoreConformance : public ::testing::TestWithParam<StoreCase> {
 protected:
  void SetUp() override { store_ = GetParam().make(scratch_); }

  AlignedMemory memory(std::size_t size) const { return {size, store_->alignment()}; }

  void write(ExtentId extent, std::size_t offset, std::span<std::byte> bytes) {
    write_bytes(*store_, extent, offset, bytes).throw_if_failed();
  }
  void read(ExtentId extent, std::size_t offset, std::span<std::byte> bytes) {
    read_bytes(*store_, extent, offset, bytes).throw_if_failed();
  }

  ScratchDirectory scratch_;
  std::unique_ptr<BlockStore> store_;
};

TEST_P(BlockStoreConformance, SizesThatCallersRelyOn) {
  EXPECT_EQ(store_->block_bytes() & (store_->block_bytes() - 1), 0U);
  EXPECT_EQ(store_->alignment() & (store_->alignment() - 1), 0U);
  EXPECT_EQ(store_->block_bytes() % store_->alignment(), 0U);
  EXPECT_EQ(store_->used_bytes(), 0U);
  store_->create_extent(1);
  EXPECT_EQ(store_->used_bytes(), store_->alignment());
  store_->create_extent(store_->block_bytes() + 1);
  EXPECT_EQ(store_->used_bytes(), store_->block_bytes() + 2 * store_->alignment());
  EXPECT_FALSE(store_->paths().empty());
  for (const StorePath& path : store_->paths()) EXPECT_FALSE(path.engine.empty());
}

TEST_P(BlockStoreConformance, BytesComeBackFromExtentsOfEverySize) {
  const std::size_t block = store_->block_bytes();
  const std::vector<std::size_t> sizes = {
      1, 4095, 4096, 4097, block - 1, block, block + 1, 3 * block, 12345, 2 * block + 7, 5 * block};
  std::vector<ExtentId> extents;
  std::vector<AlignedMemory> written;
  for (const std::size_t size : sizes) extents.push_back(store_->create_extent(size));
  store_->prepare();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    written.push_back(memory(sizes[i]));
    written[i].fill(i);
    write(extents[i], 0, written[i].span());
  }
  // Reads begin only when all extents are written, so that an extent that overlaps another would
  // show.
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    AlignedMemory back = memory(sizes[i]);
    back.clear();
    read(extents[i], 0, back.span());
    EXPECT_TRUE(back == written[i]) << "extent of " << sizes[i];
  }
}

TEST_P(BlockStoreConformance, WhatIsSetToZeroReadsAsZerosUntilItIsWritten) {
  const std::size_t block = store_->block_bytes();
  const std::size_t size = 3 * block + 5000;
  const ExtentId extent = store_->create_extent(size);
  store_->prepare();
  AlignedMemory expected = memory(size);
  expected.fill(3);
  write(extent, 0, expected.span());
  // Sets blocks 1 and 2 to zero, and then the tail. The device's bytes there do not matter.
  store_->set_zero(extent, block, 2 * block);
  std::memset(expected.span().data() + block, 0, 2 * block);
  AlignedMemory back = memory(size);
  read(extent, 0, back.span());
  EXPECT_TRUE(back == expected);
  store_->set_zero(extent, 3 * block, back.span().size() - 3 * block);
  std::memset(expected.span().data() + 3 * block, 0, back.span().size() - 3 * block);
  back.fill(4);
  read(extent, 0, back.span());
  EXPECT_TRUE(back == expected);
  // The checksums that the caller compares then match zeros.
  EXPECT_EQ(store_->compare_checksums(extent, 0, back.span()).kind, IoOutcome::Kind::kDone);
  back.span()[2 * block] = std::byte{1};
  EXPECT_EQ(store_->compare_checksums(extent, 0, back.span()).kind, IoOutcome::Kind::kCorrupt);
  AlignedMemory again = memory(block);
  again.fill(5);
  write(extent, block, again.span());
  std::memcpy(expected.span().data() + block, again.span().data(), block);
  read(extent, 0, back.span());
  EXPECT_TRUE(back == expected);
}

TEST_P(BlockStoreConformance, ManySmallExtents) {
  constexpr std::size_t kExtents = 100;
  std::vector<ExtentId> extents;
  for (std::size_t i = 0; i < kExtents; ++i) extents.push_back(store_->create_extent(1 + 97 * i));
  store_->prepare();
  for (std::size_t i = 0; i < kExtents; ++i) {
    AlignedMemory bytes = memory(1 + 97 * i);
    bytes.fill(1000 + i);
    write(extents[i], 0, bytes.span());
  }
  for (std::size_t i = 0; i < kExtents; ++i) {
    AlignedMemory expected = memory(1 + 97 * i);
    expected.fill(1000 + i);
    AlignedMemory back = memory(1 + 97 * i);
    read(extents[i], 0, back.span());
    EXPECT_TRUE(back == expected) << i;
  }
}

TEST_P(BlockStoreConformance, PartsOfAnExtent) {
  const std::size_t block = store_->block_bytes();
  const std::size_t size = 4 * block + 5000;
  const ExtentId extent = store_->create_extent(size);
  store_->prepare();
  AlignedMemory expected = memory(size);
  expected.fill(5);
  write(extent, 0, expected.span());
  // Blocks 1 and 2 are written again, and then the tail.
  AlignedMemory middle = memory(2 * block);
  middle.fill(6);
  write(extent, block, middle.span());
  std::memcpy(expected.span().data() + block, middle.span().data(), 2 * block);
  AlignedMemory tail = memory(5000);
  tail.fill(7);
  write(extent, 4 * block, tail.span());
  std::memcpy(expected.span().data() + 4 * block, tail.span().data(), tail.span().size());
  AlignedMemory back = memory(size);
  read(extent, 0, back.span().first(block));
  read(extent, block, back.span().subspan(block, block));
  read(extent, 2 * block, back.span().subspan(2 * block));
  EXPECT_TRUE(back == expected);
}

TEST_P(BlockStoreConformance, TheLastWriteCounts) {
  const std::size_t size = 2 * store_->block_bytes();
  const ExtentId extent = store_->create_extent(size);
  store_->prepare();
  AlignedMemory back = memory(size);
  for (std::uint64_t round = 0; round < 5; ++round) {
    AlignedMemory bytes = memory(size);
    bytes.fill(round);
    write(extent, 0, bytes.span());
    read(extent, 0, back.span());
    EXPECT_TRUE(back == bytes) << round;
  }
}

TEST_P(BlockStoreConformance, TwoThreadsWithManyInFlight) {
  constexpr std::size_t kExtents = 12;  // per thread
  const std::size_t size = store_->block_bytes() + 100;
  std::vector<ExtentId> extents;
  for (std::size_t i = 0; i < 2 * kExtents; ++i) extents.push_back(store_->create_extent(size));
  store_->prepare();
  const auto work = [&](std::size_t first) {
    std::vector<AlignedMemory> written;
    std::vector<AlignedMemory> back;
    std::vector<Waiter> writes(kExtents);
    std::vector<Waiter> reads(kExtents);
    for (std::size_t i = 0; i < kExtents; ++i) {
      written.push_back(memory(size));
      back.push_back(memory(size));
      written[i].fill(first + i);
      store_->submit({.direction = IoRequest::Direction::kWrite,
                      .extent = extents[first + i],
                      .offset = 0,
                      .memory = written[i].span(),
                      .completion = &writes[i]});
    }
    // An extent is read as soon as it is written, while others are still on their way.
    for (std::size_t i = 0; i < kExtents; ++i) {
      EXPECT_EQ(writes[i].wait().kind, IoOutcome::Kind::kDone);
      store_->submit({.direction = IoRequest::Direction::kRead,
                      .extent = extents[first + i],
                      .offset = 0,
                      .memory = back[i].span(),
                      .completion = &reads[i]});
    }
    store_->drain();
    for (std::size_t i = 0; i < kExtents; ++i) {
      EXPECT_EQ(reads[i].calls(), 1);
      EXPECT_EQ(writes[i].calls(), 1);
      EXPECT_EQ(reads[i].wait().kind, IoOutcome::Kind::kDone);
      EXPECT_TRUE(back[i] == written[i]) << first + i;
    }
  };
  std::thread other(work, 0);
  work(kExtents);
  other.join();
}

TEST_P(BlockStoreConformance, DrainWaitsForEverything) {
  constexpr std::size_t kRequests = 20;
  const std::size_t block = store_->block_bytes();
  const ExtentId extent = store_->create_extent(kRequests * block);
  store_->prepare();
  AlignedMemory bytes = memory(kRequests * block);
  bytes.fill(3);
  std::vector<Waiter> waiters(kRequests);
  for (std::size_t i = 0; i < kRequests; ++i) {
    store_->submit({.direction = IoRequest::Direction::kWrite,
                    .extent = extent,
                    .offset = i * block,
                    .memory = bytes.span().subspan(i * block, block),
                    .completion = &waiters[i]});
  }
  store_->drain();
  for (const Waiter& waiter : waiters) EXPECT_EQ(waiter.calls(), 1);
}

TEST_P(BlockStoreConformance, TheDestructorDrains) {
  const ExtentId extent = store_->create_extent(6 * store_->block_bytes());
  store_->prepare();
  AlignedMemory bytes = memory(6 * store_->block_bytes());
  bytes.fill(3);
  Waiter waiter;
  store_->submit({.direction = IoRequest::Direction::kWrite,
                  .extent = extent,
                  .offset = 0,
                  .memory = bytes.span(),
                  .completion = &waiter});
  store_.reset();
  EXPECT_EQ(waiter.calls(), 1);
}

TEST_P(BlockStoreConformance, RegisteredMemoryIsUsedLikeOther) {
  const std::size_t block = store_->block_bytes();
  const ExtentId extent = store_->create_extent(3 * block);
  store_->prepare();
  AlignedMemory registered = memory(3 * block);
  AlignedMemory other = memory(3 * block);
  store_->register_memory(registered.span());
  store_->register_memory(registered.span().subspan(block));  // known already
  registered.fill(8);
  write(extent, 0, registered.span());
  read(extent, 0, other.span());
  EXPECT_TRUE(other == registered);
  registered.clear();
  read(extent, 0, registered.span());
  EXPECT_TRUE(other == registered);
}

// Pages that the system takes away and gives again are not the pages that were registered.
TEST_P(BlockStoreConformance, RegisteredMemoryIsForgotten) {
  const std::size_t size = 3 * store_->block_bytes();
  const ExtentId extent = store_->create_extent(size);
  store_->prepare();
  void* const pages =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  const std::span registered(static_cast<std::byte*>(pages), size);
  for (int round = 1; round <= 2; ++round) {
    store_->register_memory(registered);
    std::ranges::fill(registered, static_cast<std::byte>(round));
    write(extent, 0, registered);
    store_->register_memory({});
    ASSERT_EQ(::madvise(pages, size, MADV_DONTNEED), 0);
    ASSERT_EQ(registered.front(), std::byte{0});
    if (round == 2) store_->register_memory(registered);
    read(extent, 0, registered);
    EXPECT_EQ(std::ranges::count(registered, static_cast<std::byte>(round)),
              std::ssize(registered));
  }
  store_.reset();
  ::munmap(pages, size);
}

TEST_P(BlockStoreConformance, ABlockThatWasNeverWrittenIsNotData) {
  const std::size_t block = store_->block_bytes();
  const ExtentId extent = store_->create_extent(3 * block);
  store_->prepare();
  AlignedMemory bytes = memory(3 * block);
  bytes.fill(4);
  write(extent, 0, bytes.span().first(block));
  const IoOutcome outcome = read_bytes(*store_, extent, 0, bytes.span());
  EXPECT_EQ(outcome.kind, IoOutcome::Kind::kCorrupt);
  EXPECT_FALSE(outcome.where.path.empty());
  EXPECT_EQ(outcome.where.size, block);
  EXPECT_THROW(outcome.throw_if_failed(), CorruptData);
  read(extent, 0, bytes.span().first(block));
}

// Has an extent that ends within a block and within a checksum, and another extent after it.
class ChecksumsByTheCaller : public BlockStoreConformance {
 protected:
  void SetUp() override {
    BlockStoreConformance::SetUp();
    size_ = 2 * store_->block_bytes() + kChecksumBytes + store_->alignment();
    extent_ = store_->create_extent(size_);
    other_ = store_->create_extent(size_);
    store_->prepare();
  }

  IoOutcome write_taken(std::span<std::byte> bytes) {
    return run_request(*store_, {.direction = IoRequest::Direction::kWrite,
                                 .checksums = IoRequest::Checksums::kByCaller,
                                 .extent = extent_,
                                 .memory = bytes});
  }
  IoOutcome read_uncompared(ExtentId extent, std::span<std::byte> bytes) {
    return run_request(*store_, {.direction = IoRequest::Direction::kRead,
                                 .checksums = IoRequest::Checksums::kByCaller,
                                 .extent = extent,
                                 .memory = bytes});
  }
  // Takes the checksums of all bytes, a part at a time.
  void take(std::span<const std::byte> bytes, std::size_t part) {
    for (std::size_t at = 0; at < bytes.size(); at += part) {
      store_->take_checksums(extent_, at, bytes.subspan(at, std::min(part, bytes.size() - at)));
    }
  }

  std::size_t size_ = 0;
  ExtentId extent_;
  ExtentId other_;
};

TEST_P(ChecksumsByTheCaller, AreThoseOfTheStore) {
  AlignedMemory bytes = memory(size_);
  for (const std::size_t part :
       {kChecksumBytes, 3 * kChecksumBytes, store_->block_bytes(), size_}) {
    SCOPED_TRACE(part);
    bytes.fill(part);
    take(bytes.span(), part);
    write_taken(bytes.span()).throw_if_failed();
    AlignedMemory back = memory(size_);
    read(extent_, 0, back.span());  // compared by the store
    EXPECT_TRUE(back == bytes);
    write(extent_, 0, bytes.span());  // taken by the store
    back.clear();
    read_uncompared(extent_, back.span()).throw_if_failed();
    EXPECT_TRUE(back == bytes);
    for (std::size_t at = 0; at < size_; at += part) {
      const auto compared = back.span().subspan(at, std::min(part, size_ - at));
      EXPECT_EQ(store_->compare_checksums(extent_, at, compared).kind, IoOutcome::Kind::kDone);
    }
  }
}

TEST_P(ChecksumsByTheCaller, FindAByteThatDiffers) {
  AlignedMemory bytes = memory(size_);
  bytes.fill(7);
  take(bytes.span(), size_);
  const std::size_t block = store_->block_bytes();
  for (const std::size_t at : {std::size_t{0}, block - 1, block + kChecksumBytes, size_ - 1}) {
    SCOPED_TRACE(at);
    bytes.span()[at] ^= std::byte{16};
    const IoOutcome outcome = store_->compare_checksums(extent_, 0, bytes.span());
    EXPECT_EQ(outcome.kind, IoOutcome::Kind::kCorrupt);
    EXPECT_FALSE(outcome.where.path.empty());
    EXPECT_LE(outcome.where.size, block);
    const std::size_t first = at / kChecksumBytes * kChecksumBytes;
    const auto near = bytes.span().subspan(first, std::min(kChecksumBytes, size_ - first));
    const IoOutcome nearer = store_->compare_checksums(extent_, first, near);
    EXPECT_EQ(nearer.kind, IoOutcome::Kind::kCorrupt);
    EXPECT_EQ(nearer.where.size, near.size());
    EXPECT_THROW(nearer.throw_if_failed(), CorruptData);
    bytes.span()[at] ^= std::byte{16};
  }
  EXPECT_EQ(store_->compare_checksums(extent_, 0, bytes.span()).kind, IoOutcome::Kind::kDone);
}

TEST_P(ChecksumsByTheCaller, AreNotTakenByTheStore) {
  AlignedMemory bytes = memory(size_);
  bytes.fill(8);
  write(extent_, 0, bytes.span());
  bytes.span()[size_ / 2] ^= std::byte{1};
  write_taken(bytes.span()).throw_if_failed();  // with the checksums of the old bytes
  AlignedMemory back = memory(size_);
  EXPECT_EQ(read_bytes(*store_, extent_, 0, back.span()).kind, IoOutcome::Kind::kCorrupt);
  read_uncompared(extent_, back.span()).throw_if_failed();
  EXPECT_TRUE(back == bytes);
  EXPECT_EQ(store_->compare_checksums(extent_, 0, back.span()).kind, IoOutcome::Kind::kCorrupt);
}

TEST_P(ChecksumsByTheCaller, WhatWasNeverWrittenIsNotData) {
  AlignedMemory bytes = memory(size_);
  bytes.fill(9);
  take(bytes.span(), size_);
  EXPECT_EQ(read_uncompared(extent_, bytes.span()).kind, IoOutcome::Kind::kCorrupt);
  write_taken(bytes.span()).throw_if_failed();
  EXPECT_EQ(read_uncompared(extent_, bytes.span()).kind, IoOutcome::Kind::kDone);
  EXPECT_EQ(read_uncompared(other_, bytes.span()).kind, IoOutcome::Kind::kCorrupt);
}

TEST_P(BlockStoreConformance, WithoutExtentsThereIsNothingToDo) {
  store_->prepare();
  store_->drain();
  EXPECT_EQ(store_->used_bytes(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Stores, BlockStoreConformance, ::testing::ValuesIn(store_cases()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Stores, ChecksumsByTheCaller, ::testing::ValuesIn(store_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace terrace
