#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "parallel/pipeline_schedule.h"
#include "runtime/step/hazards.h"
#include "runtime/step/step_values.h"
#include "runtime/step/verify.h"
#include "tests/runtime/step/step_fixture.h"

namespace terrace {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using IsWanted = bool (*)(const Op&);

std::size_t first_of(const Program& program, IsWanted is_wanted) {
  const auto found = std::ranges::find_if(program.ops, is_wanted);
  EXPECT_NE(found, program.ops.end());
  return static_cast<std::size_t>(found - program.ops.begin());
}

std::size_t last_of(const Program& program, IsWanted is_wanted) {
  std::size_t last = program.ops.size();
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    if (is_wanted(program.ops[i])) last = i;
  }
  EXPECT_LT(last, program.ops.size());
  return last;
}

// Returns the program with one op moved to another place in its list, and with the edges that
// follow from that.
Program moved(const Program& program, std::size_t from, std::size_t to) {
  Program changed = program;
  const Op op = changed.ops[from];
  changed.ops.erase(changed.ops.begin() + static_cast<std::ptrdiff_t>(from));
  changed.ops.insert(changed.ops.begin() + static_cast<std::ptrdiff_t>(to), op);
  add_edges(changed);
  return changed;
}

bool is_deferred_update(const Op& op) { return op.kind == OpKind::kUpdate && op.is_deferred(); }
bool is_update_at_once(const Op& op) { return op.kind == OpKind::kUpdate && !op.is_deferred(); }
bool sets_scalars(const Op& op) { return op.kind == OpKind::kStepScalars; }
bool is_forward_of_unit_2(const Op& op) { return op.kind == OpKind::kForward && op.unit == 2; }
bool is_update_of_unit_2(const Op& op) { return op.kind == OpKind::kUpdate && op.unit == 2; }
bool finishes_norm(const Op& op) { return op.kind == OpKind::kNormFinish; }

// Keeps everything in one tier, where no other place is in the way of the ops that the tests move.
Program unclipped(const StepModel& model, std::int32_t deferred) {
  StepPolicy policy = uniform_policy(model, {});
  policy.unified = true;
  policy.updates_wait_for_norm = false;
  defer_first_updates(policy, model.groups, deferred);
  return compile_step(model, policy, {});
}

// Pipelines of one micro-batch whose last stage has only the head used to make this mistake.
TEST(StepValues, AnUpdateDoesNotTakeTheScalarsOfTheNextStep) {
  const Program program = unclipped(small_step_model(4, false), 3);
  ASSERT_THAT(verify(program), IsEmpty());
  const Program wrong =
      moved(program, first_of(program, sets_scalars), last_of(program, is_deferred_update));
  EXPECT_THAT(verify(wrong), Contains(HasSubstr("needs step scalars of its own step and finds "
                                                "those of the next step")));
}

TEST(StepValues, AnUpdateAtOnceDoesNotTakeTheScalarsOfTheStepBefore) {
  const Program program = unclipped(small_step_model(4, false), 3);
  const std::size_t scalars = first_of(program, sets_scalars);
  const Program wrong = moved(program, scalars, last_of(program, is_update_at_once));
  EXPECT_THAT(verify(wrong), Contains(HasSubstr("needs step scalars of its own step and finds "
                                                "those of the step before")));
}

TEST(StepValues, AForwardDoesNotComeBeforeTheUpdateOfItsParameters) {
  const StepModel model = small_step_model(4, false);
  StepPolicy policy = uniform_policy(model, {});
  policy.unified = true;
  const Program program = compile_step(model, policy, {});
  const Program wrong = moved(program, last_of(program, is_update_of_unit_2),
                              first_of(program, is_forward_of_unit_2));
  EXPECT_THAT(verify(wrong), Contains(HasSubstr("(forward 2 mb 0) needs param[2] of the step "
                                                "before and finds those of step -2 from its own")));
}

// The scalars on the device are a copy: their step is the step of the scalars that were copied.
TEST(StepValues, ACopyHasTheStepOfItsSource) {
  const StepModel model = small_step_model(4, false);
  StepPolicy policy =
      uniform_policy(model, {Tier::kDevice, Tier::kDevice, Tier::kDevice, Tier::kDevice, false});
  const Program program = compile_step(model, policy, {});
  ASSERT_THAT(verify(program), IsEmpty());
  Program wrong = program;
  const auto copies_scalars = [&](const Op& op) {
    const Access* source = op.find(Role::kSource);
    return source != nullptr &&
           wrong.buffers.at(source->buffer).key.kind == BufferKind::kStepScalars;
  };
  const auto copy = std::ranges::find_if(wrong.ops, copies_scalars);
  ASSERT_NE(copy, wrong.ops.end());
  const auto at = static_cast<std::size_t>(copy - wrong.ops.begin());
  EXPECT_THAT(verify(moved(program, at, last_of(program, finishes_norm))),
              Contains(HasSubstr("needs step scalars on device of its own step and finds those of "
                                 "the step before")));
}

StepModel last_stage(const StepModel& model, std::int32_t stages) {
  StepModel part = model;
  const std::vector<double> costs(model.unit_count(), 1.0);
  part.pipeline = {stages, stages - 1, balance_stages(costs, stages), 1};
  return part;
}

// Tries all pipelines without clipping: every number of deferred units, every stage, one
// micro-batch and more.
TEST(StepValues, AreOfTheRightStepInEveryUnclippedPipeline) {
  for (const std::int64_t blocks : {1, 2, 3, 5}) {
    const auto units = static_cast<std::int32_t>(blocks) + 2;
    for (std::int32_t stages = 1; stages <= units; ++stages) {
      for (std::int32_t deferred = 1; deferred <= units; ++deferred) {
        for (const std::int32_t micro_batches : {1, 2, 4}) {
          for (const PipelineSchedule schedule :
               {PipelineSchedule::k1F1B, PipelineSchedule::kGpipe}) {
            SCOPED_TRACE(testing::Message() << blocks << " blocks, " << stages << " stages, "
                                            << deferred << " deferred, " << micro_batches);
            const StepModel whole = small_step_model(blocks, (deferred + micro_batches) % 2 == 0);
            StepPolicy policy = uniform_policy(whole, {});
            policy.unified = true;
            policy.updates_wait_for_norm = false;
            defer_first_updates(policy, whole.groups, deferred);
            policy.micro_batches = micro_batches;
            policy.pipeline_schedule = schedule;
            for (std::int32_t stage = 0; stage < stages; ++stage) {
              StepModel model = last_stage(whole, stages);
              model.pipeline.stage = stage;
              ASSERT_THAT(verify(compile_step(model, policy, {})), IsEmpty());
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace terrace
