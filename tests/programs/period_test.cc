#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/step/unrolled_program.h"
#include "tests/programs/compile_case.h"

namespace terrace {
namespace {

// The fewest micro-batches of a step that is compiled by its period.
constexpr int kMany = 64;

// Returns the bytes that each lane carries in the case's step of this many micro-batches, without
// the step's input and losses: their buffers end on a boundary.
std::vector<double> lane_bytes_of(ProgramCase drawn, int micro_batches) {
  drawn.micro_batches = micro_batches;
  const Program program = compile_case(drawn);
  std::vector<double> bytes;
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    const auto lane = static_cast<Lane>(l);
    bytes.push_back(lane_bytes(program, lane) - lane_bytes(program, lane, Account::kWorkspace));
  }
  return bytes;
}

bool has_budgets(const ProgramCase& drawn) {
  return drawn.budget_percent[0].has_value() || drawn.budget_percent[1].has_value();
}

// verify() looks at a few repetitions. The program with all of them listed is right, too.
TEST(Period, EveryProgramIsRightAsAWhole) {
  for (const ProgramCase& drawn : periodic_cases(kMany + 6)) {
    SCOPED_TRACE(drawn.name);
    const Program program = compile_case(drawn);
    EXPECT_GT(program.repetition.times, 1);
    for (const TierUse& use : program.use) EXPECT_LE(use.live_bytes, use.packed_bytes);
    const std::vector<std::string> problems = problems_of(program);
    ASSERT_TRUE(problems.empty()) << problems.front();
    const UnrolledProgram unrolled(program);
    ASSERT_EQ(unrolled.program().ops.size(), op_count(program));
    const std::vector<std::string> of_all = problems_of(unrolled.program());
    ASSERT_TRUE(of_all.empty()) << of_all.front();
  }
}

// Steps of 62 and 63 micro-batches list each of them. One more moves as much more, whether it is
// listed or repeated.
TEST(Period, MovesWhatListedMicroBatchesMove) {
  for (const ProgramCase& drawn : periodic_cases(kMany)) {
    if (has_budgets(drawn)) continue;
    SCOPED_TRACE(drawn.name);
    const std::vector<double> fewer = lane_bytes_of(drawn, kMany - 2);
    const std::vector<double> listed = lane_bytes_of(drawn, kMany - 1);
    const std::vector<double> repeated = lane_bytes_of(drawn, kMany);
    const std::vector<double> more = lane_bytes_of(drawn, kMany + 1);
    for (std::size_t l = 0; l < kLaneCount; ++l) {
      EXPECT_EQ(repeated[l] - listed[l], listed[l] - fewer[l]) << name_of(static_cast<Lane>(l));
      EXPECT_EQ(more[l] - repeated[l], listed[l] - fewer[l]) << name_of(static_cast<Lane>(l));
    }
  }
}

}  // namespace
}  // namespace terrace
