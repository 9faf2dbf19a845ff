#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/step/simulate_stages.h"
#include "runtime/step/stage_graph.h"
#include "runtime/step/verify_stages.h"
#include "tests/runtime/step/step_fixture.h"

// The programs of all stages on virtual lanes, and the time that a schedule leaves idle.
namespace terrace {
namespace {

constexpr double kForwardS = 1;
constexpr double kBackwardS = 2;

// Returns a machine on which a flop takes a second and everything else takes no time.
MachineProfile free_transfers() {
  constexpr double kEndless = 1e300;
  MachineProfile profile;
  profile.flops_per_s = 1;
  profile.op_overhead_s = 0;
  for (double* rate : {&profile.compute_bytes_per_s, &profile.upload_bytes_per_s,
                       &profile.download_bytes_per_s, &profile.drive.read_bytes_per_s,
                       &profile.drive.write_bytes_per_s, &profile.update_bytes_per_s,
                       &profile.drive.disk_bytes_per_s, &profile.memory_bytes_per_s}) {
    *rate = kEndless;
  }
  profile.links.fill({.bytes_per_s = kEndless});
  return profile;
}

// Returns a model with one block for each piece. Its embedding and head cost nothing.
StepModel equal_pieces(std::int32_t pieces) {
  StepModel model = small_step_model(pieces, false);
  for (UnitModel& unit : model.units) {
    const bool is_block = unit.kind == UnitKind::kBlock;
    unit.forward_flops = is_block ? kForwardS : 0;
    unit.backward_flops = is_block ? kBackwardS : 0;
    add_whole_steps(unit, false);
  }
  return model;
}

std::vector<Program> programs_of(const PipelineShape& shape, bool recompute) {
  const std::int32_t pieces = shape.stages * shape.virtual_stages;
  StepModel model = equal_pieces(pieces);
  model.pipeline.stages = shape.stages;
  model.pipeline.virtual_stages = shape.virtual_stages;
  for (std::int32_t piece = 0; piece < pieces; ++piece) {
    model.pipeline.piece_begins.push_back(piece == 0 ? 0 : piece + 1);
  }
  model.pipeline.piece_begins.push_back(pieces + 2);
  StepPolicy policy = uniform_policy(model, {});
  policy.unified = true;
  policy.micro_batches = shape.micro_batches;
  policy.pipeline_schedule = shape.schedule;
  for (UnitActivations& unit : policy.activations) unit.recompute = recompute;
  std::vector<Program> programs;
  for (model.pipeline.stage = 0; model.pipeline.stage < shape.stages; ++model.pipeline.stage) {
    programs.push_back(compile_step(model, policy, {}));
  }
  return programs;
}

// Returns the bubble of Huang et al. for GPipe and 1F1B and of Narayanan et al. 2021 for
// interleaved, here as a share of the whole time.
double bubble_of(const PipelineShape& shape) {
  const double behind = shape.stages - 1;
  return behind / (shape.virtual_stages * shape.micro_batches + behind);
}

class PipelineBubble : public testing::TestWithParam<PipelineShape> {};

TEST_P(PipelineBubble, IsThatOfThePaper) {
  const PipelineShape& shape = GetParam();
  const std::vector<Program> programs = programs_of(shape, false);
  ASSERT_THAT(verify_stages(programs), testing::IsEmpty());
  const StagesSimulation simulated = simulate_stages(pointers_to(programs), free_transfers());
  EXPECT_NEAR(simulated.bubble_share, bubble_of(shape), 1e-12);
  const double works = shape.virtual_stages * shape.micro_batches;
  const double slot_s = kForwardS + kBackwardS;
  EXPECT_NEAR(simulated.step_s, (works + shape.stages - 1) * slot_s, 1e-9);
  for (const double busy_s : simulated.compute_busy_s) EXPECT_NEAR(busy_s, works * slot_s, 1e-9);
}

// A stage recomputes forwards before the gradients that need them have come.
TEST_P(PipelineBubble, IsSmallerWithRecomputation) {
  const std::vector<Program> programs = programs_of(GetParam(), true);
  ASSERT_THAT(verify_stages(programs), testing::IsEmpty());
  EXPECT_LT(simulate_stages(pointers_to(programs), free_transfers()).bubble_share,
            bubble_of(GetParam()));
}

constexpr auto kGpipe = PipelineSchedule::kGpipe;
constexpr auto k1F1B = PipelineSchedule::k1F1B;
constexpr auto kInterleaved = PipelineSchedule::kInterleaved;
const PipelineShape kShapes[] = {
    {kGpipe, 2, 4, 1},       {kGpipe, 4, 8, 1},       {k1F1B, 2, 2, 1},
    {k1F1B, 2, 8, 1},        {k1F1B, 3, 9, 1},        {k1F1B, 4, 8, 1},
    {k1F1B, 8, 16, 1},       {kInterleaved, 2, 2, 2}, {kInterleaved, 2, 8, 2},
    {kInterleaved, 2, 4, 4}, {kInterleaved, 3, 6, 2}, {kInterleaved, 4, 4, 2},
    {kInterleaved, 4, 8, 3}, {kInterleaved, 8, 8, 2}, {kInterleaved, 8, 24, 2}};

std::string name_of_shape(const testing::TestParamInfo<PipelineShape>& info) {
  const PipelineShape& shape = info.param;
  const char* const schedule = shape.schedule == kGpipe  ? "gpipe"
                               : shape.schedule == k1F1B ? "one_f_one_b"
                                                         : "interleaved";
  return fmt::format("{}_{}_stages_{}_micro_batches_{}_pieces", schedule, shape.stages,
                     shape.micro_batches, shape.virtual_stages);
}

INSTANTIATE_TEST_SUITE_P(Schedules, PipelineBubble, testing::ValuesIn(kShapes), name_of_shape);

// Transfers that take time make the bubble longer.
TEST(PipelineSimulation, MessagesTakeTheTimeOfTheNetwork) {
  const PipelineShape shape{k1F1B, 2, 2, 1};
  const std::vector<Program> programs = programs_of(shape, false);
  MachineProfile profile = free_transfers();
  const double free_s = simulate_stages(pointers_to(programs), profile).step_s;
  const StepModel model = equal_pieces(2);
  const double quarter_s = static_cast<double>(model.hidden_bytes) * 4;  // the rate of a message
  link_of(profile, MeshAxis::kPipeline).bytes_per_s = quarter_s;
  const StagesSimulation slower = simulate_stages(pointers_to(programs), profile);
  EXPECT_GE(slower.step_s, free_s + 0.5);  // there and back
  EXPECT_GT(slower.bubble_share, bubble_of(shape));
}

// A stage of half the speed is at work from the first hidden state to the last gradient. The fast
// stage computes before and after that.
TEST(PipelineSimulation, EachStageHasTheSpeedOfItsOwnMachine) {
  const PipelineShape shape{k1F1B, 2, 8, 1};
  const std::vector<Program> programs = programs_of(shape, false);
  std::vector<MachineProfile> profiles(2, free_transfers());
  profiles[1].flops_per_s = 0.5;
  const StagesSimulation simulated = simulate_stages(pointers_to(programs), profiles);
  const double slot_s = kForwardS + kBackwardS;
  EXPECT_THAT(simulated.compute_busy_s, testing::ElementsAre(8 * slot_s, 16 * slot_s));
  EXPECT_NEAR(simulated.step_s, 16 * slot_s + kForwardS + kBackwardS, 1e-9);
}

TEST(PipelineSimulation, RefusesImpossibleProfiles) {
  MachineProfile profile;
  link_of(profile, MeshAxis::kTensor).bytes_per_s = 0;
  EXPECT_THROW(simulate_stages(pointers_to(programs_of({k1F1B, 2, 2, 1}, false)), profile),
               ConfigError);
}

}  // namespace
}  // namespace terrace
