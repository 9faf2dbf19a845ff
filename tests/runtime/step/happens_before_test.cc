#include "runtime/step/happens_before.h"

#include <gtest/gtest.h>

#include <random>

namespace terrace {
namespace {

Op on(Lane lane, std::vector<Dependency> after = {}) {
  Op op;
  op.lane = lane;
  op.after = std::move(after);
  return op;
}

// Follows every edge and lane itself, from each moment to all moments that start after its end.
std::vector<std::vector<bool>> reachability(const Program& program) {
  const auto count = static_cast<Moment>(program.ops.size());
  std::vector<std::vector<bool>> before(2 * count, std::vector<bool>(2 * count, false));
  for (Moment second = 0; second < 2 * count; ++second) {
    const Op& op = program.ops[second % count];
    const auto take = [&](Moment first) {
      before[first][second] = true;
      for (Moment m = 0; m < first; ++m) {
        if (before[m][first]) before[m][second] = true;
      }
    };
    for (Moment m = 0; m < second; ++m) {
      if (completes_in_order(op.lane) && program.ops[m % count].lane == op.lane) take(m);
    }
    for (const Dependency& edge : op.after) {
      const Moment first = second < count ? edge.op : edge.op + (edge.distance == 0 ? count : 0);
      if (second < count && edge.distance == 1) continue;
      if (first < second) take(first);
    }
  }
  return before;
}

TEST(HappensBefore, IsReachabilityInRandomPrograms) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    Program program;
    const int count = 1 + static_cast<int>(random() % 14);
    const bool mostly_io = random() % 2 == 0;
    for (OpId i = 0; i < count; ++i) {
      const Lane io = random() % 2 == 0 ? Lane::kRead : Lane::kWrite;
      const bool is_io = random() % 4 < (mostly_io ? 3U : 1U);
      Op op = on(is_io ? io : static_cast<Lane>(random() % kLaneCount));
      for (auto edges = random() % 3; edges > 0; --edges) {
        const int distance = static_cast<int>(random() % 2);
        const int choices = distance == 0 ? i : count;
        if (choices > 0) op.after.push_back({static_cast<OpId>(random() % choices), distance});
      }
      program.ops.push_back(std::move(op));
    }
    const std::vector<std::vector<bool>> expected = reachability(program);
    HappensBefore before(program);
    for (Moment first = 0; first < 2 * count; ++first) {
      for (Moment second = first + 1; second < 2 * count; ++second) {
        ASSERT_EQ(before(first, second), expected[first][second]) << first << " " << second;
      }
    }
  }
}

// Two reads and two writes in turns, each of which waits for both ops before it. More than a
// million paths lead from the front to the end, and none of them needs to be walked twice.
TEST(HappensBefore, DoesNotWalkEveryPathThroughReadsAndWrites) {
  Program program;
  constexpr OpId kRungs = 2000;
  for (OpId i = 0; i < kRungs; ++i) {
    const Lane lane = i % 2 == 0 ? Lane::kRead : Lane::kWrite;
    std::vector<Dependency> after;
    if (i > 0) after = {{2 * i - 2, 0}, {2 * i - 1, 0}};
    program.ops.push_back(on(lane, after));
    program.ops.push_back(on(lane, after));
  }
  program.ops.push_back(on(Lane::kRead));
  const OpId alone = 2 * kRungs;
  HappensBefore before(program);
  EXPECT_TRUE(before(0, alone - 1));
  EXPECT_TRUE(before(1, alone - 2));
  EXPECT_FALSE(before(0, 1));
  EXPECT_FALSE(before(0, alone));
  EXPECT_FALSE(before(0, alone + 1));
}

}  // namespace
}  // namespace terrace
