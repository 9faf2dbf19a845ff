#include "runtime/step/simulate.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <random>

#include "base/error.h"
#include "tests/runtime/step/simulate_fixture.h"
#include "tests/runtime/step/step_fixture.h"

namespace terrace {
namespace {

TEST(Simulate, IndependentLanesOverlapAndAChainAdds) {
  const MachineProfile profile = unit_profile();
  const Program beside = two_ops(Lane::kCompute, 3, Lane::kUpdate, 2, false);
  EXPECT_DOUBLE_EQ(simulate(beside, profile, 1).makespan_s, 3);
  const Program chain = two_ops(Lane::kCompute, 3, Lane::kUpdate, 2, true);
  EXPECT_DOUBLE_EQ(simulate(chain, profile, 1).makespan_s, 5);
  const Program lane = two_ops(Lane::kCompute, 3, Lane::kCompute, 2, false);
  EXPECT_DOUBLE_EQ(simulate(lane, profile, 1).makespan_s, 5);
}

TEST(Simulate, EveryComputeOpHasItsOverhead) {
  MachineProfile profile = unit_profile();
  profile.op_overhead_s = 0.25;
  const Program program = two_ops(Lane::kCompute, 3, Lane::kCompute, 0, false);
  EXPECT_DOUBLE_EQ(simulate(program, profile, 1).makespan_s, 3.5);
  const Program update = two_ops(Lane::kUpdate, 3, Lane::kUpdate, 1, false);
  EXPECT_DOUBLE_EQ(simulate(update, profile, 1).makespan_s, 4);
}

TEST(Simulate, EachLaneHasItsRate) {
  MachineProfile profile = unit_profile();
  profile.memory_bytes_per_s = 1e9;
  profile.flops_per_s = 2;
  profile.upload_bytes_per_s = 3;
  profile.download_bytes_per_s = 4;
  profile.drive.read_bytes_per_s = 5;
  profile.drive.write_bytes_per_s = 6;
  profile.links.fill({.bytes_per_s = 8});
  profile.update_bytes_per_s = 10;  // of all update threads; one of them makes codes
  profile.update_cores = 4;
  profile.drive.disk_bytes_per_s = 100;
  const std::array rates = {2., 3., 4., 5., 6., 8., 8., 8., 8., 8., 8., 8., 8., 10., 2.5};
  static_assert(rates.size() == kLaneCount);
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    HandMadeProgram made;
    made.op(static_cast<Lane>(l), 120, {}, {made.own_buffer()});
    const SimulationResult result = simulate(made.finish(), profile, 1);
    EXPECT_DOUBLE_EQ(result.makespan_s, 120 / rates[l]) << name_of(static_cast<Lane>(l));
  }
}

TEST(Simulate, BusySharesBottleneckAndBubble) {
  HandMadeProgram made;
  const BufferId a = made.own_buffer();
  made.op(Lane::kRead, 3, {}, {a});
  made.op(Lane::kCompute, 1, {a}, {made.own_buffer()});
  const SimulationResult result = simulate(made.finish(), unit_profile(), 3);
  // Each run reads for 3 s and computes for 1 s. The next read starts only after that, as it uses
  // the same place: 12 s.
  EXPECT_DOUBLE_EQ(result.makespan_s, 12);
  EXPECT_DOUBLE_EQ(result.step_s, 4);
  EXPECT_DOUBLE_EQ(result.busy_s_of(Lane::kRead), 9);
  EXPECT_DOUBLE_EQ(result.busy_share_of(Lane::kRead), 0.75);
  EXPECT_DOUBLE_EQ(result.busy_share_of(Lane::kCompute), 0.25);
  EXPECT_DOUBLE_EQ(result.busy_share_of(Lane::kUpload), 0);
  EXPECT_EQ(result.bottleneck, Lane::kRead);
  EXPECT_DOUBLE_EQ(result.bubble_share, 1 - 3.0 / 9.0);
}

TEST(Simulate, BusyTimeOfSeveralReadsIsTheTimeWithAnyInFlight) {
  MachineProfile profile = unit_profile();
  profile.io_depth = 4;
  const Program program = two_ops(Lane::kRead, 2, Lane::kRead, 2, false);
  EXPECT_DOUBLE_EQ(simulate(program, profile, 1).busy_s_of(Lane::kRead), 4);
}

// At most two runs are in flight, and they come in pairs: the second starts 1 s after the first,
// and the next one waits 3 s for the first to end.
TEST(Simulate, AStepIsTheMeanOfLongAndShortOnes) {
  HandMadeProgram made;
  for (const Lane lane : {Lane::kCompute, Lane::kDownload, Lane::kUpdate, Lane::kUpload}) {
    made.op(lane, 1, {}, {made.own_buffer()});
  }
  Program program = made.finish();
  for (OpId op = 1; op < 4; ++op) program.ops[op].after.push_back({op - 1, 0});
  const auto step_s = [&](int iterations) {
    return simulate(program, unit_profile(), iterations).step_s;
  };
  EXPECT_DOUBLE_EQ(step_s(6), 2);
  EXPECT_DOUBLE_EQ(step_s(5), 7.0 / 3);
}

// The gradient is carried: the update of step n runs in run n + 1, beside its first forward.
TEST(Simulate, DeferredUpdatesRunUnderTheNextForward) {
  HandMadeProgram made;
  const BufferId parameters = made.own_buffer(Life::kPersistent);
  const BufferId gradient = made.own_buffer(Life::kCarried);
  const BufferId hidden = made.own_buffer();
  made.op(Lane::kCompute, 2, {}, {hidden});
  made.deferred(Lane::kUpdate, 2, {gradient}, {parameters});
  made.op(Lane::kCompute, 3, {hidden, parameters}, {gradient});
  std::vector<SimulatedOp> timeline;
  const SimulationResult result = simulate(made.finish(), unit_profile(), 4, &timeline);
  EXPECT_DOUBLE_EQ(result.step_s, 5);
  EXPECT_DOUBLE_EQ(result.makespan_s, 4 * 5 + 2);
  EXPECT_DOUBLE_EQ(result.bubble_share, 0);
  int updates = 0;
  for (const SimulatedOp& one : timeline) {
    if (one.op != 1) continue;
    ++updates;
    EXPECT_DOUBLE_EQ(one.start_s, 5.0 * one.run);
    EXPECT_GT(one.run, 0) << "there is nothing to finish in the prologue";
  }
  EXPECT_EQ(updates, 4);
  for (const SimulatedOp& one : timeline) EXPECT_TRUE(one.run < 4 || one.op == 1);
}

TEST(Simulate, AtMostTwoRunsAreInFlight) {
  HandMadeProgram made;
  made.op(Lane::kUpload, 1, {}, {made.own_buffer()});
  made.op(Lane::kUpdate, 10, {}, {made.own_buffer()});
  std::vector<SimulatedOp> timeline;
  simulate(made.finish(), unit_profile(), 4, &timeline);
  for (const SimulatedOp& one : timeline) {
    const bool waits = one.op == 0 && one.run >= 2;
    if (waits) {
      EXPECT_DOUBLE_EQ(one.start_s, 10.0 * (one.run - 1)) << "run " << one.run;
    }
  }
}

TEST(Simulate, LivePeakCountsWhatIsThereTogether) {
  constexpr std::size_t kSize = HandMadeProgram::kSize;
  HandMadeProgram apart;
  apart.op(Lane::kCompute, 1, {}, {apart.buffer(0, kSize)});
  apart.op(Lane::kUpdate, 1, {}, {apart.buffer(kSize, 2 * kSize)});
  EXPECT_EQ(simulate(apart.finish(), unit_profile(), 2).tier(Tier::kHost).live_peak_bytes,
            3 * kSize);
  HandMadeProgram same;
  same.op(Lane::kCompute, 1, {}, {same.buffer(0, kSize)});
  same.op(Lane::kUpdate, 1, {}, {same.buffer(0, 2 * kSize)});
  same.buffer(2 * kSize, kSize, Life::kPersistent);
  EXPECT_EQ(simulate(same.finish(), unit_profile(), 2).tier(Tier::kHost).live_peak_bytes,
            3 * kSize);
}

// --- compiled programs -----------------------------------------------------------------------

Tier any_tier(std::mt19937& random) { return kTiers.at(random() % kTierCount); }

Program random_program(std::mt19937& random) {
  const StepModel model =
      small_step_model(1 + static_cast<std::int64_t>(random() % 4), random() % 2 == 0);
  StepPolicy policy;
  policy.micro_batches = 1 + static_cast<std::int32_t>(random() % 2);
  policy.order =
      random() % 2 == 0 ? MicroBatchOrder::kLayerMajor : MicroBatchOrder::kMicroBatchMajor;
  policy.unified = random() % 3 == 0;
  policy.lookahead = static_cast<std::int32_t>(random() % 4);
  for (std::size_t u = 0; u < model.unit_count(); ++u) {
    add_homes(policy, {any_tier(random), any_tier(random), any_tier(random), any_tier(random),
                       random() % 2 == 0});
  }
  TierBudgets budgets;
  if (random() % 2 == 0) {
    const Program loose = compile_step(model, policy, budgets);
    for (const Tier tier : kTiers) {
      budgets.at(static_cast<std::size_t>(tier)) = loose.use_of(tier).packed_bytes / 2;
    }
  }
  return compile_step(model, policy, budgets);
}

// Returns a machine that is slow enough for every lane to matter.
MachineProfile random_profile(std::mt19937& random) {
  std::uniform_real_distribution<double> factor(0.2, 2);
  MachineProfile profile;
  profile.flops_per_s = 1e9 * factor(random);
  profile.upload_bytes_per_s = 1e8 * factor(random);
  profile.download_bytes_per_s = 1e8 * factor(random);
  profile.drive.read_bytes_per_s = 1e8 * factor(random);
  profile.drive.write_bytes_per_s = 1e8 * factor(random);
  profile.drive.disk_bytes_per_s = 1e8 * factor(random);
  profile.update_bytes_per_s = 1e8 * factor(random);
  profile.memory_bytes_per_s = 3e8 * factor(random);
  profile.io_depth = 1 + static_cast<int>(random() % 4);
  profile.drive.read_cores = factor(random);
  profile.drive.write_cores = factor(random);
  if (random() % 2 == 0) {
    profile.unchecked_drive = profile.drive;
    profile.unchecked_drive->read_cores = 0.01;
  }
  profile.checksum_s_per_byte = 1e-9 * factor(random);
  profile.transfer_displacement = 1 + factor(random);
  profile.update_displacement = 1 + factor(random);
  return profile;
}

// Returns the start and end of every op that took part, by run; others are {-1, -1}.
std::vector<std::vector<SimulatedOp>> by_run(const Program& program, int iterations,
                                             const std::vector<SimulatedOp>& timeline) {
  std::vector<std::vector<SimulatedOp>> runs(iterations + 1);
  for (auto& run : runs) run.assign(program.ops.size(), {-1, -1, -1, -1});
  for (const SimulatedOp& one : timeline) {
    SimulatedOp& slot = runs.at(one.run).at(one.op);
    EXPECT_EQ(slot.run, -1) << "simulated twice";
    slot = one;
  }
  return runs;
}

void expect_order(const Program& program, const std::vector<std::vector<SimulatedOp>>& runs) {
  std::array<double, kLaneCount> lane_end_s{};
  for (std::size_t r = 0; r < runs.size(); ++r) {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      const Op& op = program.ops[i];
      const SimulatedOp& one = runs[r][i];
      if (one.run < 0) continue;
      ASSERT_LE(one.start_s, one.end_s);
      for (const Dependency& edge : op.after) {
        if (edge.distance > static_cast<int>(r)) continue;
        ASSERT_GE(one.start_s, runs[r - edge.distance][edge.op].end_s) << describe(program, op);
      }
      double& lane = lane_end_s.at(static_cast<std::size_t>(op.lane));
      ASSERT_GE(one.start_s, lane) << "out of the lane's order: " << describe(program, op);
      lane = completes_in_order(op.lane) ? one.end_s : one.start_s;
    }
  }
}

TEST(Simulate, KeepsEdgesLanesAndArenasOfRandomPrograms) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Program program = random_program(random);
    const MachineProfile profile = random_profile(random);
    constexpr int kSteps = 3;
    std::vector<SimulatedOp> timeline;
    const SimulationResult result = simulate(program, profile, kSteps, &timeline);
    const auto runs = by_run(program, kSteps, timeline);
    expect_order(program, runs);
    for (int r = 0; r <= kSteps; ++r) {
      const Part part = r == 0 ? Part::kPrologue : r == kSteps ? Part::kDrain : Part::kBody;
      for (std::size_t i = 0; i < program.ops.size(); ++i) {
        ASSERT_EQ(runs[r][i].run >= 0, program.ops[i].parts.contains(part));
      }
    }
    for (const Tier tier : kTiers) {
      ASSERT_LE(result.tier(tier).live_peak_bytes, program.use_of(tier).packed_bytes);
      ASSERT_EQ(result.tier(tier).planned_bytes, program.use_of(tier).live_bytes);
    }
    ASSERT_GT(result.tier(Tier::kHost).live_peak_bytes, 0U);
    std::vector<SimulatedOp> again;
    ASSERT_EQ(simulate(program, profile, kSteps, &again), result);
    ASSERT_EQ(again, timeline);
  }
}

// There is one transfer at a time and nothing is shared. Then every start is a maximum of sums of
// durations, and a shorter duration cannot make anything later.
TEST(Simulate, AFasterDiskNeverSlows) {
  for (unsigned seed = 100; seed < 140; ++seed) {
    std::mt19937 random(seed);
    const Program program = random_program(random);
    MachineProfile profile = random_profile(random);
    profile.io_depth = 1;
    profile.drive.disk_bytes_per_s = 1e15;
    profile.memory_bytes_per_s = 1e15;
    profile.cores = 100;
    double before_s = simulate(program, profile, 3).makespan_s;
    for (int round = 0; round < 3; ++round) {
      (round % 2 == 0 ? profile.drive.read_bytes_per_s : profile.drive.write_bytes_per_s) *= 1.7;
      const double now_s = simulate(program, profile, 3).makespan_s;
      ASSERT_LE(now_s, before_s * (1 + 1e-9)) << "seed " << seed;
      before_s = now_s;
    }
  }
}

double flops_for(const StepModel& model) {
  double flops = 0;
  for (const UnitModel& unit : model.units) flops += unit.forward_flops + unit.backward_flops;
  return flops;
}

// Runs forward alone, with uploads as slow as the compute. Without lookahead each unit is uploaded
// when the one before has made room; with it, while the one before computes.
TEST(Simulate, LookaheadShortensAStepThatWaitsForTransfers) {
  const StepModel model = small_step_model(8, false);
  StepPolicy policy =
      uniform_policy(model, {Tier::kHost, Tier::kHost, Tier::kHost, Tier::kDevice, false});
  policy.has_backward = false;
  std::vector<double> step_s;
  for (const int lookahead : {0, 1, 3}) {
    policy.lookahead = lookahead;
    const Program program = compile_step(model, policy, {});
    MachineProfile profile;
    profile.op_overhead_s = 0;
    profile.flops_per_s = 8 * 4e6;
    profile.upload_bytes_per_s = 8.0 * 6 * kBlockElements * 2;
    profile.memory_bytes_per_s = 1e13;
    step_s.push_back(simulate(program, profile, 5).step_s);
  }
  EXPECT_LT(step_s[1], 0.75 * step_s[0]);
  EXPECT_LE(step_s[2], step_s[1]);
}

TEST(Simulate, LayerMajorShortensAStepThatIsBoundByUploads) {
  const StepModel model = small_step_model(8, true);
  StepPolicy policy =
      uniform_policy(model, {Tier::kHost, Tier::kHost, Tier::kHost, Tier::kDevice, false});
  policy.micro_batches = 4;
  policy.lookahead = 1;
  std::vector<double> step_s;
  for (const MicroBatchOrder order :
       {MicroBatchOrder::kMicroBatchMajor, MicroBatchOrder::kLayerMajor}) {
    policy.order = order;
    TierBudgets budgets;
    budgets[0] = std::size_t{1};
    budgets[0] = compile_step(model, policy, budgets).use_of(Tier::kDevice).packed_bytes +
                 2 * std::size_t{6} * kBlockElements * 2;
    const Program program = compile_step(model, policy, budgets);
    MachineProfile profile;
    profile.flops_per_s = 1e12;
    profile.upload_bytes_per_s = 1e7;
    const SimulationResult result = simulate(program, profile, 4);
    EXPECT_EQ(result.bottleneck, Lane::kUpload);
    step_s.push_back(result.step_s);
  }
  EXPECT_LT(step_s[1], 0.5 * step_s[0]);
}

// The optimizer runs on the host, as slowly as forward and backward together. Most of it is hidden
// under the next forward, so a step takes less than the two in a row.
TEST(Simulate, TheOptimizerHidesUnderTheNextForward) {
  const StepModel model = small_step_model(8, false);
  const StepPolicy policy =
      uniform_policy(model, {Tier::kDevice, Tier::kHost, Tier::kHost, Tier::kDevice, false});
  const Program program = compile_step(model, policy, {});
  MachineProfile profile;
  profile.op_overhead_s = 0;
  profile.compute_cores = 0;
  profile.flops_per_s = flops_for(model);
  profile.upload_bytes_per_s = 1e12;
  profile.download_bytes_per_s = 1e12;
  profile.memory_bytes_per_s = 1e13;
  profile.update_bytes_per_s = 4 * lane_bytes(program, Lane::kUpdate);
  std::vector<SimulatedOp> timeline;
  const SimulationResult result = simulate(program, profile, 4, &timeline);
  const double in_a_row_s = 1 + 0.25;
  EXPECT_LT(result.step_s, in_a_row_s - 0.1);
  EXPECT_GT(result.step_s, 1);
}

// The shorter simulation ends early, and must still find the same result.
TEST(Simulate, TheSteadyStepAloneIsThatOfTheWholeSimulation) {
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    StepPolicy policy;
    policy.micro_batches = 1 + round % 3;
    policy.unified = round % 2 == 0;
    const StepModel model = small_step_model(2, false);
    const auto tier = [&random] { return kTiers.at(random() % kTierCount); };
    for (std::size_t u = 0; u < model.unit_count(); ++u) {
      add_homes(policy, {tier(), tier(), tier(), tier(), random() % 2 == 0});
    }
    const Program program = compile_step(model, policy, {});
    for (const int steps : {1, 2, 4}) {
      EXPECT_EQ(simulated_step_s(program, unit_profile(), steps),
                simulate(program, unit_profile(), steps).step_s);
    }
  }
}

TEST(Simulate, RefusesImpossibleProfiles) {
  const Program program = two_ops(Lane::kCompute, 1, Lane::kUpdate, 1, false);
  MachineProfile profile;
  EXPECT_NO_THROW(check_profile(profile));
  profile.drive.disk_bytes_per_s = 0;
  try {
    simulate(program, profile, 1);
    FAIL() << "a disk without a rate";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("profile: drive.disk_bytes_per_s"), std::string::npos);
  }
  profile = {};
  profile.unchecked_drive = {.write_bytes_per_s = 0};
  try {
    simulate(program, profile, 1);
    FAIL() << "a drive that writes nothing";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("unchecked_drive.write_bytes"), std::string::npos);
  }
  profile = {};
  profile.io_depth = 0;
  EXPECT_THROW(simulate(program, profile, 1), ConfigError);
  profile = {};
  profile.update_displacement = 0.5;
  EXPECT_THROW(simulate(program, profile, 1), ConfigError);
  profile = {};
  profile.transfer_displacement = 0.5;
  EXPECT_THROW(simulate(program, profile, 1), ConfigError);
  profile = {};
  profile.op_overhead_s = -1;
  EXPECT_THROW(simulate(program, profile, 1), ConfigError);
  profile = {};
  profile.flops_per_s = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(simulate(program, profile, 1), ConfigError);
}

}  // namespace
}  // namespace terrace
