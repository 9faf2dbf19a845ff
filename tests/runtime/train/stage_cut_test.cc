#include "runtime/train/stage_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Two data-parallel ranks on each of two stages. The slower rank of a stage decides.
TEST(StageCut, TakesTheSlowestRankOfEachStage) {
  const MeshShape shape = {.data = 2, .tensor = 1, .pipeline = 2};
  std::array<StageWork, 4> work = {{
      {.flops = 100, .steps = 5, .work_s = 10},  // 50 a second
      {.flops = 100, .steps = 5, .work_s = 4},
      {.flops = 200, .steps = 5, .work_s = 2},
      {.flops = 200, .steps = 5, .work_s = 5},  // 200 a second
  }};
  EXPECT_THAT(measured_speeds(work, shape), ElementsAre(0.25, 1));
  work[0].work_s = 1;
  EXPECT_THAT(measured_speeds(work, shape), ElementsAre(0.625, 1));
  work[1].work_s = 1e9;
  EXPECT_THAT(measured_speeds(work, shape), ElementsAre(0.001, 1));
  work[2].work_s = 0;
  EXPECT_THAT(measured_speeds(work, shape), IsEmpty());
}

TEST(StageCut, APartOfARunEndsWithTheEarliestOfItsSteps) {
  TrainCommand command;
  EXPECT_EQ(command.last_step(20), 20);
  command.cut_after_step = 8;
  EXPECT_EQ(command.last_step(20), 8);
  EXPECT_EQ(command.last_step(5), 5);
  command.options.batch.stop_after_step = 3;
  EXPECT_EQ(command.last_step(20), 3);
}

}  // namespace
}  // namespace terrace
