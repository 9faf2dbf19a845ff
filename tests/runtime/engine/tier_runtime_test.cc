#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "base/usage_error.h"
#include "parallel/thread_communicator.h"
#include "tests/runtime/engine/tier_fixture.h"

// A trainer with its own units and compute, over a TierRuntime.
namespace terrace {
namespace {

// Compares a run with the plain loop: losses, parameters and the optimizer's slots, bit by bit.
void expect_plain(const ComputeModel& model, const TierRuntimeOptions& options,
                  const std::vector<StepTask>& tasks) {
  const ToyRun run = run_toy(model, options);
  PlainTraining plain(model, tasks, options.optimizer);
  for (std::int64_t step = 1; step <= kToySteps; ++step) {
    const std::vector<ToyInput> inputs = toy_inputs(step, options.placement.micro_batches);
    EXPECT_EQ(run.losses.at(static_cast<std::size_t>(step - 1)),
              plain.step(step, inputs, toy_learning_rate(step)))
        << "step " << step;
  }
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    EXPECT_EQ(run.state.at(3 * u), plain.parameters(u)) << "unit " << u;
    if (model.groups[u].trained_elements() == 0) continue;
    EXPECT_EQ(run.state.at(3 * u + 1), plain.slot(u, 0)) << "unit " << u;
    EXPECT_EQ(run.state.at(3 * u + 2), plain.slot(u, 1)) << "unit " << u;
  }
}

struct Shape {
  const char* name;
  ToyShape shape;
};

class TierRuntimeShapes : public testing::TestWithParam<Shape> {};

TEST_P(TierRuntimeShapes, TrainAsAPlainLoopDoes) {
  const ComputeModel model = toy_model(GetParam().shape);
  for (const std::int32_t micro_batches : {1, 3}) {
    const TierRuntimeOptions options = toy_options(micro_batches);
    expect_plain(model, options, usual_tasks(model, micro_batches));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, TierRuntimeShapes,
    testing::Values(Shape{"head", {}}, Shape{"no_head", {.has_head = false}},
                    Shape{"two_units", {.blocks = 0}},
                    Shape{"two_blocks", {.blocks = 0, .has_head = false}},
                    Shape{"frozen", {.frozen_unit = 2}}, Shape{"frozen_first", {.frozen_unit = 0}},
                    Shape{"frozen_without_head", {.has_head = false, .frozen_unit = 1}}),
    [](const auto& instance) { return instance.param.name; });

TEST(TierRuntime, LearnsWhatItIsTaught) {
  const ComputeModel model = toy_model({});
  const TierRuntimeOptions options = toy_options();
  const TierPlan plan = plan_tiers(model, options);
  ToyTrainer trainer(model);
  SilentLog log;
  TierRuntime runtime(options, plan, trainer, log);
  fill_toy(runtime, model);
  const std::vector<ToyInput> inputs = toy_inputs(1, 2);
  double first = 0;
  double last = 0;
  for (std::int64_t step = 1; step <= 20; ++step) {
    runtime.begin_step(toy_step(step, inputs));
    last = runtime.finish_step().result.loss;
    if (step == 1) first = last;
  }
  EXPECT_LT(last, 0.1 * first);
  runtime.drain();
  const double sum = runtime.evaluate(std::as_bytes(std::span(inputs)));
  runtime.begin_step(toy_step(21, inputs));
  EXPECT_EQ(sum / static_cast<double>(PlainTraining::terms(inputs)),
            runtime.finish_step().result.loss);
}

struct Way {
  const char* name;
  std::function<void(TierRuntimeOptions&)> set;
};

class TierRuntimeWays : public testing::TestWithParam<Way> {
 protected:
  const TemporaryDirectory directory_;
};

// Trains with clipping, which makes updates wait for the norm, and without.
TEST_P(TierRuntimeWays, HaveTheBitsOfTrainingInMemory) {
  for (const bool has_head : {true, false}) {
    const ComputeModel model = toy_model({.has_head = has_head});
    for (const double max_grad_norm : {0.0, 0.05}) {
      TierRuntimeOptions options = toy_options();
      options.optimizer.max_grad_norm = max_grad_norm;
      const ToyRun in_memory = run_toy(model, options);
      if (max_grad_norm > 0) {
        EXPECT_GT(in_memory.norms.front(), max_grad_norm);
      }
      options.nvme.directories = {{directory_.path(), std::nullopt}};
      GetParam().set(options);
      EXPECT_EQ(run_toy(model, options), in_memory) << has_head << " " << max_grad_norm;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, TierRuntimeWays,
    testing::Values(
        Way{"nvme", [](TierRuntimeOptions& o) { put_all(o, true, Tier::kNvme); }},
        Way{"device", [](TierRuntimeOptions& o) { put_all(o, false, Tier::kDevice); }},
        Way{"host_of_device", [](TierRuntimeOptions& o) { put_all(o, false, Tier::kHost); }},
        Way{"nvme_of_device", [](TierRuntimeOptions& o) { put_all(o, false, Tier::kNvme); }},
        Way{"recomputed",
            [](TierRuntimeOptions& o) {
              put_all(o, true, Tier::kNvme);
              o.placement.recompute = true;
            }},
        Way{"layer_major",
            [](TierRuntimeOptions& o) {
              put_all(o, true, Tier::kNvme);
              o.placement.order = MicroBatchOrder::kLayerMajor;
            }},
        Way{"streamed_updates",
            [](TierRuntimeOptions& o) {
              put_all(o, false, Tier::kHost);
              o.placement.streamed_updates = 1;
            }},
        Way{"small_budget",
            [](TierRuntimeOptions& o) {
              o.placement.has_nvme = true;
              o.budgets[static_cast<std::size_t>(Tier::kHost)] = 400 * kKiB;
            }},
        Way{"no_lookahead",
            [](TierRuntimeOptions& o) {
              put_all(o, false, Tier::kNvme);
              o.placement.lookahead = 0;
            }}),
    [](const auto& instance) { return instance.param.name; });

TEST(TierRuntime, ResumesWithTheSameBits) {
  const TemporaryDirectory directory;
  const ComputeModel model = toy_model({});
  TierRuntimeOptions options = toy_options();
  options.nvme.directories = {{directory.path(), std::nullopt}};
  put_all(options, true, Tier::kNvme);
  const ToyRun whole = run_toy(model, options);

  ToyRun run;
  const TierPlan plan = plan_tiers(model, options);
  ToyTrainer trainer(model);
  SilentLog log;
  {
    TierRuntime runtime(options, plan, trainer, log);
    fill_toy(runtime, model);
    train_toy(runtime, options, 1, 2, run);
    run.state = read_toy(runtime, model);
  }
  TierRuntime runtime(options, plan, trainer, log);
  runtime.fill_state(
      [&](StateField field, std::int32_t unit, std::int64_t begin, std::span<float> out) {
        const auto& values =
            run.state.at(3 * static_cast<std::size_t>(unit) + static_cast<std::size_t>(field));
        std::copy_n(values.begin() + begin, out.size(), out.begin());
      });
  train_toy(runtime, options, 3, kToySteps, run);
  run.state = read_toy(runtime, model);
  EXPECT_EQ(run, whole);
}

// A trainer that keeps its activations itself: its units touch only parameters and gradients.
class OwnActivations final : public StepCompute {
 public:
  explicit OwnActivations(const ComputeModel& model) : model_(model) {}
  void run(const KernelContext& /*context*/, const ComputeTask& task,
           const UnitMemory& memory) override {
    if (task.pass == UnitPass::kForward) return;
    const auto* parameters = reinterpret_cast<const float*>(memory.of(Role::kParameters));
    auto* gradient = reinterpret_cast<float*>(memory.of(Role::kGradient));
    EXPECT_EQ(memory.of(Role::kTokens), nullptr);
    const bool adds = memory.gradient_mode == GradientMode::kAccumulate;
    for (std::int64_t i = 0; i < model_.groups[task.unit].padded_elements; ++i) {
      const float value = 0.5F * parameters[i] + 0.25F * static_cast<float>(task.micro_batch);
      gradient[i] = adds ? gradient[i] + value : value;
    }
  }

 private:
  const ComputeModel& model_;
};

TEST(TierRuntime, UnitsNeedNoBoundariesAndNoInput) {
  const TemporaryDirectory directory;
  ComputeModel model;
  model.compute_type = DType::kF32;
  for (int u = 0; u < 3; ++u) {
    model.add({.forward = {{}}, .backward = {{.writes = {{Role::kGradient}}}}},
              {.padded_elements = padded_elements(5000)});
  }
  const auto train = [&](const TierRuntimeOptions& options) {
    OwnActivations compute(model);
    const TierPlan plan = plan_tiers(model, options);
    SilentLog log;
    TierRuntime runtime(options, plan, compute, log);
    fill_toy(runtime, model);
    ToyRun run;
    for (std::int64_t step = 1; step <= 3; ++step) {
      runtime.begin_step({.step = step, .learning_rate = 1e-3});
      const StepResult result = runtime.finish_step().result;
      run.norms.push_back(result.gradient_norm);
      EXPECT_EQ(result.loss, 0);
    }
    runtime.drain();
    run.state = read_toy(runtime, model);
    return run;
  };
  TierRuntimeOptions options = toy_options();
  const ToyRun in_memory = train(options);
  options.nvme.directories = {{directory.path(), std::nullopt}};
  for (const bool unified : {true, false}) {
    put_all(options, unified, Tier::kNvme);
    EXPECT_EQ(train(options), in_memory);
  }
}

// --- schedules from outside ---------------------------------------------------------------------

void expect_plain_everywhere(const ComputeModel& model, TierRuntimeOptions options) {
  const TemporaryDirectory directory;
  options.nvme.directories = {{directory.path(), std::nullopt}};
  expect_plain(model, options, options.schedule);
  for (const bool unified : {true, false}) {
    put_all(options, unified, Tier::kNvme);
    expect_plain(model, options, options.schedule);
    options.placement.recompute = true;
    expect_plain(model, options, options.schedule);
    options.placement.recompute.reset();
  }
}

TEST(TierSchedule, TheUsualOneMayBeGiven) {
  for (const bool has_head : {true, false}) {
    const ComputeModel model = toy_model({.has_head = has_head});
    TierRuntimeOptions options = toy_options(2);
    options.schedule = usual_tasks(model, 2);
    expect_plain_everywhere(model, options);
  }
}

TEST(TierSchedule, LayerMajorWithMicroBatchesBackwards) {
  const ComputeModel model = toy_model({.has_head = false});
  TierRuntimeOptions options = toy_options(3);
  for (std::int32_t u = 0; u < 5; ++u) {
    for (std::int32_t m = 0; m < 3; ++m) options.schedule.push_back({UnitPass::kForward, u, m});
  }
  for (std::int32_t u = 4; u >= 0; --u) {
    for (std::int32_t m = 2; m >= 0; --m) options.schedule.push_back({UnitPass::kBackward, u, m});
  }
  expect_plain_everywhere(model, options);
}

// Block 1 occurs twice in the chain of a micro-batch. Block 2 also occurs before it.
TEST(TierSchedule, AUnitMayBeUsedSeveralTimes) {
  for (const bool has_head : {true, false}) {
    const ComputeModel model = toy_model({.blocks = 2, .has_head = has_head});
    TierRuntimeOptions options = toy_options(2);
    for (std::int32_t m = 0; m < 2; ++m) {
      for (const std::int32_t u : {0, 2, 1, 1, 2, 3}) {
        options.schedule.push_back({UnitPass::kForward, u, m});
      }
      for (const std::int32_t u : {3, 2, 1, 1, 2, 0}) {
        if (u == 3 && has_head) continue;
        options.schedule.push_back({UnitPass::kBackward, u, m});
      }
    }
    expect_plain_everywhere(model, options);
  }
}

TEST(TierSchedule, TasksSayWhichUseOfTheirUnitTheyAre) {
  const ComputeModel model = toy_model({.blocks = 1, .has_head = false});
  TierRuntimeOptions options = toy_options(2);
  options.placement.recompute = true;
  for (std::int32_t m = 0; m < 2; ++m) {
    for (const std::int32_t u : {0, 1, 1, 2})
      options.schedule.push_back({UnitPass::kForward, u, m});
    for (const std::int32_t u : {2, 1, 1, 0}) {
      options.schedule.push_back({UnitPass::kBackward, u, m});
    }
  }
  ToyTrainer trainer(model);
  std::map<UnitPass, std::vector<std::int32_t>> uses;
  trainer.before = [&](const ComputeTask& task) {
    if (task.unit == 1 && task.micro_batch == 1) uses[task.pass].push_back(task.use);
  };
  const TierPlan plan = plan_tiers(model, options);
  SilentLog log;
  TierRuntime runtime(options, plan, trainer, log);
  fill_toy(runtime, model);
  ToyRun run;
  train_toy(runtime, options, 1, 1, run);
  EXPECT_THAT(uses[UnitPass::kForward], testing::ElementsAre(0, 1));
  EXPECT_THAT(uses[UnitPass::kRecompute], testing::ElementsAre(1, 0));
  EXPECT_THAT(uses[UnitPass::kBackward], testing::ElementsAre(1, 0));
}

// The tasks run as in a pipeline of one rank: the second forward runs before the first backward.
TEST(TierSchedule, ForwardsMayRunAhead) {
  const ComputeModel model = toy_model({.blocks = 1, .has_head = false});
  TierRuntimeOptions options = toy_options(2);
  for (std::int32_t m = 0; m < 2; ++m) {
    for (std::int32_t u = 0; u < 3; ++u) options.schedule.push_back({UnitPass::kForward, u, m});
  }
  for (std::int32_t m = 0; m < 2; ++m) {
    for (std::int32_t u = 2; u >= 0; --u) options.schedule.push_back({UnitPass::kBackward, u, m});
  }
  expect_plain_everywhere(model, options);
}

// --- several ranks ------------------------------------------------------------------------------

TEST(TierStages, AreCheckedAgainstEachOther) {
  ComputeModel model = toy_model({});
  model.units.front().kind = UnitKind::kEmbedding;
  model.units.front().backward.clear();
  TierRuntimeOptions options = toy_options(2);
  options.ranks.shape.pipeline = 2;
  const TierPlan plan = plan_tiers(model, options);
  EXPECT_NO_THROW(check_stages(model, options, plan));
  options.placement.micro_batches = 3;
  TERRACE_EXPECT_THROW_WITH(check_stages(model, options, plan), UsageError,
                            "stage 1 sends 3 messages to stage 0, which receives 2");
}

struct RankedTraining {
  std::int32_t stage = 0;
  bool in_memory = true;
  bool has_schedule = false;
};

std::vector<ToyRun> run_ranks(const RankedTraining& training, const std::string& directory) {
  constexpr int kRanks = 2;
  const MeshShape shape{.data = kRanks};
  const ComputeModel model = toy_model({.ranks = kRanks});
  auto worlds = make_thread_communicators(kRanks, "world");
  std::vector<ToyRun> runs(kRanks);
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      const StepCommunicators communicators(*worlds[r], shape);
      TierRuntimeOptions options = toy_options();
      options.optimizer.max_grad_norm = 0.05;
      options.chunk_elements = 2 * kBlockElements;
      options.ranks = communicators.ranks();
      options.zero_stage = training.stage;
      if (training.has_schedule) options.schedule = usual_tasks(model, 2);
      options.nvme.directories = {{directory, std::nullopt}};
      if (!training.in_memory) put_all(options, true, Tier::kNvme);
      runs[r] = run_toy(model, options);
    });
  }
  threads.clear();
  return runs;
}

// Expects every element to be at home on some rank, and to have the value of the whole run there.
// Each rank has half of the slots.
void expect_parts_of(const ToyRun& whole, const std::vector<ToyRun>& parts) {
  constexpr std::size_t kFields = kStateFields.size();
  for (std::size_t list = 0; list < whole.state.size(); ++list) {
    std::vector<float> joined(whole.state[list].size(), kNotHere);
    std::size_t found = 0;
    for (const ToyRun& part : parts) {
      for (std::size_t i = 0; i < joined.size(); ++i) {
        if (part.state[list][i] == kNotHere) continue;
        joined[i] = part.state[list][i];
        ++found;
      }
    }
    EXPECT_EQ(joined, whole.state[list])
        << "field " << list % kFields << " of unit " << list / kFields;
    if (list % kFields != 0) {
      EXPECT_EQ(found, joined.size());
    }
  }
}

TEST(TierRuntimeRanks, EveryStageHasTheSameBits) {
  const TemporaryDirectory directory;
  const std::vector<ToyRun> plain = run_ranks({}, directory.path());
  EXPECT_EQ(plain[0], plain[1]);
  EXPECT_EQ(plain[0].losses.size(), static_cast<std::size_t>(kToySteps));
  for (const std::int32_t stage : {1, 2, 3}) {
    for (const bool has_schedule : {true, false}) {
      for (const bool in_memory : {true, false}) {
        const std::vector<ToyRun> runs =
            run_ranks({stage, in_memory, has_schedule}, directory.path());
        SCOPED_TRACE(std::to_string(stage) + (in_memory ? " in memory" : " on the drive"));
        for (const ToyRun& run : runs) {
          EXPECT_EQ(run.losses, plain[0].losses);
          EXPECT_EQ(run.norms, plain[0].norms);
        }
        expect_parts_of(plain[0], runs);
      }
    }
  }
}

// The exception may have any type. The other ranks wait in a reduction for data that will not come.
TEST(TierRuntimeRanks, WhatTheComputeOfOneThrowsEndsAll) {
  constexpr int kRanks = 2;
  const ComputeModel model = toy_model({.ranks = kRanks});
  auto worlds = make_thread_communicators(kRanks, "world");
  std::vector<std::string> ends(kRanks);
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      const StepCommunicators communicators(*worlds[r], {.data = kRanks});
      TierRuntimeOptions options = toy_options();
      options.chunk_elements = 2 * kBlockElements;
      options.ranks = communicators.ranks();
      options.zero_stage = 2;
      const TierPlan plan = plan_tiers(model, options);
      ToyTrainer trainer(model);
      trainer.before = [r](const ComputeTask& task) {
        if (r == 0 && task.unit == 1) throw NotFinite("of one rank's compute", "");
      };
      SilentLog log;
      TierRuntime runtime(options, plan, trainer, log);
      fill_toy(runtime, model);
      runtime.begin_step(toy_step(1, toy_inputs(1, options.placement.micro_batches, 0), kRanks));
      try {
        runtime.finish_step();
      } catch (const std::exception& error) {
        ends[r] = error.what();
      }
    });
  }
  threads.clear();
  EXPECT_EQ(ends[0], "of one rank's compute");
  EXPECT_NE(ends[1].find("of one rank's compute"), std::string::npos) << ends[1];
}

}  // namespace
}  // namespace terrace
