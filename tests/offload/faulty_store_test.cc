#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "offload/nvme_store.h"
#include "tests/offload/store_fixture.h"

// Whatever the device does, a request ends with the right bytes, or with an outcome that says
// otherwise.
namespace terrace {
namespace {

constexpr std::size_t kExtents = 24;
constexpr std::uint64_t kSeeds = 6;

struct Tally {
  int done = 0;
  int failed = 0;
  int corrupt = 0;
};

void count(Tally& tally, const IoOutcome& outcome, int error_number) {
  switch (outcome.kind) {
    case IoOutcome::Kind::kDone:
      ++tally.done;
      EXPECT_NO_THROW(outcome.throw_if_failed());
      return;
    case IoOutcome::Kind::kFailed:
      ++tally.failed;
      EXPECT_EQ(outcome.where.error_number, error_number);
      EXPECT_GT(outcome.where.size, 0U);
      EXPECT_THROW(outcome.throw_if_failed(), IoError);
      return;
    case IoOutcome::Kind::kCorrupt:
      ++tally.corrupt;
      EXPECT_GT(outcome.where.size, 0U);
      EXPECT_THROW(outcome.throw_if_failed(), CorruptData);
      return;
  }
}

// Writes and reads extents of two and a half blocks. A request that reports success must be right.
Tally exercise(const FaultPlan& plan) {
  const std::unique_ptr<BlockStore> store = make_faulty_store(plan);
  const std::size_t size = store->block_bytes() * 5 / 2;
  std::vector<ExtentId> extents;
  for (std::size_t i = 0; i < kExtents; ++i) extents.push_back(store->create_extent(size));
  store->prepare();
  Tally tally;
  AlignedMemory bytes(size, store->alignment());
  AlignedMemory back(size, store->alignment());
  for (std::size_t i = 0; i < kExtents; ++i) {
    bytes.fill(plan.seed + i);
    const IoOutcome written = write_bytes(*store, extents[i], 0, bytes.span());
    count(tally, written, plan.error_number);
    const IoOutcome read = read_bytes(*store, extents[i], 0, back.span());
    count(tally, read, plan.error_number);
    if (read.kind == IoOutcome::Kind::kDone) {
      EXPECT_EQ(written.kind, IoOutcome::Kind::kDone) << "seed " << plan.seed << " extent " << i;
      EXPECT_TRUE(back == bytes) << "seed " << plan.seed << " extent " << i;
    }
  }
  return tally;
}

TEST(FaultyStore, WithoutFaultsAllIsDone) {
  const Tally tally = exercise(FaultPlan{});
  EXPECT_EQ(tally.done, 2 * static_cast<int>(kExtents));
}

TEST(FaultyStore, FailuresBecomeOutcomes) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    FaultPlan plan;
    plan.seed = seed;
    plan.fail_rate = 0.1;
    plan.error_number = ENOSPC;
    const Tally tally = exercise(plan);
    EXPECT_GT(tally.failed, 0) << seed;
    EXPECT_GT(tally.done, 0) << seed;
  }
}

TEST(FaultyStore, CorruptionIsFound) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    FaultPlan plan;
    plan.seed = seed;
    plan.corrupt_rate = 0.1;
    const Tally tally = exercise(plan);
    EXPECT_GT(tally.corrupt, 0) << seed;
    EXPECT_GT(tally.done, 0) << seed;
    EXPECT_EQ(tally.failed, 0) << seed;
  }
}

TEST(FaultyStore, ShortAndLateTransfersAreCompleted) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    FaultPlan plan;
    plan.seed = seed;
    plan.short_rate = 0.5;
    plan.delay_rate = 0.1;
    const Tally tally = exercise(plan);
    EXPECT_EQ(tally.done, 2 * static_cast<int>(kExtents)) << seed;
  }
}

TEST(FaultyStore, AllFaultsTogether) {
  for (std::uint64_t seed = 100; seed < 100 + kSeeds; ++seed) {
    FaultPlan plan;
    plan.seed = seed;
    plan.fail_rate = 0.03;
    plan.corrupt_rate = 0.03;
    plan.short_rate = 0.3;
    plan.delay_rate = 0.1;
    const Tally tally = exercise(plan);
    EXPECT_GT(tally.failed + tally.corrupt, 0) << seed;
    EXPECT_GT(tally.done, 0) << seed;
  }
}

TEST(FaultyStore, ADeviceThatIsOnlyInterruptedFailsInTheEnd) {
  FaultPlan plan;
  plan.fail_rate = 1;
  plan.error_number = EINTR;
  const Tally tally = exercise(plan);
  // Nothing was written, so every read that the device makes fails as well.
  EXPECT_EQ(tally.failed, 2 * static_cast<int>(kExtents));
}

TEST(FaultyStore, TheSameSeedGivesTheSameFaults) {
  FaultPlan plan;
  plan.seed = 7;
  plan.fail_rate = 0.1;
  plan.corrupt_rate = 0.1;
  const Tally first = exercise(plan);
  const Tally second = exercise(plan);
  EXPECT_EQ(first.done, second.done);
  EXPECT_EQ(first.failed, second.failed);
  EXPECT_EQ(first.corrupt, second.corrupt);
}

TEST(FaultyStore, ABlockWhoseWriteFailedIsNotReadAsData) {
  FaultPlan plan;
  plan.seed = 3;
  plan.fail_rate = 0.5;
  const std::unique_ptr<BlockStore> store = make_faulty_store(plan);
  std::vector<ExtentId> extents;
  for (std::size_t i = 0; i < kExtents; ++i) extents.push_back(store->create_extent(100));
  store->prepare();
  AlignedMemory bytes(100, store->alignment());
  bytes.fill(1);
  int never_written = 0;
  for (const ExtentId extent : extents) {
    const IoOutcome written = write_bytes(*store, extent, 0, bytes.span());
    const IoOutcome read = read_bytes(*store, extent, 0, bytes.span());
    if (written.kind == IoOutcome::Kind::kDone) continue;
    EXPECT_NE(read.kind, IoOutcome::Kind::kDone);
    if (read.kind == IoOutcome::Kind::kCorrupt) ++never_written;
  }
  EXPECT_GT(never_written, 0);
}

}  // namespace
}  // namespace terrace
