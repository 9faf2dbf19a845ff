#include "offload/piece_progress.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

namespace terrace {
namespace {

constexpr std::size_t kAlignment = 4096;

class PieceProgressTest : public ::testing::Test {
 protected:
  std::vector<std::byte> memory_ = std::vector<std::byte>(8 * kAlignment);
  PieceProgress progress_{Piece{.direction = IoDirection::kRead,
                                .offset = 3 * kAlignment,
                                .memory = memory_,
                                .completion = nullptr},
                          kAlignment};
};

using Next = PieceProgress::Next;

TEST_F(PieceProgressTest, WholeTransferCompletes) {
  EXPECT_EQ(progress_.advance(8 * kAlignment), Next::kComplete);
  EXPECT_TRUE(progress_.result().complete);
}

TEST_F(PieceProgressTest, ShortTransferGoesOnFromAnAlignedPlace) {
  EXPECT_EQ(progress_.advance(2 * kAlignment + 17), Next::kAgain);
  EXPECT_EQ(progress_.rest_offset(), 5 * kAlignment);
  EXPECT_EQ(progress_.rest().data(), memory_.data() + 2 * kAlignment);
  EXPECT_EQ(progress_.rest().size(), 6 * kAlignment);
  EXPECT_EQ(progress_.advance(6 * kAlignment), Next::kComplete);
}

TEST_F(PieceProgressTest, InterruptedTransferStartsAgain) {
  EXPECT_EQ(progress_.advance(-EINTR), Next::kAgain);
  EXPECT_EQ(progress_.advance(-EAGAIN), Next::kAgain);
  EXPECT_EQ(progress_.rest_offset(), 3 * kAlignment);
  EXPECT_EQ(progress_.rest().size(), 8 * kAlignment);
  EXPECT_EQ(progress_.advance(8 * kAlignment), Next::kComplete);
}

TEST_F(PieceProgressTest, InterruptionsAreBounded) {
  for (int i = 1; i < PieceProgress::kMaxFruitless; ++i) {
    ASSERT_EQ(progress_.advance(-EINTR), Next::kAgain) << i;
  }
  EXPECT_EQ(progress_.advance(-EINTR), Next::kFailed);
  EXPECT_FALSE(progress_.result().complete);
  EXPECT_EQ(progress_.result().error_number, EINTR);
}

TEST_F(PieceProgressTest, LessThanAnAlignedUnitIsNoProgress) {
  for (int i = 1; i < PieceProgress::kMaxFruitless; ++i) {
    ASSERT_EQ(progress_.advance(100), Next::kAgain) << i;
    ASSERT_EQ(progress_.rest_offset(), 3 * kAlignment);
  }
  EXPECT_EQ(progress_.advance(100), Next::kFailed);
  EXPECT_EQ(progress_.result().error_number, 0);
}

TEST_F(PieceProgressTest, ProgressForgivesEarlierInterruptions) {
  for (int unit = 0; unit < 7; ++unit) {
    for (int i = 1; i < PieceProgress::kMaxFruitless; ++i) {
      ASSERT_EQ(progress_.advance(-EAGAIN), Next::kAgain);
    }
    ASSERT_EQ(progress_.advance(kAlignment), Next::kAgain);
  }
  EXPECT_EQ(progress_.advance(kAlignment), Next::kComplete);
}

TEST_F(PieceProgressTest, EndOfFileFails) {
  EXPECT_EQ(progress_.advance(4 * kAlignment), Next::kAgain);
  EXPECT_EQ(progress_.advance(0), Next::kFailed);
  EXPECT_FALSE(progress_.result().complete);
  EXPECT_EQ(progress_.result().error_number, 0);
}

TEST_F(PieceProgressTest, ErrorFails) {
  EXPECT_EQ(progress_.advance(-EIO), Next::kFailed);
  EXPECT_FALSE(progress_.result().complete);
  EXPECT_EQ(progress_.result().error_number, EIO);
}

}  // namespace
}  // namespace terrace
