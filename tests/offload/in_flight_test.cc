#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "offload/posix_engine.h"
#include "offload/uring/uring_engine.h"
#include "tests/offload/store_fixture.h"

namespace terrace {
namespace {

constexpr std::size_t kPiece = 64 * kKiB;
constexpr std::size_t kPieces = 64;

// Counts the pieces that have been started and not yet reported as ended. The first piece is held
// when it starts, until all others have been submitted.
class HeldCompletion final : public PieceCompletion {
 public:
  void piece_started() noexcept override {
    std::unique_lock lock(mutex_);
    ++begun_;
    most_ = std::max(most_, begun_ - ended_);
    changed_.notify_all();
    changed_.wait(lock, [this] { return all_submitted_; });
  }
  void piece_done(PieceResult result) noexcept override {
    const std::lock_guard lock(mutex_);
    failed_ = failed_ || !result.complete;
    ++ended_;
    changed_.notify_all();
  }

  void wait_for_the_first() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return begun_ == 1; });
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    all_submitted_ = true;
    changed_.notify_all();
  }
  // Returns the largest number that was in flight.
  std::size_t wait_for_all() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_ == kPieces; });
    EXPECT_FALSE(failed_);
    return most_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool all_submitted_ = false;
  bool failed_ = false;
  std::size_t begun_ = 0;
  std::size_t ended_ = 0;
  std::size_t most_ = 0;
};

class InFlightTest : public ::testing::Test {
 protected:
  void SetUp() override {
    memory_.fill(1);
    ASSERT_EQ(file_.preallocate(kPiece * kPieces), 0);
    ASSERT_GT(file_.write_at(memory_.span(), 0), 0);
  }

  // Returns the largest number in flight, for pieces of one size that are all submitted at once.
  std::size_t most_in_flight(IoEngine& engine) {
    HeldCompletion completion;
    for (std::size_t i = 0; i < kPieces; ++i) {
      if (i == 1) completion.wait_for_the_first();
      engine.submit({.direction = IoDirection::kRead,
                     .offset = i * kPiece,
                     .memory = memory_.span().subspan(i * kPiece, kPiece),
                     .completion = &completion});
    }
    completion.let_go();
    return completion.wait_for_all();
  }

  // On io_uring, ended pieces are reported after the next ones have been started, so twice the
  // limit may be seen.
  void expect_on_uring(const InFlight& limit, std::size_t pieces) {
    try {
      const auto engine = make_uring_engine({&file_}, limit);
      const std::size_t most = most_in_flight(*engine);
      EXPECT_GE(most, pieces);
      EXPECT_LE(most, 2 * pieces);
    } catch (const UringRefused&) {
      GTEST_SKIP() << "io_uring is forbidden here";
    }
  }
  void expect_on_threads(const InFlight& limit, std::size_t pieces) {
    PosixEngine engine({&file_}, limit, "posix");
    EXPECT_LE(most_in_flight(engine), pieces);
  }

  ScratchDirectory scratch_;
  DirectFile file_{scratch_.path() / "file"};
  AlignedMemory memory_{kPiece * kPieces, 4096};
};

TEST_F(InFlightTest, PiecesAreCounted) { expect_on_uring({.pieces_max = 8}, 8); }

TEST_F(InFlightTest, PiecesAreCountedOnThreads) { expect_on_threads({.pieces_max = 3}, 3); }

TEST_F(InFlightTest, BytesAreCounted) {
  expect_on_uring({.pieces_max = kPieces, .bytes_max = 8 * kPiece + 1}, 8);
}

TEST_F(InFlightTest, BytesAreCountedOnThreads) {
  expect_on_threads({.pieces_max = kPieces, .bytes_max = 3 * kPiece + 1}, 3);
}

TEST_F(InFlightTest, OnePieceIsAllowedHoweverLarge) {
  expect_on_uring({.pieces_max = kPieces, .bytes_max = 1}, 1);
}

TEST_F(InFlightTest, OnePieceIsAllowedHoweverLargeOnThreads) {
  expect_on_threads({.pieces_max = kPieces, .bytes_max = 1}, 1);
}

}  // namespace
}  // namespace terrace
