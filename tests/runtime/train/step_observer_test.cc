#include "runtime/train/step_observer.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/runtime/step/hand_made_program.h"

namespace terrace {
namespace {

// A pipeline stage that receives, computes, updates its parameters, and computes again.
Program program_of_a_stage() {
  HandMadeProgram made;
  const BufferId received = made.own_buffer();
  const BufferId gradient = made.own_buffer();
  const BufferId updated = made.own_buffer();
  const BufferId out = made.own_buffer();
  made.op(Lane::kReceive, 1, {}, {received});
  made.op(Lane::kCompute, 1, {received}, {gradient});
  made.op(Lane::kUpdate, 1, {gradient}, {updated});
  made.op(Lane::kCompute, 1, {updated}, {out});
  return made.finish();
}

// Returns the report of a run that begins at a second, and waits for as long for another stage. It
// then computes for 3 s, updates for 6 s and computes for 1 s.
RunReport report_of(int begin, int waits) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  RunReport report;
  std::int64_t at = begin * kSecond;
  for (const int seconds : {waits, 3, 6, 1}) {
    const std::int64_t end = at + seconds * kSecond;
    report.times.push_back({std::exchange(at, end), end});
  }
  report.busy_s.at(static_cast<std::size_t>(Lane::kCompute)) = 4;
  return report;
}

TEST(StepObserver, CountsUpdatesAsWorkButNoWaitsForOtherStages) {
  const Program program = program_of_a_stage();
  StepObserver observer(program, {.counts_host = false});
  observer.add(report_of(10, 5));
  EXPECT_EQ(observer.measured_steps(), 0);
  EXPECT_DOUBLE_EQ(observer.work_s(), 0);
  observer.add(report_of(25, 7));
  EXPECT_EQ(observer.measured_steps(), 1);
  EXPECT_DOUBLE_EQ(observer.work_s(), 4 + 6);
}

}  // namespace
}  // namespace terrace
