#include "offload/uring/bare_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "offload/uring/uring_engine.h"
#include "tests/offload/store_fixture.h"

namespace terrace {
namespace {

constexpr std::size_t kBlock = 64 * kKiB;
constexpr std::size_t kBlocks = 16;
constexpr std::size_t kFile = kBlock * kBlocks;
constexpr int kDepth = 4;

class BareLoopTest : public ::testing::Test {
 protected:
  void SetUp() override {
    content_.fill(3);
    ASSERT_EQ(file_.preallocate(kFile), 0);
    ASSERT_EQ(file_.write_at(content_.span(), 0), static_cast<std::int64_t>(kFile));
    memory_.clear();
    try {
      loop_ = std::make_unique<BareLoop>(
          file_, FileRange{.begin = 0, .bytes = kFile}, memory_.span(),
          BareLoop::Options{.block_bytes = kBlock, .depth = kDepth, .mode = {}});
    } catch (const UringRefused&) {
      GTEST_SKIP() << "io_uring is forbidden here";
    }
  }

  AlignedMemory on_disk() {
    AlignedMemory bytes(kFile, 4096);
    EXPECT_EQ(file_.read_at(bytes.span(), 0), static_cast<std::int64_t>(kFile));
    return bytes;
  }

  static bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
    return std::ranges::equal(a, b);
  }

  ScratchDirectory scratch_;
  DirectFile file_{scratch_.path() / "file"};
  AlignedMemory content_{kFile, 4096};
  AlignedMemory memory_{kBlock * kDepth, 4096};
  std::unique_ptr<BareLoop> loop_;
};

TEST_F(BareLoopTest, ReadsBlocksInOrderAndChangesNothing) {
  // The loop starts one block per slot; there is no time to start more.
  EXPECT_EQ(loop_->run(IoMix::kRead, 0), kBlock * kDepth);
  EXPECT_TRUE(same(memory_.span(), content_.span().first(kBlock * kDepth)));
  EXPECT_TRUE(on_disk() == content_);
}

TEST_F(BareLoopTest, WritesBlocksInOrder) {
  memory_.fill(9);
  EXPECT_EQ(loop_->run(IoMix::kWrite, 0), kBlock * kDepth);
  AlignedMemory disk = on_disk();
  EXPECT_TRUE(same(disk.span().first(kBlock * kDepth), memory_.span()));
  EXPECT_TRUE(same(disk.span().subspan(kBlock * kDepth), content_.span().subspan(kBlock * kDepth)));
}

TEST_F(BareLoopTest, MixedReadsOneHalfAndWritesTheOther) {
  memory_.fill(9);
  EXPECT_EQ(loop_->run(IoMix::kMixed, 0), kBlock * kDepth);
  AlignedMemory disk = on_disk();
  const std::size_t half = kFile / 2;
  EXPECT_TRUE(same(disk.span().first(half), content_.span().first(half)));
  EXPECT_TRUE(same(memory_.span().first(kBlock), content_.span().first(kBlock)));
  EXPECT_TRUE(same(disk.span().subspan(half, kBlock), memory_.span().subspan(kBlock, kBlock)));
  const std::size_t written = half + 2 * kBlock;
  EXPECT_TRUE(same(disk.span().subspan(written), content_.span().subspan(written)));
}

TEST_F(BareLoopTest, StaysInItsPartOfTheFile) {
  constexpr std::size_t kBegin = 6 * kBlock;
  constexpr std::size_t kPart = 4 * kBlock;
  BareLoop loop(file_, FileRange{.begin = kBegin, .bytes = kPart}, memory_.span(),
                BareLoop::Options{.block_bytes = kBlock, .depth = kDepth, .mode = {}});
  EXPECT_EQ(loop.run(IoMix::kRead, 0), kPart);
  EXPECT_TRUE(same(memory_.span(), content_.span().subspan(kBegin, kPart)));
  memory_.fill(9);
  EXPECT_EQ(loop.run(IoMix::kWrite, 0), kPart);
  AlignedMemory disk = on_disk();
  EXPECT_TRUE(same(disk.span().subspan(kBegin, kPart), memory_.span()));
  EXPECT_TRUE(same(disk.span().first(kBegin), content_.span().first(kBegin)));
  constexpr std::size_t kEnd = kBegin + kPart;
  EXPECT_TRUE(same(disk.span().subspan(kEnd), content_.span().subspan(kEnd)));
}

// A clock on which a second passes whenever it is read.
class CountingClock final : public Clock {
 public:
  std::int64_t now_ns() const override { return looks_++ * 1'000'000'000; }
  std::int64_t looks() const { return looks_; }

 private:
  mutable std::int64_t looks_ = 0;
};

TEST_F(BareLoopTest, GoesOnForAsLongAsIsAsked) {
  // The loop reads the clock once at the start, and then whenever something has ended. That is at
  // least one block each time, and it is replaced by another until the seconds are over.
  constexpr int kSeconds = 2 * kBlocks;
  const CountingClock clock;
  const std::uint64_t carried = loop_->run(IoMix::kRead, kSeconds, clock);
  EXPECT_LE((kSeconds - 1 + kDepth) * kBlock, carried);
  EXPECT_LE(kSeconds, clock.looks());
  EXPECT_EQ(carried % kBlock, 0U);
  // The file was read more than once, and the memory holds blocks of it.
  EXPECT_LT(kFile, carried);
  EXPECT_TRUE(on_disk() == content_);
}

TEST_F(BareLoopTest, ABlockThatEndsEarlyIsAnError) {
  ASSERT_EQ(::truncate((scratch_.path() / "file").c_str(), kBlock + 4096), 0);
  EXPECT_THROW(loop_->run(IoMix::kRead, 0), IoError);
}

}  // namespace
}  // namespace terrace
