#include <gtest/gtest.h>

#include "tests/runtime/engine/step_switches.h"

// Steps of very many micro-batches, which are compiled by their period. Their bits are those of
// layer-major order, whose programs list every micro-batch.
namespace terrace {
namespace {

// A little more than the fewest that have a period.
constexpr std::int32_t kMicroBatches = 67;
constexpr std::int64_t kFewSteps = 2;

ModelRuntimeOptions many_micro_batches(const char* family, bool tied, DType type,
                                       const TemporaryDirectory& drive) {
  ModelRuntimeOptions options = tiny_options(tiny_model(family, tied, true), type);
  options.nvme.directories = {{.path = drive.path(), .budget_bytes = {}}};
  options.batch = {1, 8};
  options.placement.micro_batches = kMicroBatches;
  return options;
}

ModelRuntimeOptions listed(ModelRuntimeOptions options) {
  options.placement.order = MicroBatchOrder::kLayerMajor;
  return options;
}

bool has_repetition(const ModelRuntimeOptions& options) {
  return plan_model(options).training.program.repetition.times > 1;
}

class PeriodicSteps : public testing::TestWithParam<Switch> {};

TEST_P(PeriodicSteps, HaveTheBitsOfListedMicroBatches) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const TemporaryDirectory drive;
    ModelRuntimeOptions options = many_micro_batches("llama", true, type, drive);
    const SwitchedRun plain = result_of(listed(options), kFewSteps);
    GetParam().set(options);
    if (options.placement.order == MicroBatchOrder::kMicroBatchMajor) {
      EXPECT_TRUE(has_repetition(options));
    }
    expect_same(result_of(options, kFewSteps), plain, GetParam().name);
  }
}

INSTANTIATE_TEST_SUITE_P(Switches, PeriodicSteps, testing::ValuesIn(kSwitches),
                         [](const auto& info) { return std::string(info.param.name); });

// Some parameters stay from one micro-batch to the next, and some loads are issued under the
// micro-batch before.
TEST(PeriodicStepsWithBudgets, HaveTheBitsOfListedMicroBatches) {
  const TemporaryDirectory drive;
  ModelRuntimeOptions options = many_micro_batches("gpt2", false, DType::kBF16, drive);
  const SwitchedRun plain = result_of(listed(options), kFewSteps);
  options.placement.has_nvme = true;
  const std::size_t all = plan_model(options).ledger[Tier::kHost].peak_bytes;
  int repeated = 0;
  for (const int percent : {95, 85, 75, 65, 55, 50}) {
    options.budgets[static_cast<std::size_t>(Tier::kHost)] = all / 100 * percent;
    SCOPED_TRACE(percent);
    if (has_repetition(options)) ++repeated;
    expect_same(result_of(options, kFewSteps), plain, "budget");
  }
  EXPECT_GE(repeated, 5);
}

TEST(PeriodicRanks, HaveTheBitsOfListedMicroBatches) {
  for (const MeshShape& shape : {MeshShape{.data = 2}, MeshShape{.data = 1, .tensor = 2}}) {
    for (const std::int32_t stage : {0, 1, 2, 3}) {
      if (shape.data == 1 && stage > 0) continue;
      for (const Tier home : {Tier::kHost, Tier::kNvme}) {
        SCOPED_TRACE(testing::Message() << "stage " << stage << ", home " << name_of(home));
        const TemporaryDirectory drive;
        ModelRuntimeOptions options = many_micro_batches("llama", false, DType::kBF16, drive);
        options.model = tiny_model("llama", false, false);
        options.sequence_parallel = false;
        const RankedRun plain = train_ranks(listed(options), shape, stage);
        all_on(options, true, home);
        options.ranks.shape = shape;
        options.zero_stage = stage;
        EXPECT_TRUE(has_repetition(options));
        const RankedRun run = train_ranks(options, shape, stage);
        EXPECT_EQ(run.curves, plain.curves);
        EXPECT_EQ(run.evaluations, plain.evaluations);
        EXPECT_EQ(run.state, plain.state);
      }
    }
  }
}

}  // namespace
}  // namespace terrace
