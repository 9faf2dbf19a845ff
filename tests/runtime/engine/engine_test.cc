#include <gtest/gtest.h>

#include <thread>

#include "tests/runtime/engine/engine_fixture.h"

// The engine on real lanes, small enough for the sanitizers;
// tests/runtime/engine/engine_bits_test.cc has the whole matrix.
namespace terrace {
namespace {

ModelRuntimeOptions everything_away(const TemporaryDirectory& directory) {
  ModelConfig model = tiny_model("llama", true, true);
  model.layers = 2;
  ModelRuntimeOptions options = tiny_options(model, DType::kBF16);
  options.batch = {1, 12};
  options.placement.micro_batches = 2;
  options.placement.unified = false;
  options.placement.has_nvme = true;
  options.placement.homes.fill(Tier::kNvme);
  options.nvme.directories = {{directory.path(), std::nullopt}};
  return options;
}

TEST(ModelRuntime, TrainsWithEveryLaneAtWork) {
  const TemporaryDirectory directory;
  ModelRuntimeOptions options = everything_away(directory);
  for (const IoEngineKind engine : {IoEngineKind::kAuto, IoEngineKind::kPosix}) {
    options.nvme.engine = engine;
    const TrainedRun run = train_tiny(options, 4);
    for (const Lane lane : {Lane::kUpload, Lane::kDownload, Lane::kRead, Lane::kWrite}) {
      EXPECT_GT(run.traffic.of(lane), 0) << name_of(lane);
    }
    EXPECT_LT(run.curve.losses.back(), run.curve.losses.front());
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << "slot files are left behind";
}

// Beside the budgets a plan also counts the buffers through which state goes to its homes.
TEST(ModelRuntime, HomeBuffersAreCounted) {
  ModelRuntimeOptions options = tiny_options(tiny_model("llama", false, false), DType::kBF16);
  const PlanMemory in_memory = memory_of_plan(plan_model(options));
  EXPECT_EQ(in_memory.home_buffer_bytes, HomeAccess::buffer_bytes(false));
  const TemporaryDirectory drive;
  options.nvme.directories = {{drive.path(""), std::nullopt}};
  options.placement.has_nvme = true;
  options.placement.homes[StateClass::kOptimizer] = Tier::kNvme;
  const PlanMemory with_drive = memory_of_plan(plan_model(options));
  EXPECT_EQ(with_drive.home_buffer_bytes, HomeAccess::buffer_bytes(true));
  EXPECT_GT(with_drive.home_buffer_bytes, in_memory.home_buffer_bytes);
  EXPECT_EQ(with_drive.beside_budgets(), with_drive.program_bytes + with_drive.home_buffer_bytes);
}

TEST(ModelRuntime, StateReadsBackWhatItWasFilledWith) {
  const TemporaryDirectory directory;
  const ModelRuntimeOptions options = everything_away(directory);
  const TierPlan plan = plan_model(options);
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  const RandomState source(99);
  engine.fill_state(source);
  for (const UnitLayout& unit : engine.compute().layout()) {
    for (const StateField field : kStateFields) {
      const auto begin = unit.padded_elements / 3;  // not at a chunk's or block's start
      std::vector<float> expected(static_cast<std::size_t>(unit.padded_elements - begin));
      std::vector<float> got(expected.size());
      source.read(field, unit, begin, expected);
      engine.state().read(field, static_cast<std::int32_t>(unit.index), begin, got);
      EXPECT_EQ(got, expected) << "unit " << unit.index;
    }
  }
}

TEST(ModelRuntime, ANonFiniteStepFailsAndUpdatesNothing) {
  const TemporaryDirectory directory;
  ModelRuntimeOptions options = everything_away(directory);
  const TierPlan plan = plan_model(options);
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  class InfiniteNorm final : public StateSource {
   public:
    void read(StateField field, const UnitLayout&, std::int64_t,
              std::span<float> out) const override {
      std::fill(out.begin(), out.end(),
                field == StateField::kMaster ? std::numeric_limits<float>::infinity() : 0.0F);
    }
  };
  engine.fill_state(InfiniteNorm());
  const std::vector<std::int32_t> tokens = batch_of_step(options, 1);
  engine.begin_step({1, tokens, 24, 1e-3});
  EXPECT_THROW(engine.finish_step(), NotFinite);
}

// A file damaged between steps must stop the run, and never be trained on.
TEST(ModelRuntime, ACorruptSlotFileIsNamed) {
  const TemporaryDirectory directory;
  const ModelRuntimeOptions options = everything_away(directory);
  const TierPlan plan = plan_model(options);
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  engine.fill_state(RandomState(1));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
    if (!entry.is_regular_file() || entry.file_size() < 100000) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (std::uintmax_t at = 100; at < entry.file_size(); at += 4096) {
      file.seekp(static_cast<std::streamoff>(at));
      file.put('\x5a');
    }
  }
  const std::vector<std::int32_t> tokens = batch_of_step(options, 1);
  engine.begin_step({1, tokens, 24, 1e-3});
  TERRACE_EXPECT_THROW_WITH(engine.finish_step(), CorruptData, directory.path());
}

}  // namespace
}  // namespace terrace
