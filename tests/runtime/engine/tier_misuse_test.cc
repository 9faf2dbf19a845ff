#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "base/usage_error.h"
#include "tests/runtime/engine/tier_fixture.h"

// A caller's mistake throws an error that names the remedy. Whatever the caller's compute throws
// comes out of finish_step().
namespace terrace {
namespace {

// Expects a UsageError whose text has all of `texts`.
template <typename Call>
void expect_usage_error(Call call, std::initializer_list<std::string_view> texts) {
  try {
    call();
    ADD_FAILURE() << "nothing is thrown";
  } catch (const UsageError& error) {
    const std::string told = std::string(error.what()) + " " + error.remedy();
    EXPECT_FALSE(error.remedy().empty()) << told;
    EXPECT_EQ(told.find("--"), std::string::npos) << "a flag: " << told;
    for (const std::string_view text : texts) {
      EXPECT_NE(told.find(text), std::string::npos) << told << "\ndoes not say: " << text;
    }
  }
}

// --- calls --------------------------------------------------------------------------------------

class TierCalls : public testing::Test {
 protected:
  void begin(std::int64_t step) { runtime_.begin_step(toy_step(step, inputs_)); }

  const ComputeModel model_ = toy_model({});
  const TierRuntimeOptions options_ = toy_options();
  const TierPlan plan_ = plan_tiers(model_, options_);
  const std::vector<ToyInput> inputs_ = toy_inputs(1, 2);
  ToyTrainer trainer_{model_};
  SilentLog log_;
  TierRuntime runtime_{options_, plan_, trainer_, log_};
};

TEST_F(TierCalls, StateComesFirst) {
  std::vector<float> out(1);
  expect_usage_error([&] { begin(1); }, {"begin_step()", "no state", "fill_state()"});
  expect_usage_error([&] { runtime_.evaluate(std::as_bytes(std::span(inputs_))); },
                     {"evaluate()", "fill_state()"});
  expect_usage_error([&] { runtime_.read_state(StateField::kMaster, 0, 0, out); },
                     {"read_state()", "fill_state()"});
}

TEST_F(TierCalls, TwoStepsAtMostAreUnfinished) {
  fill_toy(runtime_, model_);
  begin(1);
  begin(2);
  expect_usage_error([&] { begin(3); }, {"two steps are unfinished", "finish_step()"});
  runtime_.finish_step();
  begin(3);
  runtime_.finish_step();
  runtime_.finish_step();
  expect_usage_error([&] { runtime_.finish_step(); }, {"no step is unfinished", "begin_step()"});
}

TEST_F(TierCalls, StepsHaveAnOrder) {
  fill_toy(runtime_, model_);
  expect_usage_error([&] { begin(0); }, {"the first step is 0", "from 1"});
  begin(5);  // as after a checkpoint
  expect_usage_error([&] { begin(5); }, {"step 5 does not follow step 5"});
  expect_usage_error([&] { begin(7); }, {"step 7 does not follow step 5"});
  begin(6);
}

TEST_F(TierCalls, AnInputHasItsSize) {
  fill_toy(runtime_, model_);
  const auto bytes = std::as_bytes(std::span(inputs_));
  for (const auto input : {bytes.first(0), bytes.first(bytes.size() - 1)}) {
    expect_usage_error([&] { runtime_.begin_step({.step = 1, .input = input}); },
                       {"begin_step()", "micro-batches"});
    expect_usage_error([&] { runtime_.evaluate(input); }, {"evaluate()", "micro-batches"});
  }
}

TEST_F(TierCalls, StateIsThereWhenDrained) {
  fill_toy(runtime_, model_);
  std::vector<float> out(1);
  const auto expect_all = [&](std::string_view remedy) {
    expect_usage_error([&] { fill_toy(runtime_, model_); }, {"fill_state()", remedy});
    expect_usage_error([&] { runtime_.state(); }, {"state()", remedy});
    expect_usage_error([&] { runtime_.read_state(StateField::kMaster, 0, 0, out); },
                       {"read_state()", remedy});
    expect_usage_error([&] { runtime_.evaluate(std::as_bytes(std::span(inputs_))); },
                       {"evaluate()", remedy});
    expect_usage_error([&] { runtime_.loss_scale(); }, {"loss_scale()", remedy});
  };
  begin(1);
  expect_all("finish_step()");
  expect_usage_error([&] { runtime_.drain(); }, {"drain()", "finish_step()"});
  runtime_.finish_step();
  expect_all("drain()");
  EXPECT_NE(runtime_.drain(), nullptr);
  EXPECT_EQ(runtime_.drain(), nullptr);
  runtime_.read_state(StateField::kMaster, 0, 0, out);
}

TEST_F(TierCalls, WhatIsReadIsThere) {
  fill_toy(runtime_, model_);
  std::vector<float> out(2);
  const auto read = [&](std::int32_t group, std::int64_t begin) {
    runtime_.read_state(StateField::kSlot1, group, begin, out);
  };
  const std::int64_t last = model_.groups[0].padded_elements - 2;
  read(0, last);
  expect_usage_error([&] { read(0, last + 1); }, {"elements", "padded_elements"});
  expect_usage_error([&] { read(0, -1); }, {"elements"});
  expect_usage_error([&] { read(5, 0); }, {"group 5 of 5"});
  expect_usage_error([&] { read(-1, 0); }, {"group -1"});
}

TEST_F(TierCalls, SomeCallsComeBeforeTheFirstStep) {
  fill_toy(runtime_, model_);
  const std::vector<std::byte> constants(8);
  expect_usage_error([&] { runtime_.set_constants(constants); }, {"constants_bytes"});
  begin(1);
  expect_usage_error([&] { runtime_.set_constants({}); }, {"set_constants()", "before"});
  expect_usage_error([&] { runtime_.set_loss_scale({}); }, {"set_loss_scale()", "before"});
}

TEST(TierMisuse, WhatIsNotPlannedIsNotEvaluated) {
  const ComputeModel model = toy_model({});
  TierRuntimeOptions options = toy_options();
  options.evaluates = false;
  const TierPlan plan = plan_tiers(model, options);
  ToyTrainer trainer(model);
  SilentLog log;
  TierRuntime runtime(options, plan, trainer, log);
  fill_toy(runtime, model);
  const std::vector<ToyInput> inputs = toy_inputs(1, 2);
  expect_usage_error([&] { runtime.evaluate(std::as_bytes(std::span(inputs))); }, {"evaluates"});
}

// --- compute that throws ------------------------------------------------------------------------

// A compute for units that touch nothing but their parameters.
class NoCompute final : public StepCompute {
 public:
  void run(const KernelContext&, const ComputeTask&, const UnitMemory&) override {}
};

TEST(TierMisuse, APlanWithoutTrainingOnlyEvaluates) {
  TierRuntimeOptions options = toy_options();
  options.trains = false;
  expect_usage_error([&] { plan_tiers(toy_model({}), options); },
                     {"without training", "count all elements as frozen"});
  ComputeModel model;
  for (int i = 0; i < 2; ++i) {
    model.add({.forward = {UnitStep{}}},
              {.padded_elements = kBlockElements, .frozen_elements = kBlockElements});
  }
  const TierPlan plan = plan_tiers(model, options);
  NoCompute compute;
  SilentLog log;
  TierRuntime runtime(options, plan, compute, log);
  runtime.fill_state([](StateField, std::int32_t, std::int64_t, std::span<float> out) {
    std::ranges::fill(out, 1.0F);
  });
  EXPECT_EQ(runtime.evaluate({}), 0.0);
  expect_usage_error([&] { runtime.begin_step({.step = 1}); }, {"begin_step()", "no training"});
}

TEST_F(TierCalls, WhatTheComputeThrowsComesOutOfFinishStep) {
  fill_toy(runtime_, model_);
  std::atomic<int> backwards = 0;
  trainer_.before = [&](const ComputeTask& task) {
    const bool is_backward = task.unit == 2 && task.pass == UnitPass::kBackward;
    if (is_backward && ++backwards == 4) throw std::runtime_error("the compute's own words");
  };
  begin(1);
  begin(2);
  runtime_.finish_step();
  TERRACE_EXPECT_THROW_WITH(runtime_.finish_step(), std::runtime_error, "the compute's own words");
  TERRACE_EXPECT_THROW_WITH(runtime_.rethrow_failure(), std::runtime_error, "own words");
  expect_usage_error([&] { begin(3); }, {"has failed", "a new one"});
  expect_usage_error([&] { runtime_.drain(); }, {"has failed"});
  expect_usage_error([&] { runtime_.state(); }, {"has failed"});
}

TEST_F(TierCalls, AFailedStepDoesNotHoldTheEnd) {
  fill_toy(runtime_, model_);
  trainer_.before = [](const ComputeTask&) { throw std::runtime_error("at once"); };
  begin(1);
  begin(2);
}

TEST_F(TierCalls, AStepThatIsNoNumberFails) {
  fill_toy(runtime_, model_);
  std::vector<ToyInput> inputs = inputs_;
  inputs[1].y[0] = std::numeric_limits<float>::infinity();
  runtime_.begin_step(toy_step(1, inputs));
  TERRACE_EXPECT_THROW_WITH(runtime_.finish_step(), NotFinite, "lower learning_rate");
}

TEST_F(TierCalls, APlanOfOtherOptionsIsRefused) {
  TierRuntimeOptions other = toy_options();
  other.optimizer.max_grad_norm = other.optimizer.max_grad_norm > 0 ? 0 : 1;
  const TierPlan plan = plan_tiers(model_, toy_options());
  SilentLog log;
  expect_usage_error([&] { TierRuntime(other, plan, trainer_, log); },
                     {"the plan was made with other options"});
}

TEST_F(TierCalls, RanksWithoutCommunicatorsAreRefused) {
  TierRuntimeOptions options = toy_options();
  options.ranks.shape.data = 2;
  options.chunk_elements = 2 * kBlockElements;
  const ComputeModel model = toy_model({.ranks = 2});
  const TierPlan plan = plan_tiers(model, options);
  SilentLog log;
  expect_usage_error([&] { TierRuntime(options, plan, trainer_, log); },
                     {"no communicator for them is given"});
}

// --- descriptions -------------------------------------------------------------------------------

struct Description {
  const char* name;
  std::function<void(ComputeModel&, TierRuntimeOptions&)> spoil;
  std::string_view told;
};

class TierDescriptions : public testing::TestWithParam<Description> {};

TEST_P(TierDescriptions, AreRefusedByName) {
  ComputeModel model = toy_model({});
  TierRuntimeOptions options = toy_options();
  GetParam().spoil(model, options);
  expect_usage_error([&] { plan_tiers(model, options); }, {GetParam().told});
}

INSTANTIATE_TEST_SUITE_P(
    Units, TierDescriptions,
    testing::Values(
        Description{"no_units", [](auto& m, auto&) { m.units.clear(); }, "no units are described"},
        Description{"size", [](auto& m, auto&) { m.groups[1].padded_elements += 1; },
                    "unit 1 has padded_elements 8193"},
        Description{"size_of_ranks", [](auto&, auto& o) { o.ranks.shape.data = 3; },
                    "not a multiple of 12288"},
        Description{"frozen",
                    [](auto& m, auto&) { m.groups[1].frozen_elements = 4 * kBlockElements; },
                    "more frozen elements"},
        Description{"decayed", [](auto& m, auto&) { m.groups[1].decayed_elements = 8193; },
                    "more decayed elements"},
        Description{"head", [](auto& m, auto&) { m.units[1].kind = UnitKind::kHead; },
                    "unit 1 is a head but not the last"},
        Description{"embedding", [](auto& m, auto&) { m.units[1].kind = UnitKind::kEmbedding; },
                    "unit 1 is an embedding but not the first"},
        Description{"embedding_backward",
                    [](auto& m, auto&) { m.units[0].kind = UnitKind::kEmbedding; },
                    "an embedding whose backward has steps"},
        Description{"no_forward", [](auto& m, auto&) { m.units[2].forward.clear(); },
                    "unit 2 has no forward"},
        Description{"no_backward", [](auto& m, auto&) { m.units[2].backward.clear(); },
                    "unit 2 trains, but its backward does not write"},
        Description{"all_frozen",
                    [](auto& m, auto&) {
                      for (ParameterGroup& group : m.groups) {
                        group.frozen_elements = group.padded_elements;
                        group.decayed_elements = 0;
                      }
                      for (UnitModel& unit : m.units) {
                        for (UnitStep& step : unit.backward) {
                          std::erase(step.writes, UnitAccess{Role::kGradient});
                        }
                      }
                    },
                    "no unit trains"},
        Description{"no_input", [](auto& m, auto&) { m.tokens_bytes = 0; }, "tokens_bytes"},
        Description{"no_hidden", [](auto& m, auto&) { m.hidden_bytes = 0; }, "hidden_bytes"},
        Description{"no_saved", [](auto& m, auto&) { m.units[1].saved_bytes = 0; }, "saved_bytes"},
        Description{"between", [](auto& m, auto&) { m.units[1].forward[0].reads.push_back({}); },
                    "buffer 0 between its steps, but there are only 0"},
        Description{
            "role",
            [](auto& m, auto&) { m.units[1].forward[0].reads.push_back({Role::kParameters}); },
            "that the steps of a unit cannot use"},
        Description{"exchange",
                    [](auto& m, auto&) { m.units[1].forward[0].kind = UnitStep::Kind::kSum; },
                    "an exchange"},
        Description{"input_of_the_first",
                    [](auto& m, auto&) { m.units[0].forward[0].reads = {{Role::kHidden}}; },
                    "the forward of unit 0, micro-batch 0 reads hidden states"},
        Description{"gradient_of_nothing",
                    [](auto& m, auto&) {
                      m.units[0].backward[0].writes.push_back({Role::kHiddenGradientOut});
                    },
                    "the backward of unit 0, micro-batch 0 writes the gradient of its input"},
        Description{"broken_chain",
                    [](auto& m, auto&) { m.units[2].backward[0].writes = {{Role::kGradient}}; },
                    "the backward of unit 1, micro-batch 0 reads the gradient of its output"}),
    [](const auto& instance) { return instance.param.name; });

INSTANTIATE_TEST_SUITE_P(
    GroupsAndInputs, TierDescriptions,
    testing::Values(
        Description{"unknown_group", [](auto& m, auto&) { m.units[2].groups.push_back(77); },
                    "unit 2 uses group 77, but only 5 are described"},
        Description{"borrowed_first",
                    [](auto& m, auto&) { m.units[2].groups.insert(m.units[2].groups.begin(), 0); },
                    "unit 2 has a group of its own behind another unit's"},
        Description{"group_without_owner", [](auto& m, auto&) { m.groups[1].unit = 3; },
                    "unit 1 uses group 1 of unit 3, which is behind it"},
        Description{"group_twice", [](auto& m, auto&) { m.units[2].groups.push_back(2); },
                    "unit 2 names a group twice"},
        Description{"input_twice", [](auto& m, auto&) { m.units[3].inputs = {1, 1}; },
                    "unit 3 names an input twice"},
        Description{"gradient_in_two_parts",
                    [](auto& m, auto&) {
                      m.units[1].backward.push_back(m.units[1].backward[0]);
                      m.units[1].backward[1].begins_part = true;
                    },
                    "unit 1 writes a gradient in two parts of its backward"},
        Description{"numbered_tokens",
                    [](auto& m, auto&) { m.units[0].forward[0].reads[0].number = 1; },
                    "unit 0 numbers a buffer of which there is one"},
        Description{"parameters_of_no_group",
                    [](auto& m, auto&) { m.units[1].forward[0].groups = {1}; },
                    "unit 1 reads parameters of the group with index 1, but it uses only 1"},
        Description{
            "gradient_of_no_group",
            [](auto& m, auto&) { m.units[1].backward[0].writes.push_back({Role::kGradient, 1}); },
            "unit 1 writes the gradient of the group with index 1, but it uses only 1"},
        Description{"input_behind", [](auto& m, auto&) { m.units[1].inputs = {2}; },
                    "unit 1 reads the output of unit 2, which is not before it"},
        Description{
            "unnamed_input",
            [](auto& m, auto&) { m.units[1].forward[0].reads.push_back({Role::kHidden, 1}); },
            "unit 1 uses its hidden input 1, which it does not name"}),
    [](const auto& instance) { return instance.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Roles, TierDescriptions,
    testing::Values(
        Description{"part_of_a_buffer",
                    [](auto& m, auto&) { m.units[1].backward[0].writes[0].size_bytes = 4; },
                    "names part of a buffer in a step that computes"},
        Description{
            "output_in_backward",
            [](auto& m, auto&) { m.units[1].backward[0].reads.push_back({Role::kHiddenOut}); },
            "unit 1 lists its output outside"},
        Description{"saved_by_nobody",
                    [](auto& m, auto&) {
                      m.units[1].saved_bytes = 64;
                      m.units[1].backward[0].reads.push_back({Role::kSaved});
                      for (UnitStep& step : m.units[1].forward) {
                        std::erase(step.writes, UnitAccess{Role::kSaved});
                      }
                    },
                    "reads saved activations in its backward, but its forward writes none"},
        Description{
            "gradient_that_is_read",
            [](auto& m, auto&) { m.units[1].backward[0].reads.push_back({Role::kGradient}); },
            "unit 1 lists its gradient outside"},
        Description{"written_input",
                    [](auto& m, auto&) { m.units[0].forward[0].writes.push_back({Role::kTokens}); },
                    "unit 0 writes something that it may only read"},
        Description{
            "loss_in_backward",
            [](auto& m, auto&) { m.units[1].backward[0].writes.push_back({Role::kLosses}); },
            "unit 1 lists its loss outside"},
        Description{"loss_of_a_head_in_training_alone",
                    [](auto& m, auto&) {
                      for (UnitStep& step : m.units.back().forward) {
                        std::erase(step.writes, UnitAccess{Role::kLosses});
                      }
                    },
                    "a head that writes a loss in only one of its passes"},
        Description{"second_loss",
                    [](auto& m, auto&) { m.units[1].forward[0].writes.push_back({Role::kLosses}); },
                    "writes the loss of its micro-batch a second time"},
        Description{"empty_between",
                    [](auto& m, auto&) { m.units[1].between.push_back({"nothing", 0}); },
                    "a buffer of no bytes between its steps"}),
    [](const auto& instance) { return instance.param.name; });

INSTANTIATE_TEST_SUITE_P(Islands, TierDescriptions,
                         testing::Values(Description{"unequal_islands",
                                                     [](auto&, auto& o) {
                                                       o.ranks.shape = {.data = 4, .islands = 3};
                                                     },
                                                     "3 islands of 4 data-parallel ranks"},
                                         Description{"islands_of_whole_parameters",
                                                     [](auto&, auto& o) {
                                                       o.ranks.shape = {.data = 4, .islands = 2};
                                                       o.zero_stage = 2;
                                                     },
                                                     "2 islands, but zero_stage is 2"},
                                         Description{"islands_of_one_rank",
                                                     [](auto&, auto& o) {
                                                       o.ranks.shape = {.data = 4, .islands = 4};
                                                       o.zero_stage = 3;
                                                     },
                                                     "4 islands of one rank"},
                                         Description{"islands_that_reduce_micro_batches",
                                                     [](auto&, auto& o) {
                                                       o.ranks.shape = {.data = 4, .islands = 2};
                                                       o.zero_stage = 3;
                                                       o.zero_partition = ZeroPartition::kHsdp;
                                                       o.placement.reduces_micro_batches = true;
                                                     },
                                                     "zero_partition is kHsdp"}),
                         [](const auto& instance) { return instance.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Options, TierDescriptions,
    testing::Values(
        Description{"pipeline", [](auto&, auto& o) { o.ranks.shape.pipeline = 2; },
                    "pipeline stages need an embedding"},
        Description{"pipeline_of_a_schedule",
                    [](auto& m, auto& o) {
                      o.schedule = usual_tasks(m, 2);
                      o.ranks.shape.pipeline = 2;
                    },
                    "must cover a whole model"},
        Description{"compute_type", [](auto& m, auto&) { m.compute_type = DType::kI32; },
                    "compute_type is"},
        Description{"fp16", [](auto& m, auto&) { m.compute_type = DType::kF16; },
                    "fp16 on the CPU device"},
        Description{"gradient_type", [](auto&, auto& o) { o.gradient_type = DType::kF16; },
                    "gradient_type is"},
        Description{"position", [](auto&, auto& o) { o.ranks.position.data = 1; },
                    "outside the shape of the mesh"},
        Description{"no_ranks", [](auto&, auto& o) { o.ranks.shape.data = 0; },
                    "outside the shape of the mesh"},
        Description{"zero_stage", [](auto&, auto& o) { o.zero_stage = 4; }, "zero_stage is 4"},
        Description{"tensor_ranks", [](auto&, auto& o) { o.ranks.shape.tensor = 2; },
                    "2 tensor-parallel ranks, but the units are shared by 1"},
        Description{"threads", [](auto&, auto& o) { o.update_threads = 0; }, "0 for updates"},
        Description{"no_directory",
                    [](auto&, auto& o) { o.placement.homes[StateClass::kOptimizer] = Tier::kNvme; },
                    "no directory is named"},
        Description{"order_of_a_schedule",
                    [](auto& m, auto& o) {
                      o.schedule = usual_tasks(m, 2);
                      o.placement.order = MicroBatchOrder::kLayerMajor;
                    },
                    "an order of micro-batches"},
        Description{"reduced_in_a_schedule",
                    [](auto& m, auto& o) {
                      o.schedule = usual_tasks(m, 2);
                      o.placement.reduces_micro_batches = true;
                    },
                    "reduced after every micro-batch"},
        Description{"reduced_layer_major",
                    [](auto&, auto& o) {
                      o.placement.order = MicroBatchOrder::kLayerMajor;
                      o.placement.reduces_micro_batches = true;
                    },
                    "the order is layer-major"},
        Description{"streamed", [](auto&, auto& o) { o.placement.streamed_updates = 1; },
                    "updates are streamed"},
        Description{"no_micro_batches", [](auto&, auto& o) { o.placement.micro_batches = 0; },
                    "0 micro-batches"}),
    [](const auto& instance) { return instance.param.name; });

// --- schedules ----------------------------------------------------------------------------------

struct Schedule {
  const char* name;
  std::function<void(std::vector<StepTask>&)> spoil;
  std::string_view told;
};

class TierSchedules : public testing::TestWithParam<Schedule> {};

// Five units, the last of which is a head, and two micro-batches of 9 tasks each.
TEST_P(TierSchedules, AreRefusedByTheTask) {
  const ComputeModel model = toy_model({});
  TierRuntimeOptions options = toy_options();
  options.schedule = usual_tasks(model, 2);
  GetParam().spoil(options.schedule);
  expect_usage_error([&] { plan_tiers(model, options); }, {GetParam().told});
}

using Tasks = std::vector<StepTask>;
INSTANTIATE_TEST_SUITE_P(
    All, TierSchedules,
    testing::Values(
        Schedule{"unit", [](Tasks& t) { t[0].unit = 5; },
                 "the forward of unit 5, micro-batch 0 belongs to a unit that is not described"},
        Schedule{"negative_unit", [](Tasks& t) { t[0].unit = -1; }, "the forward of unit -1"},
        Schedule{"micro_batch", [](Tasks& t) { t[0].micro_batch = 2; },
                 "the forward of unit 0, micro-batch 2 belongs to a micro-batch that the step"},
        Schedule{"recompute", [](Tasks& t) { t[1].pass = UnitPass::kRecompute; },
                 "is a recomputation"},
        Schedule{"backward_first", [](Tasks& t) { t.insert(t.begin(), t[8]); },
                 "the backward of unit 0, micro-batch 0 has no forward"},
        Schedule{"backward_twice", [](Tasks& t) { t.push_back(t[8]); },
                 "the backward of unit 0, micro-batch 0 has no forward"},
        Schedule{"backward_of_a_head",
                 [](Tasks& t) { t.insert(t.begin() + 5, StepTask{UnitPass::kBackward, 4, 0}); },
                 "the backward of unit 4, micro-batch 0 is part of its forward"},
        Schedule{"no_backward", [](Tasks& t) { t.pop_back(); },
                 "the forward of unit 0, micro-batch 1 has no backward"},
        Schedule{"never_a_backward",
                 [](Tasks& t) {
                   std::erase_if(t, [](const StepTask& task) {
                     return task.unit == 0 && task.pass == UnitPass::kBackward;
                   });
                 },
                 "unit 0 trains, but nothing writes its gradient"},
        Schedule{"no_loss",
                 [](Tasks& t) { std::erase_if(t, [](auto& task) { return task.micro_batch; }); },
                 "the loss of micro-batch 1"},
        Schedule{"backwards_in_another_order", [](Tasks& t) { std::swap(t[5], t[6]); },
                 "the backward of unit 2, micro-batch 0 reads the gradient of its output"},
        Schedule{"forwards_in_another_order", [](Tasks& t) { std::swap(t[0], t[1]); },
                 "the forward of unit 1, micro-batch 0 reads hidden states"}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace terrace
