#include "runtime/step/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "runtime/step/movement.h"
#include "tests/runtime/step/step_fixture.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using Kind = OpKind;

// An embedding, two blocks and a head. The embedding has three chunks, the others have two, two and
// three.
StepModel two_blocks() { return small_step_model(2, false); }

StepPolicy policy_of(const StepModel& model, MicroBatchOrder order) {
  StepPolicy policy = uniform_policy(model, {});
  policy.micro_batches = 2;
  policy.order = order;
  return policy;
}

// Returns a pass of one step.
Task task(Kind kind, std::int32_t unit, std::int32_t micro_batch) {
  return {.kind = kind, .unit = unit, .micro_batch = micro_batch, .steps = {0, 1}};
}

Task update(std::int32_t unit, std::int32_t chunk) {
  return {
      .kind = Kind::kUpdate, .unit = unit, .group = unit, .chunk = chunk, .parts = kOfStepBefore};
}

const Task kInputTask = {.kind = Kind::kInput};
const Task kEmbeddingTask = {.kind = Kind::kBackward, .unit = 0};
const Task kNormTask = {.kind = Kind::kNormFinish};

// Returns the schedule without what connects its forwards.
std::vector<Task> order_of(const StepModel& model, const StepPolicy& policy) {
  std::vector<Task> tasks = schedule_step(model, policy);
  for (Task& task : tasks) {
    task.forward = -1;
    task.inputs.clear();
  }
  return tasks;
}

TEST(Schedule, MicroBatchMajor) {
  const StepModel model = two_blocks();
  const std::vector<Task> expected = {
      kInputTask,
      update(0, 0),
      update(0, 1),
      update(0, 2),
      update(1, 0),
      update(1, 1),
      task(Kind::kForward, 0, 0),
      update(2, 0),
      update(2, 1),
      task(Kind::kForward, 1, 0),
      update(3, 0),
      update(3, 1),
      update(3, 2),
      task(Kind::kForward, 2, 0),
      task(Kind::kBackward, 3, 0),
      task(Kind::kBackward, 2, 0),
      task(Kind::kBackward, 1, 0),
      task(Kind::kForward, 0, 1),
      task(Kind::kForward, 1, 1),
      task(Kind::kForward, 2, 1),
      task(Kind::kBackward, 3, 1),
      task(Kind::kBackward, 2, 1),
      task(Kind::kBackward, 1, 1),
      kEmbeddingTask,
      kNormTask,
  };
  EXPECT_THAT(order_of(model, policy_of(model, MicroBatchOrder::kMicroBatchMajor)),
              ElementsAreArray(expected));
}

TEST(Schedule, LayerMajor) {
  const StepModel model = two_blocks();
  const std::vector<Task> expected = {
      kInputTask,
      update(0, 0),
      update(0, 1),
      update(0, 2),
      update(1, 0),
      update(1, 1),
      task(Kind::kForward, 0, 0),
      task(Kind::kForward, 0, 1),
      update(2, 0),
      update(2, 1),
      task(Kind::kForward, 1, 0),
      task(Kind::kForward, 1, 1),
      update(3, 0),
      update(3, 1),
      update(3, 2),
      task(Kind::kForward, 2, 0),
      task(Kind::kForward, 2, 1),
      task(Kind::kBackward, 3, 0),
      task(Kind::kBackward, 3, 1),
      task(Kind::kBackward, 2, 0),
      task(Kind::kBackward, 2, 1),
      task(Kind::kBackward, 1, 0),
      task(Kind::kBackward, 1, 1),
      kEmbeddingTask,
      kNormTask,
  };
  EXPECT_THAT(order_of(model, policy_of(model, MicroBatchOrder::kLayerMajor)),
              ElementsAreArray(expected));
}

Task update_at_once(std::int32_t unit, std::int32_t chunk) {
  return {.kind = Kind::kUpdate, .unit = unit, .group = unit, .chunk = chunk};
}

TEST(Schedule, UpdatesThatWaitForNothingFollowTheirGradientButForTheFirstUnits) {
  const StepModel model = two_blocks();
  StepPolicy policy = policy_of(model, MicroBatchOrder::kMicroBatchMajor);
  policy.updates_wait_for_norm = false;
  const std::vector<Task> expected = {
      kInputTask,
      update(0, 0),
      update(0, 1),
      update(0, 2),
      update(1, 0),
      update(1, 1),
      task(Kind::kForward, 0, 0),
      update(2, 0),
      update(2, 1),
      task(Kind::kForward, 1, 0),
      task(Kind::kForward, 2, 0),
      task(Kind::kBackward, 3, 0),
      task(Kind::kBackward, 2, 0),
      task(Kind::kBackward, 1, 0),
      task(Kind::kForward, 0, 1),
      task(Kind::kForward, 1, 1),
      task(Kind::kForward, 2, 1),
      {.kind = Kind::kStepScalars},
      task(Kind::kBackward, 3, 1),
      update_at_once(3, 0),
      update_at_once(3, 1),
      update_at_once(3, 2),
      task(Kind::kBackward, 2, 1),
      task(Kind::kBackward, 1, 1),
      kEmbeddingTask,
      kNormTask,
  };
  EXPECT_THAT(order_of(model, policy), ElementsAreArray(expected));
}

TEST(Schedule, EvaluationIsForwardAlone) {
  const StepModel model = two_blocks();
  StepPolicy policy = policy_of(model, MicroBatchOrder::kMicroBatchMajor);
  policy.has_backward = false;
  EXPECT_THAT(order_of(model, policy),
              ElementsAre(kInputTask, task(Kind::kForward, 0, 0), task(Kind::kForward, 1, 0),
                          task(Kind::kForward, 2, 0), task(Kind::kForward, 3, 0),
                          task(Kind::kForward, 0, 1), task(Kind::kForward, 1, 1),
                          task(Kind::kForward, 2, 1), task(Kind::kForward, 3, 1)));
}

// Micro-batches must be added in their order, whatever the order of the tasks.
TEST(Schedule, EachUnitSeesItsMicroBatchesInOrder) {
  const StepModel model = small_step_model(5, true);
  for (const MicroBatchOrder order :
       {MicroBatchOrder::kMicroBatchMajor, MicroBatchOrder::kLayerMajor}) {
    StepPolicy policy = policy_of(model, order);
    policy.micro_batches = 4;
    std::map<std::pair<Kind, std::int32_t>, std::int32_t> next;
    std::map<Kind, int> count;
    for (const Task& one : order_of(model, policy)) {
      ++count[one.kind];
      if (one.micro_batch < 0) continue;
      std::int32_t& expected = next[std::pair(one.kind, one.unit)];
      EXPECT_EQ(one.micro_batch, expected++);
    }
    EXPECT_EQ(count[Kind::kForward], 6 * 4);
    EXPECT_EQ(count[Kind::kBackward], 6 * 4 + 1);
  }
}

TEST(Schedule, EveryForwardNamesTheOneThatFeedsIt) {
  const StepModel model = two_blocks();
  std::map<std::int32_t, Task> forwards;
  for (const Task& task : schedule_step(model, policy_of(model, MicroBatchOrder::kLayerMajor))) {
    if (task.forward < 0) continue;
    const auto [first, is_new] = forwards.try_emplace(task.forward, task);
    EXPECT_EQ(first->second.unit, task.unit);
    EXPECT_EQ(first->second.micro_batch, task.micro_batch);
    EXPECT_EQ(first->second.inputs, task.inputs);
    ASSERT_EQ(task.inputs.size(), task.unit == 0 ? 0U : 1U);
    if (task.inputs.empty()) continue;
    const Task& input = forwards.at(task.inputs.front());
    EXPECT_EQ(input.unit, task.unit - 1);
    EXPECT_EQ(input.micro_batch, task.micro_batch);
  }
  EXPECT_EQ(forwards.size(), 4U * 2U);  // units and micro-batches
}

TEST(Recompute, StandsRightBeforeTheBackwardOfItsUnit) {
  const StepModel model = two_blocks();
  StepPolicy policy = policy_of(model, MicroBatchOrder::kLayerMajor);
  policy.activations[1].recompute = true;
  const std::vector<Task> tasks = {task(Kind::kForward, 1, 0),  task(Kind::kBackward, 3, 0),
                                   task(Kind::kBackward, 2, 0), task(Kind::kBackward, 1, 0),
                                   task(Kind::kBackward, 1, 1), kEmbeddingTask};
  EXPECT_THAT(add_recompute(model, policy, tasks),
              ElementsAre(task(Kind::kForward, 1, 0), task(Kind::kBackward, 3, 0),
                          task(Kind::kBackward, 2, 0), task(Kind::kRecompute, 1, 0),
                          task(Kind::kBackward, 1, 0), task(Kind::kRecompute, 1, 1),
                          task(Kind::kBackward, 1, 1), kEmbeddingTask));
  policy.activations[1].recompute = false;
  EXPECT_EQ(add_recompute(model, policy, tasks), tasks);
}

TEST(ParameterUses, TheTiedHeadUsesTheEmbeddingToo) {
  const std::vector<Task> tasks = {kInputTask,
                                   task(Kind::kForward, 0, 0),
                                   task(Kind::kForward, 1, 0),
                                   task(Kind::kBackward, 2, 0),
                                   task(Kind::kBackward, 1, 0),
                                   kEmbeddingTask};
  EXPECT_THAT(parameter_uses(small_step_model(1, false), tasks),
              ElementsAre(ElementsAre(1), ElementsAre(2, 4), ElementsAre(3)));
  EXPECT_THAT(parameter_uses(small_step_model(1, true), tasks),
              ElementsAre(ElementsAre(1, 3), ElementsAre(2, 4), ElementsAre(3)));
}

}  // namespace
}  // namespace terrace
