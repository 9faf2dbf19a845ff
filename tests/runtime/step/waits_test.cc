#include <gtest/gtest.h>

#include "runtime/step/step_waits.h"
#include "tests/runtime/step/hand_made_program.h"

namespace terrace {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

RunReport report_of(const std::vector<std::pair<int, int>>& seconds) {
  RunReport report;
  for (const auto& [start, end] : seconds) {
    report.times.push_back({start * kSecond, end * kSecond});
  }
  return report;
}

// A forward, and then one that needs bytes that are read and uploaded.
struct ReadUploadForward {
  ReadUploadForward() {
    const BufferId first = made.own_buffer();
    const BufferId read = made.own_buffer();
    const BufferId uploaded = made.own_buffer();
    const BufferId out = made.own_buffer();
    made.op(Lane::kCompute, 1, {}, {first});
    made.op(Lane::kRead, 1, {}, {read});
    made.op(Lane::kUpload, 1, {read}, {uploaded});
    made.op(Lane::kCompute, 1, {uploaded}, {out});
    program = made.finish();
  }
  HandMadeProgram made;
  Program program;
};

TEST(StepWaits, AGapIsSplitAlongTheChainOfWhatWasWaitedFor) {
  const ReadUploadForward chain;
  StepWaits waits(chain.program);
  // Compute stands still from 12 to 20: it waits for the read until 15, for nothing until 16, and
  // for the upload until 19.
  waits.add(report_of({{10, 12}, {11, 15}, {16, 19}, {20, 22}}));
  EXPECT_DOUBLE_EQ(waits.waited_s(Lane::kRead), 3);
  EXPECT_DOUBLE_EQ(waits.waited_s(Lane::kUpload), 3);
  EXPECT_DOUBLE_EQ(waits.unexplained_s(), 2);
  EXPECT_DOUBLE_EQ(waits.waited_s(Lane::kUpdate), 0);
  EXPECT_EQ(waits.last_predecessor(3).op, 2);
  EXPECT_EQ(waits.last_predecessor(1).op, kNoOp);
}

TEST(StepWaits, ATransferHeldUpByTheOneBeforeItWaitedForWhatThatWaitedFor) {
  HandMadeProgram made;
  const BufferId first = made.own_buffer();
  const BufferId written = made.own_buffer();
  const BufferId held_up = made.own_buffer();
  const BufferId needed = made.own_buffer();
  const BufferId out = made.own_buffer();
  made.op(Lane::kCompute, 1, {}, {first});
  made.op(Lane::kWrite, 1, {}, {written});
  made.op(Lane::kRead, 1, {written}, {held_up});
  made.op(Lane::kRead, 1, {}, {needed});
  made.op(Lane::kCompute, 1, {needed}, {out});
  const Program program = made.finish();
  StepWaits waits(program);
  // The second read could have started at once, but had to wait behind the first.
  waits.add(report_of({{10, 12}, {11, 16}, {16, 25}, {16, 19}, {19, 20}}));
  EXPECT_DOUBLE_EQ(waits.waited_s(Lane::kRead), 3);
  EXPECT_DOUBLE_EQ(waits.waited_s(Lane::kWrite), 4);
  EXPECT_DOUBLE_EQ(waits.unexplained_s(), 0);
}

TEST(StepWaits, WhatIsDoneBetweenStepsIsNoGap) {
  const ReadUploadForward chain;
  StepWaits waits(chain.program);
  waits.add(report_of({{10, 20}, {11, 12}, {12, 13}, {20, 22}}));
  waits.leave_out_until_next_run();
  waits.add(report_of({{50, 60}, {51, 52}, {52, 53}, {60, 62}}));
  EXPECT_DOUBLE_EQ(waits.unexplained_s(), 0);
}

TEST(StepWaits, NoGapNoCause) {
  const ReadUploadForward chain;
  StepWaits waits(chain.program);
  waits.add(report_of({{10, 20}, {11, 12}, {12, 13}, {20, 22}}));
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    EXPECT_DOUBLE_EQ(waits.waited_s(static_cast<Lane>(l)), 0);
  }
  EXPECT_DOUBLE_EQ(waits.unexplained_s(), 0);
}

TEST(StepWaits, AnEdgeToTheRunBeforeIsACause) {
  HandMadeProgram made;
  const BufferId state = made.own_buffer(Life::kPersistent);
  const BufferId out = made.own_buffer();
  made.op(Lane::kCompute, 1, {state}, {out});
  made.op(Lane::kUpdate, 1, {out}, {state});
  const Program program = made.finish();
  StepWaits waits(program);
  waits.add(report_of({{10, 11}, {11, 15}}));
  waits.add(report_of({{15, 16}, {16, 17}}));
  EXPECT_DOUBLE_EQ(waits.waited_s(Lane::kUpdate), 4);
  EXPECT_EQ(waits.last_predecessor(0).op, 1);
  EXPECT_EQ(waits.last_predecessor(0).runs_before, 1);
}

}  // namespace
}  // namespace terrace
