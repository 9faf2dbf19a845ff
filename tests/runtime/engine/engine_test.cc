#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/runtime/engine/engine_fixture.h"

// The engine on real lanes, small enough for the sanitizers;
// tests/runtime/engine/engine_bits_test.cc has the whole matrix.
namespace terrace {
namespace {

ModelRuntimeOptions everything_away(const TemporaryDirectory& directory) {
  ModelConfig model = tiny_model("llama", true, true);
  model = with_shape(model, {.layers = 2});
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

// In addition to the budgets, a plan counts the buffers through which state goes to its homes.
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

// Reads all fields of all units, in this order of units.
std::vector<float> read_units(TrainingState& state, std::span<const std::int32_t> order,
                              FunctionRef<void(std::int32_t unit)> unit_read) {
  std::vector<float> all;
  for (const std::int32_t index : order) {
    const UnitLayout& unit = state.layout().at(static_cast<std::size_t>(index));
    for (const StateField field : kStateFields) {
      std::vector<float> values(static_cast<std::size_t>(unit.elements));
      state.read(field, index, 0, values);
      all.insert(all.end(), values.begin(), values.end());
    }
    unit_read(index);
  }
  return all;
}

// The reader is slower than the steps. A step waits for it before it changes state that is still to
// be read.
void expect_state_reads_beside_steps(const ModelRuntimeOptions& options) {
  const TrainedRun undisturbed = train_tiny(options, 5);
  const TierPlan plan = plan_model(options);
  const std::vector<std::int32_t> order = order_of_changes(plan.training.program);
  ASSERT_EQ(order.size(), static_cast<std::size_t>(plan.training.program.units));
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  engine.fill_state(RandomState(1234));
  TrainedRun run;
  train_steps(engine, options, 1, 2, run);
  TrainingState& state = engine.state();
  const std::vector<float> expected = read_units(state, order, [](std::int32_t) {});
  engine.home_gate().close();
  std::vector<float> got;
  {
    const std::jthread reader([&] {
      got = read_units(state, order, [&](std::int32_t unit) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        engine.home_gate().open(unit);
      });
    });
    train_steps(engine, options, 3, 5, run);
  }
  EXPECT_EQ(got, expected);
  EXPECT_EQ(run.curve, undisturbed.curve);
  EXPECT_NE(read_units(state, order, [](std::int32_t) {}), expected);
}

TEST(ModelRuntime, StateIsReadBesideTheStepsThatChangeIt) {
  const TemporaryDirectory directory;
  const ModelRuntimeOptions away = everything_away(directory);
  ModelRuntimeOptions in_memory = away;
  in_memory.placement.unified = true;
  in_memory.placement.homes.fill(Tier::kHost);
  in_memory.placement.has_nvme = false;
  for (ModelRuntimeOptions options : {away, in_memory}) {
    for (const double norm : {1.6, 0.0}) {  // updates under the next step, and under the backward
      SCOPED_TRACE(norm);
      options.optimizer.max_grad_norm = norm;
      expect_state_reads_beside_steps(options);
    }
  }
}

}  // namespace
}  // namespace terrace
