#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "bench/idle_bodies.h"
#include "bench/norm_wait.h"
#include "bench/product_limits.h"
#include "bench/rounds.h"

// Tests of the limits that benchmarks compare their figures with.
namespace terrace {
namespace {

// The store's traffic of a step: an update reads its state, waits for the norm of the step before,
// and writes; the forward waits for the update, and the norm comes last.
class NormWait : public testing::Test {
 protected:
  NormWait() {
    add(OpKind::kRead, Lane::kRead, 100);
    update_ = add(OpKind::kUpdate, Lane::kUpdate, 0, {{read(), 0}});
    write_ = add(OpKind::kWrite, Lane::kWrite, 10, {{update_, 0}});
    forward_ = add(OpKind::kForward, Lane::kCompute, 0, {{update_, 0}});
    norm_ = add(OpKind::kNormFinish, Lane::kUpdate, 0, {{forward_, 0}});
    wait(update_, {norm_, 1});
  }

  static OpId read() { return 0; }
  OpId add(OpKind kind, Lane lane, double bytes, std::vector<Dependency> after = {}) {
    program_.ops.push_back(
        {.kind = kind, .lane = lane, .after = std::move(after), .cost = {.bytes = bytes}});
    return static_cast<OpId>(program_.ops.size()) - 1;
  }
  void wait(OpId op, Dependency after) {
    program_.ops[static_cast<std::size_t>(op)].after.push_back(after);
  }

  Program program_;
  OpId update_, write_, forward_, norm_;
};

TEST_F(NormWait, WhatMayMoveUnderABackwardIsNotCounted) {
  EXPECT_EQ(bytes_behind_norm(program_), 0);
}

TEST_F(NormWait, AReadThatHasNoRoomBeforeTheUpdateIsCounted) {
  wait(read(), {norm_, 1});
  EXPECT_EQ(bytes_behind_norm(program_), 100);
}

TEST_F(NormWait, AWriteWhoseRoomTheForwardNeedsIsCounted) {
  wait(forward_, {write_, 0});
  EXPECT_EQ(bytes_behind_norm(program_), 10);
}

TEST_F(NormWait, AReadThatStartsBehindOneThatWaitsWaitsToo) {
  wait(read(), {update_, 1});
  EXPECT_EQ(bytes_behind_norm(program_), 0) << "that update was before the norm";
  program_.ops.front().after = {{norm_, 1}};
  const OpId second = add(OpKind::kRead, Lane::kRead, 7);
  const OpId forward = add(OpKind::kForward, Lane::kCompute, 0, {{second, 0}});
  wait(forward, {forward_, 0});
  EXPECT_EQ(bytes_behind_norm(program_), 107);
}

class TakesWrites final : public OpBodies {
 public:
  void run(const Op& /*op*/, const RunInput& /*input*/, NativeStream /*stream*/) override {}
  bool takes_checksums(const Op& transfer) const override { return transfer.lane == Lane::kWrite; }
};

TEST(IdleBodies, LeaveTheStoreTheChecksumsThatWorkingOnesLeave) {
  const TakesWrites working;
  const Op read = {.lane = Lane::kRead};
  const Op write = {.lane = Lane::kWrite};
  EXPECT_FALSE(IdleBodies(&working).takes_checksums(read));
  EXPECT_TRUE(IdleBodies(&working).takes_checksums(write));
  EXPECT_FALSE(IdleBodies().takes_checksums(write));
}

TEST(QuickestOf, TriesAllAndTakesTheQuickest) {
  int calls = 0;
  const auto sleep = [&calls](int ms) {
    return [&calls, ms] {
      ++calls;
      std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    };
  };
  const std::vector<std::function<void()>> ways = {sleep(40), sleep(0), sleep(40)};
  EXPECT_EQ(quickest_of(ways), 1U);
  EXPECT_LE(3, calls);
  EXPECT_EQ(quickest_of(std::span(ways).first(1)), 0U);
}

TEST(HighestOf, IsOfMedians) {
  std::vector<Samples> samples(3);
  for (const double value : {1.0, 5.0, 9.0}) samples[0].add(value);
  for (const double value : {6.0, 6.0, 6.0}) samples[1].add(value);
  for (const double value : {4.0, 4.0, 100.0}) samples[2].add(value);
  EXPECT_EQ(highest_of(samples), 1U);
}

class ProductLimits : public testing::TestWithParam<bool> {};

// The number of columns is one that two workers cannot share evenly.
TEST_P(ProductLimits, AllWaysGiveTheProduct) {
  constexpr std::int64_t kRows = 48, kColumns = 200, kInner = 72;
  const bool transposed = GetParam();
  WorkerArena workers(2);
  const auto memory = std::make_shared<HostCaseMemory>(workers);
  const TensorView a = memory->tensor(DType::kF32, kRows, kInner);
  const TensorView b =
      memory->tensor(DType::kF32, transposed ? kColumns : kInner, transposed ? kInner : kColumns);
  const TensorView c = memory->tensor(DType::kF32, kRows, kColumns);
  const MatrixProduct product = {.shape = {.m = kRows,
                                           .n = kColumns,
                                           .k = kInner,
                                           .a_stride = kInner,
                                           .b_stride = b.shape[1],
                                           .c_stride = kColumns,
                                           .b_transposed = transposed},
                                 .a = a.data,
                                 .b = b.data,
                                 .c = c.data};
  for (const KernelLimit& limit : onednn_weight_limits(memory, product, workers.threads())) {
    std::fill_n(c.as<float>(), c.elements(), NAN);
    limit.run();
    for (std::int64_t i = 0; i < kRows; ++i) {
      for (std::int64_t j = 0; j < kColumns; ++j) {
        float sum = 0;
        for (std::int64_t k = 0; k < kInner; ++k) {
          sum += a.as<float>()[i * kInner + k] *
                 b.as<float>()[transposed ? j * kInner + k : k * kColumns + j];
        }
        ASSERT_NEAR(c.as<float>()[i * kColumns + j], sum, 1e-6) << limit.is;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(OfEitherForm, ProductLimits, testing::Bool());

}  // namespace
}  // namespace terrace
