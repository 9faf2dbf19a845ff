#include <gtest/gtest.h>

#include "tests/runtime/engine/ranks_fixture.h"

// Ranks as threads. Dividing work by ZeRO and by a pipeline does not change bits, and the ranks
// send the bytes that their program says.
namespace terrace {
namespace {

ModelRuntimeOptions options_for(DType type, std::int32_t micro_batches = 2) {
  ModelRuntimeOptions options = tiny_options(tiny_model("llama", true, false), type);
  options.placement.micro_batches = micro_batches;
  options.chunk_elements = 8 * kBlockElements;
  return options;
}

using StageCase = std::tuple<int, DType, std::size_t>;

class ZeroStages : public testing::TestWithParam<StageCase> {};

// Every rank sees the same curve, and every stage has the bits of stage 0 in the plain placement.
TEST_P(ZeroStages, HaveTheBitsOfStageZero) {
  const auto [ranks, type, placed] = GetParam();
  for (const double max_grad_norm : {1.6, 0.0}) {
    ModelRuntimeOptions options = options_for(type);
    options.optimizer.max_grad_norm = max_grad_norm;
    const RankedRun plain = train_ranks(options, ranks, 0);
    const TemporaryDirectory drive;
    placements()[placed].set(options);
    if (options.placement.has_nvme) options.nvme.directories = {{drive.path(), std::nullopt}};
    for (const std::int32_t stage : {0, 1, 2, 3}) {
      const RankedRun run = train_ranks(options, ranks, stage);
      SCOPED_TRACE(fmt::format("stage {}, max_grad_norm {}", stage, max_grad_norm));
      for (const Curve& curve : run.curves) EXPECT_EQ(curve, plain.curves[0]);
      EXPECT_EQ(run.evaluations, plain.evaluations);
      EXPECT_EQ(run.state, plain.state);
    }
  }
}

// Gradients of two bytes are rounded before and after ranks add them, wherever the gradients live
// and whatever ZeRO divides.
class RoundedGradients : public testing::TestWithParam<std::tuple<int, std::size_t>> {};

TEST_P(RoundedGradients, HaveTheBitsOfStageZero) {
  const auto [ranks, placed] = GetParam();
  for (const double max_grad_norm : {1.6, 0.0}) {
    ModelRuntimeOptions options = options_for(DType::kBF16);
    options.optimizer.max_grad_norm = max_grad_norm;
    const RankedRun exact = train_ranks(options, ranks, 0);
    options.gradient_type = DType::kBF16;
    const RankedRun plain = train_ranks(options, ranks, 0);
    EXPECT_NE(plain.curves[0], exact.curves[0]);
    for (std::size_t i = 0; i < exact.curves[0].losses.size(); ++i) {
      EXPECT_NEAR(plain.curves[0].losses[i], exact.curves[0].losses[i], 2e-2);
    }
    const TemporaryDirectory drive;
    placements()[placed].set(options);
    if (options.placement.has_nvme) options.nvme.directories = {{drive.path(), std::nullopt}};
    for (const std::int32_t stage : {0, 1, 2, 3}) {
      const RankedRun run = train_ranks(options, ranks, stage);
      SCOPED_TRACE(fmt::format("stage {}, max_grad_norm {}", stage, max_grad_norm));
      for (const Curve& curve : run.curves) EXPECT_EQ(curve, plain.curves[0]);
      EXPECT_EQ(run.state, plain.state);
    }
  }
}

// Reducing every micro-batch adds gradients in another order. That order is the same wherever
// the state lives and whatever ZeRO divides.
class ReducedMicroBatches : public testing::TestWithParam<std::size_t> {};

TEST_P(ReducedMicroBatches, HaveTheSameBitsInAllTiersAndStages) {
  ModelRuntimeOptions options = options_for(DType::kBF16, 3);
  const RankedRun by_step = train_ranks(options, 2, 2);
  options.placement.reduces_micro_batches = true;
  const RankedRun plain = train_ranks(options, 2, 2);
  EXPECT_NE(plain.state, by_step.state);
  for (std::size_t i = 0; i < by_step.curves[0].losses.size(); ++i) {
    EXPECT_NEAR(plain.curves[0].losses[i], by_step.curves[0].losses[i], 1e-2);
  }
  EXPECT_GT(plain.run.traffic.of(Lane::kCollective), by_step.run.traffic.of(Lane::kCollective));
  const TemporaryDirectory drive;
  placements()[GetParam()].set(options);
  if (options.placement.has_nvme) options.nvme.directories = {{drive.path(), std::nullopt}};
  for (const std::int32_t stage : {2, 3}) {
    const RankedRun run = train_ranks(options, 2, stage);
    for (const Curve& curve : run.curves) EXPECT_EQ(curve, plain.curves[0]) << stage;
    EXPECT_EQ(run.state, plain.state) << stage;
  }
  // Between pipeline stages the bits are the same too.
  options.pipeline_schedule = PipelineSchedule::k1F1B;
  const RankedRun stages = train_ranks(options, MeshShape{2, 1, 2}, 2);
  EXPECT_EQ(stages.state, plain.state);
}

// The losses of the steps differ from each other, so the comparison above does compare something.
TEST(ZeroTraining, LearnsOnEveryRanksSamples) {
  const ModelRuntimeOptions options = options_for(DType::kF32);
  const RankedRun two = train_ranks(options, 2, 3);
  ModelRuntimeOptions alone = options;
  alone.placement.micro_batches = 4;
  const TrainedRun one = train_tiny(alone, kSteps);
  EXPECT_LT(two.curves[0].losses.back(), two.curves[0].losses.front());
  EXPECT_NE(two.curves[0], one.curve);  // added in another order
  for (std::size_t i = 0; i < one.curve.losses.size(); ++i) {
    EXPECT_NEAR(two.curves[0].losses[i], one.curve.losses[i], 1e-5 * one.curve.losses[i]);
    EXPECT_NEAR(two.curves[0].norms[i], one.curve.norms[i], 1e-4 * one.curve.norms[i]);
  }
}

// The bytes that communicators count are the bytes that the program says it sends.
TEST(ZeroTraining, SendsTheBytesOfItsProgram) {
  for (const std::int32_t stage : {0, 1, 2, 3}) {
    ModelRuntimeOptions options = options_for(DType::kBF16, 1);
    options.evaluates = true;
    const RankedRun run = train_ranks(options, 2, stage);
    // With stage 3, the evaluation after the last step gathers once more.
    const double told = run.run.traffic.of(Lane::kCollective);
    const double evaluation = stage == 3 ? static_cast<double>(run.state.size() / 3) * 2 / 2 : 0;
    EXPECT_GE(run.bytes_sent, told + evaluation);
    EXPECT_LE(run.bytes_sent, (told + evaluation) * 1.1);  // padding of small units
    if (stage != 3) {
      EXPECT_EQ(run.bytes_sent, told);
    }
  }
}

// With more than 64 ranks chunks are larger than asked for. Where they end changes no bit.
TEST(ZeroTraining, LargerChunksOfManyRanksHaveTheSameBits) {
  constexpr std::int32_t kManyRanks = 65;
  SmallModel sizes;
  sizes.layers = 1;
  sizes.width = 256;
  sizes.intermediate = 512;
  ModelRuntimeOptions options = tiny_options(small_model("llama", sizes), DType::kBF16);
  options.batch = {1, 8};
  options.placement.micro_batches = 1;
  options.threads = 1;
  const auto train = [&](std::int64_t chunks) {
    options.chunk_elements = chunks * kManyRanks * kBlockElements;
    return train_ranks(options, kManyRanks, 3);
  };
  const RankedRun small = train(1);
  const RankedRun large = train(8);
  EXPECT_GT(small.run.traffic.of(Lane::kCollective), 0);
  for (const Curve& curve : large.curves) EXPECT_EQ(curve, small.curves[0]);
  EXPECT_EQ(large.state, small.state);
}

// Pipeline stages. Whatever the schedule and the tiers, they give the bits of one rank with the
// same micro-batches. If each stage is also divided among data-parallel ranks, they give the bits
// of as many data-parallel ranks without stages.
struct PipelineCase {
  const char* name;
  MeshShape shape;
  std::string_view family;
  bool tied;
  DType type;
  std::int32_t micro_batches;
  std::int32_t zero_stage;
  PipelineSchedule schedule;
  std::size_t placed;
  std::int32_t virtual_stages = 1;
  std::vector<double> stage_speeds = {};
};

class PipelineStages : public testing::TestWithParam<PipelineCase> {};

TEST_P(PipelineStages, HaveTheBitsOfOneRank) {
  const PipelineCase& tested = GetParam();
  for (const double max_grad_norm : {1.6, 0.0}) {
    ModelRuntimeOptions options =
        tiny_options(tiny_model(tested.family, tested.tied, false), tested.type);
    options.placement.micro_batches = tested.micro_batches;
    options.chunk_elements = 8 * kBlockElements;
    options.optimizer.max_grad_norm = max_grad_norm;
    const RankedRun plain = train_ranks(options, tested.shape.data, 0);
    const TemporaryDirectory drive;
    placements()[tested.placed].set(options);
    if (options.placement.has_nvme) options.nvme.directories = {{drive.path(), std::nullopt}};
    options.pipeline_schedule = tested.schedule;
    options.virtual_stages = tested.virtual_stages;
    options.stage_speeds = tested.stage_speeds;
    const RankedRun run = train_ranks(options, tested.shape, tested.zero_stage);
    for (const Curve& curve : run.curves) EXPECT_EQ(curve, plain.curves[0]);
    EXPECT_EQ(run.state, plain.state);
    // The last stage has the losses.
    const auto last = static_cast<std::size_t>(tested.shape.ranks() - tested.shape.data);
    for (std::size_t r = 0; r < static_cast<std::size_t>(tested.shape.data); ++r) {
      EXPECT_EQ(run.evaluations[last + r], plain.evaluations[r]);
    }
    EXPECT_EQ(run.evaluations.front(), 0);
  }
}

constexpr auto kGpipe = PipelineSchedule::kGpipe;
constexpr auto k1F1B = PipelineSchedule::k1F1B;
constexpr auto kInterleaved = PipelineSchedule::kInterleaved;
constexpr auto kLlama = "llama";
constexpr auto kGpt2 = "gpt2";
const PipelineCase kPipelineCases[] = {
    {"two_stages_tied", {1, 1, 2}, kLlama, true, DType::kBF16, 4, 0, k1F1B, 0},
    {"two_stages_untied_fp32", {1, 1, 2}, kGpt2, false, DType::kF32, 4, 0, k1F1B, 0},
    {"three_stages_gpipe_on_device", {1, 1, 3}, kGpt2, true, DType::kBF16, 5, 0, kGpipe, 2},
    {"four_stages_one_micro_batch", {1, 1, 4}, kLlama, true, DType::kF32, 1, 0, k1F1B, 0},
    {"four_stages_all_on_nvme", {1, 1, 4}, kLlama, true, DType::kBF16, 3, 0, k1F1B, 4},
    {"two_stages_unified_nvme", {1, 1, 2}, kLlama, true, DType::kBF16, 3, 0, k1F1B, 1},
    {"two_by_two_zero_1", {2, 1, 2}, kLlama, true, DType::kBF16, 2, 1, k1F1B, 0},
    {"two_by_two_zero_1_nvme", {2, 1, 2}, kLlama, true, DType::kBF16, 2, 1, k1F1B, 4},
    {"two_by_two_zero_3_nvme", {2, 1, 2}, kGpt2, true, DType::kBF16, 2, 3, kGpipe, 4},
    {"two_by_three_zero_2_recompute", {2, 1, 3}, kLlama, false, DType::kBF16, 3, 2, k1F1B, 9},
    {"two_by_two_zero_0", {2, 1, 2}, kGpt2, true, DType::kF32, 2, 0, k1F1B, 0},
    {"two_by_two_zero_3_on_host", {2, 1, 2}, kLlama, true, DType::kF32, 2, 3, k1F1B, 3},
    {"interleaved_tied", {1, 1, 2}, kLlama, true, DType::kBF16, 4, 0, kInterleaved, 0, 2},
    {"interleaved_untied_fp32", {1, 1, 2}, kGpt2, false, DType::kF32, 6, 0, kInterleaved, 0, 3},
    {"interleaved_one_piece", {1, 1, 2}, kGpt2, true, DType::kBF16, 2, 0, kInterleaved, 9, 1},
    {"interleaved_pieces_of_a_unit",
     {1, 1, 4},
     kLlama,
     true,
     DType::kF32,
     4,
     0,
     kInterleaved,
     0,
     2},
    {"interleaved_three_stages", {1, 1, 3}, kGpt2, true, DType::kBF16, 6, 0, kInterleaved, 2, 2},
    {"interleaved_three_on_nvme", {1, 1, 3}, kLlama, true, DType::kBF16, 3, 0, kInterleaved, 4, 2},
    {"interleaved_zero_1_unified_nvme",
     {2, 1, 2},
     kLlama,
     true,
     DType::kBF16,
     2,
     1,
     kInterleaved,
     1,
     2},
    {"interleaved_zero_2_recompute",
     {2, 1, 2},
     kGpt2,
     false,
     DType::kBF16,
     4,
     2,
     kInterleaved,
     9,
     2},
    {"interleaved_zero_3_nvme", {2, 1, 2}, kLlama, true, DType::kBF16, 4, 3, kInterleaved, 4, 3},
    {"interleaved_zero_0_on_host", {2, 1, 2}, kGpt2, true, DType::kF32, 2, 0, kInterleaved, 3, 2},
    {"slow_first_stage", {1, 1, 2}, kLlama, true, DType::kBF16, 4, 0, k1F1B, 0, 1, {0.25, 1}},
    {"slow_last_stage_zero_3", {2, 1, 2}, kGpt2, true, DType::kF32, 3, 3, k1F1B, 4, 1, {3, 1}},
    {"slow_interleaved", {1, 1, 2}, kLlama, false, DType::kBF16, 4, 0, kInterleaved, 0, 2, {1, 9}},
};

INSTANTIATE_TEST_SUITE_P(Meshes, PipelineStages, testing::ValuesIn(kPipelineCases),
                         [](const testing::TestParamInfo<PipelineCase>& info) {
                           return std::string(info.param.name);
                         });

std::string name_of_case(const testing::TestParamInfo<StageCase>& info) {
  const auto [ranks, type, placed] = info.param;
  return fmt::format("{}_{}_ranks_{}", placements()[placed].name, ranks, name_of(type));
}

std::string name_of_placement(std::size_t placed) { return placements()[placed].name; }

INSTANTIATE_TEST_SUITE_P(Placements, RoundedGradients,
                         testing::Combine(testing::Values(1, 2),
                                          testing::Range(std::size_t{0}, placements().size())),
                         [](const testing::TestParamInfo<std::tuple<int, std::size_t>>& info) {
                           return fmt::format("{}_{}_ranks",
                                              name_of_placement(std::get<1>(info.param)),
                                              std::get<0>(info.param));
                         });
// All placements except layer-major, which has index 8.
INSTANTIATE_TEST_SUITE_P(Placements, ReducedMicroBatches,
                         testing::Values(0U, 1U, 2U, 3U, 4U, 5U, 6U, 7U, 9U),
                         [](const testing::TestParamInfo<std::size_t>& info) {
                           return name_of_placement(info.param);
                         });
INSTANTIATE_TEST_SUITE_P(TwoRanks, ZeroStages,
                         testing::Combine(testing::Values(2),
                                          testing::Values(DType::kBF16, DType::kF32),
                                          testing::Range(std::size_t{0}, placements().size())),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(ThreeRanks, ZeroStages,
                         testing::Combine(testing::Values(3), testing::Values(DType::kBF16),
                                          testing::Values(std::size_t{0}, std::size_t{4})),
                         name_of_case);

#ifdef TERRACE_EVERY_MESH

constexpr std::size_t kLayerMajorPlacement = 8;

// Returns meshes of 2, 4 and 8 ranks with every schedule, stage and placement.
std::vector<PipelineCase> every_pipeline() {
  std::vector<PipelineCase> cases;
  const MeshShape shapes[] = {{1, 1, 2}, {2, 1, 2}, {4, 1, 2}, {1, 1, 4}, {2, 1, 4}, {1, 1, 8}};
  for (const MeshShape& shape : shapes) {
    for (const auto schedule : {kGpipe, k1F1B, kInterleaved}) {
      const bool in_pieces = schedule == kInterleaved && shape.pipeline < 8;
      for (std::int32_t stage = 0; stage < (shape.data > 1 ? 4 : 1); ++stage) {
        for (std::size_t placed = 0; placed < placements().size(); ++placed) {
          if (placed == kLayerMajorPlacement) continue;
          cases.push_back({"", shape, stage % 2 == 0 ? kLlama : kGpt2, placed % 2 == 0,
                           DType::kBF16, shape.pipeline, stage, schedule, placed,
                           in_pieces ? 2 : 1});
        }
      }
    }
  }
  return cases;
}

std::string name_of_mesh(const testing::TestParamInfo<PipelineCase>& info) {
  const PipelineCase& tested = info.param;
  const char* const schedules[] = {"gpipe", "one_f_one_b", "interleaved"};
  return fmt::format("dp_{}_pp_{}_{}_zero_{}_{}", tested.shape.data, tested.shape.pipeline,
                     schedules[static_cast<std::size_t>(tested.schedule)], tested.zero_stage,
                     placements()[tested.placed].name);
}

INSTANTIATE_TEST_SUITE_P(EveryMesh, PipelineStages, testing::ValuesIn(every_pipeline()),
                         name_of_mesh);
INSTANTIATE_TEST_SUITE_P(FourAndEightRanks, ZeroStages,
                         testing::Combine(testing::Values(4, 8),
                                          testing::Values(DType::kBF16, DType::kF32),
                                          testing::Range(std::size_t{0}, placements().size())),
                         name_of_case);

#endif  // TERRACE_EVERY_MESH

}  // namespace
}  // namespace terrace
