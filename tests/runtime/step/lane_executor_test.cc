#include "runtime/step/lane_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "runtime/step/verify.h"
#include "tests/runtime/step/hash_machine.h"

namespace terrace {
namespace {

using ::testing::IsEmpty;

Tier any_tier(std::mt19937& random) { return kTiers.at(random() % kTierCount); }

Program random_program(std::mt19937& random) {
  StepModel model = tiny_step_model(1 + static_cast<std::int64_t>(random() % 3), random() % 2 == 0);
  model.state_format.master = random() % 2 == 0 ? MasterForm::kFp32 : MasterForm::kSplit;
  if (random() % 2 == 0) {
    model.zero = {static_cast<std::int32_t>(random() % 4), 2, 0};
    // A part for each.
    for (ParameterGroup& group : model.groups) group.padded_elements += kBlockElements;
  }
  StepPolicy policy;
  policy.micro_batches = 1 + static_cast<std::int32_t>(random() % 2);
  policy.order =
      random() % 2 == 0 ? MicroBatchOrder::kLayerMajor : MicroBatchOrder::kMicroBatchMajor;
  policy.unified = random() % 4 == 0;
  policy.lookahead = static_cast<std::int32_t>(random() % 4);
  for (std::size_t u = 0; u < model.unit_count(); ++u) {
    add_homes(policy, {any_tier(random), any_tier(random), any_tier(random), any_tier(random),
                       random() % 2 == 0});
  }
  TierBudgets budgets;
  if (random() % 2 == 0) {
    budgets.fill(std::size_t{1});  // the smallest budget: space is reused the most
  }
  return compile_step(model, policy, budgets);
}

void expect_bytes(const Program& program, const RunReport& report) {
  for (const Lane lane : {Lane::kUpload, Lane::kDownload, Lane::kRead, Lane::kWrite}) {
    double bytes = 0;
    for (const Op& op : program.ops) {
      if (op.lane == lane && op.parts.contains(report.part)) bytes += op.cost.bytes;
    }
    EXPECT_EQ(report.moved.lanes.at(static_cast<std::size_t>(lane)), bytes) << name_of(lane);
  }
}

void expect_equals_oracle(const Program& program, std::unique_ptr<BlockStore> store,
                          std::uint64_t seed, bool hides_device_memory = false) {
  Inputs inputs(program, kParts.size());
  Inputs oracle_inputs(program, kParts.size());
  Oracle oracle(program);
  for (std::size_t r = 0; r < kParts.size(); ++r) {
    oracle.run(kParts[r], oracle_inputs.at(r, step_of(r)));
  }
  Machine machine(program, std::move(store), seed);
  if (hides_device_memory) machine.hide_device_memory();
  machine.fill_persistent();
  std::vector<RunReport> reports;
  {
    const std::unique_ptr<LaneExecutor> executor = machine.make_executor();
    run_all(*executor, inputs, reports);
  }
  EXPECT_EQ(machine.bodies().overlaps(), 0);
  ASSERT_EQ(reports.size(), kParts.size());
  for (std::size_t r = 0; r < kParts.size(); ++r) {
    EXPECT_EQ(reports[r].part, kParts[r]);
    EXPECT_EQ(reports[r].step, step_of(r));
    EXPECT_EQ(inputs.loss(r), oracle_inputs.loss(r)) << "run " << r;
    expect_times(program, reports[r]);
    expect_bytes(program, reports[r]);
  }
  for (BufferId b = 0; b < static_cast<BufferId>(program.buffers.size()); ++b) {
    if (program.buffers[b].life != Life::kPersistent) continue;
    ASSERT_TRUE(machine.content(b) == oracle.buffer(b)) << program.buffers[b].name;
  }
}

TEST(LaneExecutor, RandomProgramsEqualTheOpsOneAfterTheOther) {
  for (unsigned seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Program program = random_program(random);
    ASSERT_THAT(verify(program), IsEmpty());
    expect_equals_oracle(program, make_memory_store(), seed);
    expect_equals_oracle(program, make_memory_store(), seed, true);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

TEST(LaneExecutor, LateAndShortTransfersChangeNothing) {
  FaultPlan plan;
  plan.seed = 5;
  plan.delay_rate = 0.2;
  plan.short_rate = 0.3;
  expect_equals_oracle(nvme_program(), make_faulty_store(plan), 1);
}

TEST(LaneExecutor, NothingRunsInADrainButWhatIsDeferred) {
  const Program program = host_program();
  Inputs inputs(program, 2);
  Machine machine(program, make_memory_store(), 3);
  machine.fill_persistent();
  const std::unique_ptr<LaneExecutor> executor = machine.make_executor();
  executor->start(Part::kPrologue, inputs.at(0, 1));
  EXPECT_EQ(executor->runs_in_flight(), 1);
  const RunReport prologue = executor->retire();
  EXPECT_EQ(executor->runs_in_flight(), 0);
  EXPECT_GT(prologue.first_compute_ns, 0);
  EXPECT_GT(prologue.busy_s.at(static_cast<std::size_t>(Lane::kCompute)), 0);
  EXPECT_GT(prologue.moved.parameter_uploads, 0);
  EXPECT_EQ(prologue.moved.parameter_reads, 0);
  const int before = machine.bodies().calls();
  int updates = 0;
  for (const Op& op : program.ops) updates += op.kind == OpKind::kUpdate ? 1 : 0;
  executor->start(Part::kDrain, inputs.at(1, 1));
  const RunReport drain = executor->retire();
  EXPECT_EQ(machine.bodies().calls() - before, updates);
  EXPECT_EQ(drain.first_compute_ns, 0);
}

// A reader goes through each unit's homes while runs go on, as slowly as possible: it starts only
// when a run waits for it. It must find the content that the homes had when the gate was closed.
void expect_homes_wait_for_their_reader(const Program& program, std::uint64_t seed) {
  Inputs inputs(program, kParts.size());
  Machine machine(program, make_memory_store(), seed);
  machine.fill_persistent();
  std::map<BufferId, Bytes> homes;
  for (BufferId b = 0; b < static_cast<BufferId>(program.buffers.size()); ++b) {
    const Buffer& buffer = program.buffers[b];
    const bool is_home =
        buffer.key.kind == BufferKind::kParameters || buffer.key.kind == BufferKind::kState;
    if (is_home && buffer.life == Life::kPersistent) homes.emplace(b, machine.content(b));
  }
  const std::vector<std::int32_t> order = order_of_changes(program);
  machine.gate().close();
  const std::unique_ptr<LaneExecutor> executor = machine.make_executor();
  {
    const std::jthread reader([&] {
      while (!machine.gate().is_awaited()) std::this_thread::yield();
      for (const std::int32_t group : order) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        for (const auto& [b, content] : homes) {
          if (program.buffers[b].key.owner != group) continue;
          EXPECT_TRUE(machine.content(b) == content) << program.buffers[b].name;
        }
        machine.gate().open(group);
      }
    });
    std::vector<RunReport> reports;
    run_all(*executor, inputs, reports);
  }
  for (const std::int32_t group : order) EXPECT_TRUE(machine.gate().is_open(group));
  int changed = 0;
  for (const auto& [b, content] : homes) changed += machine.content(b) == content ? 0 : 1;
  EXPECT_GT(changed, 0);
}

TEST(LaneExecutor, HomesWaitForTheirReaderInRandomPrograms) {
  for (unsigned seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    expect_homes_wait_for_their_reader(random_program(random), seed);
    if (HasFailure()) return;
  }
}

TEST(LaneExecutor, IsDestroyedWithRunsInFlight) {
  const Program program = host_program();
  Inputs inputs(program, 2);
  Machine machine(program, make_memory_store(), 4);
  machine.fill_persistent();
  const std::unique_ptr<LaneExecutor> executor = machine.make_executor();
  executor->start(Part::kPrologue, inputs.at(0, 1));
  executor->start(Part::kBody, inputs.at(1, 2));
}

}  // namespace
}  // namespace terrace
