#include <gtest/gtest.h>

#include "runtime/model/adapter_targets.h"
#include "tests/runtime/engine/ranks_fixture.h"
#include "tests/runtime/engine/resumed_ranks.h"

// Data-parallel ranks in islands, as threads. Whatever ZeRO stage 3 divides over the ranks of an
// island, the bits are those of whole states.
namespace terrace {
namespace {

ModelRuntimeOptions island_options(DType type, std::string_view family = "llama") {
  ModelRuntimeOptions options = tiny_options(tiny_model(family, true, false), type);
  options.placement.micro_batches = 2;
  options.chunk_elements = 8 * kBlockElements;
  return options;
}

struct Islands {
  const char* name;
  ZeroPartition partition;
  MeshShape shape;
};

constexpr auto kHpz = ZeroPartition::kHpz;
constexpr auto kHsdp = ZeroPartition::kHsdp;
const Islands kIslands[] = {
    {"hpz_two_by_two", kHpz, {.data = 4, .islands = 2}},
    {"hsdp_two_by_two", kHsdp, {.data = 4, .islands = 2}},
    {"hpz_three_of_two", kHpz, {.data = 6, .islands = 3}},
    {"hsdp_two_of_three", kHsdp, {.data = 6, .islands = 2}},
    {"hpz_stages", kHpz, {.data = 4, .pipeline = 2, .islands = 2}},
    {"hsdp_stages", kHsdp, {.data = 4, .pipeline = 2, .islands = 2}},
};

class IslandRanks : public testing::TestWithParam<std::tuple<Islands, DType>> {};

TEST_P(IslandRanks, HaveTheBitsOfWholeStatesInAllTiers) {
  const auto& [islands, type] = GetParam();
  for (const double max_grad_norm : {1.6, 0.0}) {
    ModelRuntimeOptions options = island_options(type);
    options.optimizer.max_grad_norm = max_grad_norm;
    const RankedRun plain = train_ranks(options, islands.shape.data, 0);
    options.zero_partition = islands.partition;
    for (const Placed& placed : placements()) {
      SCOPED_TRACE(fmt::format("{}, max_grad_norm {}", placed.name, max_grad_norm));
      // A stage passes a micro-batch on before it begins the next one.
      if (islands.shape.pipeline > 1 && std::string_view(placed.name) == "layer_major") continue;
      ModelRuntimeOptions there = options;
      const TemporaryDirectory drive;
      placed.set(there);
      if (there.placement.has_nvme) there.nvme.directories = {{drive.path(), std::nullopt}};
      const RankedRun run = train_ranks(there, islands.shape, 3);
      for (const Curve& curve : run.curves) EXPECT_EQ(curve, plain.curves[0]);
      EXPECT_EQ(run.state, plain.state);
      EXPECT_GT(run.run.traffic.of(Lane::kIsland), 0);
      EXPECT_GT(run.run.traffic.of(Lane::kInterIsland), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, IslandRanks,
                         testing::Combine(testing::ValuesIn(kIslands),
                                          testing::Values(DType::kBF16, DType::kF32)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param).name,
                                              name_of(std::get<1>(info.param)));
                         });

class IslandStates : public testing::TestWithParam<ZeroPartition> {
 protected:
  static constexpr MeshShape kShape = {.data = 4, .islands = 2};
};

// Slots of 8 and 16 bits are rounded by the numbers of their elements, and an island's rank has
// elements of several shards in one home.
TEST_P(IslandStates, RoundNarrowSlotsAsOtherRanksDo) {
  for (const SlotForm form : {SlotForm::kInt8, SlotForm::kBf16}) {
    ModelRuntimeOptions options = island_options(DType::kBF16, "gpt2");
    options.optimizer.slot_form = form;
    const RankedRun plain = train_ranks(options, kShape.data, 0);
    options.zero_partition = GetParam();
    const TemporaryDirectory drive;
    for (const bool on_drive : {false, true}) {
      if (on_drive) all_on(options, true, Tier::kNvme);
      options.nvme.directories = {{drive.path(), std::nullopt}};
      const RankedRun run = train_ranks(options, kShape, 3);
      EXPECT_EQ(run.curves[0], plain.curves[0]);
      EXPECT_EQ(run.state, plain.state);
    }
  }
}

// An adapter trains few elements of each unit. The others are frozen: numbers, or codes of nf4.
TEST_P(IslandStates, TrainAdaptersOverPlainAndQuantizedBases) {
  for (const bool is_quantized : {false, true}) {
    SCOPED_TRACE(is_quantized);
    ModelRuntimeOptions options = island_options(DType::kBF16);
    options.model = with_adapter(options.model, {.rank = 5, .alpha = 12, .targets = {}}, {});
    options.optimizer.max_grad_norm = 0.02;
    if (is_quantized) options.base_quantization = QuantizedForm::kNf4;
    const RankedRun plain = train_ranks(options, kShape.data, 0);
    options.zero_partition = GetParam();
    const TemporaryDirectory drive;
    for (const bool on_drive : {false, true}) {
      if (on_drive) all_on(options, true, Tier::kNvme);
      options.nvme.directories = {{drive.path(), std::nullopt}};
      const RankedRun run = train_ranks(options, kShape, 3);
      for (const Curve& curve : run.curves) EXPECT_EQ(curve, plain.curves[0]);
      EXPECT_EQ(run.state, plain.state);
      EXPECT_GT(run.run.traffic.of(Lane::kIsland), 0);
    }
  }
}

TEST_P(IslandStates, WorkWithTensorRanks) {
  const ModelRuntimeOptions options = island_options(DType::kF32);
  MeshShape shape = {.data = 4, .tensor = 2};
  const RankedRun plain = train_ranks(options, shape, 0);
  shape.islands = 2;
  ModelRuntimeOptions divided = options;
  divided.zero_partition = GetParam();
  const RankedRun run = train_ranks(divided, shape, 3);
  for (const Curve& curve : run.curves) EXPECT_EQ(curve, plain.curves[0]);
  EXPECT_EQ(run.state, plain.state);
}

// A state goes on in other islands, and without any.
TEST_P(IslandStates, GoOnOnOtherMeshes) {
  ModelRuntimeOptions options = island_options(DType::kBF16);
  const RankedRun plain = train_ranks(options, 4, 3);
  const Resumed expected = resume(options, MeshShape{.data = 4}, 3, plain.state);
  ModelRuntimeOptions divided = options;
  divided.zero_partition = GetParam();
  const Resumed in_islands = resume(divided, kShape, 3, plain.state);
  EXPECT_EQ(in_islands.state, expected.state);
  EXPECT_EQ(in_islands.curve, expected.curve);
  const RankedRun begun = train_ranks(divided, kShape, 3);
  EXPECT_EQ(resume(options, MeshShape{.data = 4}, 1, begun.state).curve, expected.curve);
}

INSTANTIATE_TEST_SUITE_P(Partitions, IslandStates, testing::Values(kHpz, kHsdp),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace terrace
