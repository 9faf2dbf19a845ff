#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "base/error.h"
#include "runtime/step/lane_executor.h"
#include "tests/runtime/step/hash_machine.h"

// The fate of runs when an op of one of them fails.
namespace terrace {
namespace {

TEST(LaneExecutor, ABodyThatThrowsFailsTheRun) {
  for (const OpKind kind : {OpKind::kForward, OpKind::kBackward, OpKind::kNormPartials,
                            OpKind::kNormFinish, OpKind::kUpdate}) {
    SCOPED_TRACE(name_of(kind));
    const Program program = host_program();
    Inputs inputs(program, 3);
    Machine machine(program, make_memory_store(), 6);
    machine.fill_persistent();
    machine.bodies().fail_at(kind, 2);
    machine.bodies().watch_updates_from(3);
    const std::unique_ptr<LaneExecutor> executor = machine.make_executor();
    executor->start(Part::kPrologue, inputs.at(0, 1));
    ASSERT_EQ(executor->retire().step, 1);
    executor->start(Part::kBody, inputs.at(1, 2));
    executor->start(Part::kBody, inputs.at(2, 3));
    EXPECT_THROW(
        {
          try {
            executor->retire();
          } catch (const std::runtime_error& error) {
            EXPECT_STREQ(error.what(), "this body fails");
            throw;
          }
        },
        std::runtime_error);
    EXPECT_THROW(executor->retire(), std::runtime_error) << "it stays failed";
    // Every update of step 3 comes after the body that failed.
    EXPECT_EQ(machine.bodies().late_updates(), 0);
  }
}

TEST(LaneExecutor, ARunWhoseNextFailsIsWhole) {
  const Program program = host_program();
  Inputs inputs(program, 2);
  Inputs oracle_inputs(program, 1);
  Oracle oracle(program);
  oracle.run(Part::kPrologue, oracle_inputs.at(0, 1));
  Machine machine(program, make_memory_store(), 6);
  machine.fill_persistent();
  machine.bodies().fail_at(OpKind::kForward, 2);
  const std::unique_ptr<LaneExecutor> executor = machine.make_executor();
  executor->start(Part::kPrologue, inputs.at(0, 1));
  executor->start(Part::kBody, inputs.at(1, 2));
  machine.bodies().wait_for_failure();
  const RunReport report = executor->retire();
  EXPECT_EQ(report.step, 1);
  expect_times(program, report);
  EXPECT_EQ(inputs.loss(0), oracle_inputs.loss(0));
  EXPECT_THROW(executor->retire(), std::runtime_error);
}

// Counts the calls of ops between ranks by a run whose forward fails and by the run after it.
int calls_of_ranks_in_a_failure(const Program& program, bool go_on) {
  Inputs inputs(program, 2);
  Machine machine(program, make_memory_store(), 6);
  machine.fill_persistent();
  machine.bodies().fail_at(OpKind::kForward, 1);
  if (go_on) machine.bodies().let_ranks_go_on();
  machine.bodies().watch_updates_from(1);
  const std::unique_ptr<LaneExecutor> executor = machine.make_executor();
  executor->start(Part::kPrologue, inputs.at(0, 1));
  executor->start(Part::kBody, inputs.at(1, 2));
  EXPECT_THROW(executor->retire(), std::runtime_error);
  EXPECT_THROW(executor->retire(), std::runtime_error);
  EXPECT_EQ(machine.bodies().late_updates(), 0);
  return machine.bodies().calls_of_ranks();
}

TEST(LaneExecutor, AFailureOfAllRanksLetsTheirOpsGoOn) {
  const StepModel model = divided(tiny_step_model(3, false), {2, 2, 0});
  const Program program = compile_step(
      model, uniform_policy(model, {Tier::kHost, Tier::kHost, Tier::kHost, Tier::kHost, true}), {});
  int expected = 0;
  for (const Part part : {Part::kPrologue, Part::kBody}) {
    for (const Op& op : program.ops) {
      expected += is_between_ranks(op.lane) && op.parts.contains(part) ? 1 : 0;
    }
  }
  EXPECT_EQ(calls_of_ranks_in_a_failure(program, true), expected);
  EXPECT_LT(calls_of_ranks_in_a_failure(program, false), expected);
}

// Any error that the store reports comes out of retire(), with its type.
template <typename Expected>
void expect_store_failure(const FaultPlan& plan) {
  const Program program = nvme_program();
  Inputs inputs(program, 2);
  Machine machine(program, make_faulty_store(plan), 8);
  machine.bodies().watch_updates_from(0);
  const std::unique_ptr<LaneExecutor> executor = machine.make_executor();
  executor->start(Part::kPrologue, inputs.at(0, 1));
  executor->start(Part::kBody, inputs.at(1, 2));
  EXPECT_THROW(executor->retire(), Expected);
  EXPECT_THROW(executor->retire(), Expected);
  EXPECT_EQ(machine.bodies().late_updates(), 0);
}

TEST(LaneExecutor, AStoreThatFailsFailsTheRun) {
  FaultPlan plan;
  plan.fail_rate = 1;
  expect_store_failure<IoError>(plan);
}

TEST(LaneExecutor, CorruptedBytesFailTheRun) {
  FaultPlan plan;
  plan.seed = 2;
  plan.corrupt_rate = 1;
  const Program program = nvme_program();
  Inputs inputs(program, 1);
  Machine machine(program, make_faulty_store(plan), 9);
  machine.fill_persistent();
  const std::unique_ptr<LaneExecutor> executor = machine.make_executor();
  executor->start(Part::kPrologue, inputs.at(0, 1));
  EXPECT_THROW(executor->retire(), CorruptData);
}

// Faults occur now and then: a run is right or fails, and is never wrong in silence.
TEST(LaneExecutor, RareFaultsAreNeverSilent) {
  const Program program = nvme_program();
  int failed = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    FaultPlan plan;
    plan.seed = seed;
    plan.corrupt_rate = 0.004;
    Inputs inputs(program, kParts.size());
    Inputs oracle_inputs(program, kParts.size());
    Machine machine(program, make_faulty_store(plan), seed);
    machine.fill_persistent();
    std::vector<RunReport> reports;
    const std::unique_ptr<LaneExecutor> executor = machine.make_executor();
    try {
      run_all(*executor, inputs, reports);
    } catch (const CorruptData&) {
      ++failed;
    }
    Oracle oracle(program);
    for (std::size_t r = 0; r < reports.size(); ++r) {
      oracle.run(kParts[r], oracle_inputs.at(r, step_of(r)));
      EXPECT_EQ(inputs.loss(r), oracle_inputs.loss(r)) << "run " << r;
    }
  }
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, 12);
}

}  // namespace
}  // namespace terrace
