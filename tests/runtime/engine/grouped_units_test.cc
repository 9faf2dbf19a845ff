// Units that no decoder has, made from their descriptions alone (grouped_trainer.h). Wherever their
// state lives and however a step is ordered, the bits are those of training in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>

#include "parallel/thread_communicator.h"
#include "runtime/step/verify.h"
#include "tests/runtime/engine/grouped_trainer.h"
#include "tests/runtime/engine/tier_fixture.h"

namespace terrace {
namespace {

using ::testing::IsEmpty;

TierRuntimeOptions grouped_options(std::int32_t micro_batches = 2) {
  TierRuntimeOptions options = toy_options(micro_batches);
  add_second_rule(options);
  return options;
}

// Reads the state by group. Fields that a group's rule does not keep, and elements of other ranks,
// are marked.
std::vector<std::vector<float>> read_groups(TierRuntime& runtime, const ComputeModel& model) {
  std::vector<std::vector<float>> state;
  for (std::int32_t g = 0; g < kGroups; ++g) {
    for (const StateField field : kStateFields) {
      const auto size = static_cast<std::size_t>(model.groups.at(g).padded_elements);
      std::vector<float>& values = state.emplace_back(size, kNotHere);
      for (std::int64_t at = 0; at < std::ssize(values); at += kBlockElements) {
        const auto block = std::span(values).subspan(static_cast<std::size_t>(at), kBlockElements);
        try {
          runtime.read_state(field, g, at, block);
        } catch (const UsageError&) {
        }
      }
    }
  }
  return state;
}

void fill_groups(TierRuntime& runtime) {
  runtime.fill_state(
      [](StateField field, std::int32_t group, std::int64_t begin, std::span<float> out) {
        for (std::size_t i = 0; i < out.size(); ++i) {
          out[i] = field == StateField::kMaster
                       ? grouped_parameter(group, begin + static_cast<std::int64_t>(i))
                       : 0.0F;
        }
      });
}

ToyRun run_grouped(const ComputeModel& model, const TierRuntimeOptions& options) {
  const TierPlan plan = plan_tiers(model, options);
  EXPECT_THAT(verify(plan.training.program), IsEmpty());
  GroupedTrainer trainer(model);
  SilentLog log;
  TierRuntime runtime(options, plan, trainer, log);
  fill_groups(runtime);
  ToyRun run;
  train_toy(runtime, options, 1, kToySteps, run);
  run.state = read_groups(runtime, model);
  return run;
}

// The same training without a runtime: everything in vectors, each gradient complete before it is
// added, no clipping.
class PlainGroups {
 public:
  PlainGroups(const ComputeModel& model, const OptimizerOptions& optimizer)
      : model_(model), optimizer_(optimizer), trainer_(model) {
    for (std::int32_t g = 0; g < kGroups; ++g) {
      Group& group = groups_.emplace_back();
      for (std::int64_t i = 0; i < model.groups.at(g).padded_elements; ++i) {
        group.master.push_back(grouped_parameter(g, i));
        group.narrow.push_back(to_bf16_ties_away(group.master.back()));
      }
      group.gradient.resize(group.master.size());
      for (auto& slot : group.slots) slot.resize(group.master.size());
    }
  }

  // Takes a step and returns its loss. The first unit is a block.
  double step(std::int64_t step, std::vector<ToyInput> inputs, double learning_rate) {
    scale_ = 1.0F / static_cast<float>(PlainTraining::terms(inputs));
    for (Group& group : groups_) group.has_gradient = false;
    double sum = 0;
    for (ToyInput& input : inputs) {
      tokens_ = reinterpret_cast<std::byte*>(&input);
      for (const std::int32_t unit : {0, 1, 2, 3}) pass(unit, UnitPass::kForward);
      for (ToyMatrix& gradient : hidden_gradients_) gradient = {};
      for (const std::int32_t unit : {4, 3, 2, 1, 0}) pass(unit, UnitPass::kBackward);
      sum += loss_;
    }
    for (std::int32_t g = 0; g < kGroups; ++g) update(g, step, learning_rate);
    return sum / static_cast<double>(PlainTraining::terms(inputs));
  }

  const std::vector<float>& master(std::int32_t group) const { return groups_.at(group).master; }

 private:
  struct Group {
    std::vector<float> master;
    std::vector<Bf16> narrow;
    std::vector<float> gradient;
    std::array<std::vector<float>, kMostSlots> slots;
    bool has_gradient = false;
  };

  static std::byte* bytes(auto& values) { return reinterpret_cast<std::byte*>(values.data()); }

  void pass(std::int32_t unit, UnitPass pass) {
    const UnitModel& of = model_.units.at(unit);
    const bool is_backward = pass == UnitPass::kBackward;
    const auto& steps = is_backward ? of.backward : of.forward;
    std::array<std::byte*, 4> between{};
    for (std::size_t b = 0; b < between.size(); ++b) between[b] = bytes(between_[b]);
    for (std::size_t s = 0; s < steps.size(); ++s) {
      std::vector<GroupMemory> groups;
      for (std::int32_t index = 0; index < std::ssize(of.groups); ++index) {
        const bool writes = UnitModel::writes_gradient({steps[s]}, index);
        Group& group = groups_.at(of.groups[index]);
        GroupMemory& memory = groups.emplace_back();
        memory.parameters = of.groups[index] == kD ? bytes(group.narrow) : bytes(group.master);
        if (!writes) continue;
        memory.gradient = bytes(group.gradient);
        memory.gradient_mode =
            group.has_gradient ? GradientMode::kAccumulate : GradientMode::kAssign;
        group.has_gradient = true;
      }
      std::vector<InputMemory> inputs;
      const std::vector<std::int32_t> read =
          of.inputs.empty() && unit > 0 ? std::vector{unit - 1} : of.inputs;
      for (const std::int32_t input : read) {
        // The gradients begin with zeros, and 0 + g is g.
        inputs.push_back({bytes(hidden_.at(input)), bytes(hidden_gradients_.at(input)),
                          GradientMode::kAccumulate});
      }
      UnitMemory memory;
      memory.groups = groups;
      memory.inputs = inputs;
      memory.between = between;
      memory.gradient_scale = scale_;
      memory.of(Role::kTokens) = tokens_;
      memory.of(Role::kHiddenOut) = bytes(hidden_.at(unit));
      memory.of(Role::kHiddenGradient) = bytes(hidden_gradients_.at(unit));
      memory.of(Role::kSaved) = bytes(saved_);
      memory.of(Role::kLosses) = reinterpret_cast<std::byte*>(&loss_);
      trainer_.run({}, {.unit = unit, .pass = pass, .step = static_cast<std::int32_t>(s)}, memory);
    }
  }

  void update(std::int32_t g, std::int64_t step, double learning_rate) {
    Group& group = groups_.at(g);
    const ParameterGroup& of = model_.groups.at(g);
    const FurtherRule rule = optimizer_.rule_of(of.rule);
    StepScalars scalars;
    scalars.step = static_cast<std::uint32_t>(step);
    scalars.learning_rate = static_cast<float>(learning_rate);
    scalars.of_rule = rule.rule->step_scalars(rule.numbers, step, learning_rate);
    ParameterUpdate update;
    update.gradient = view(std::span(group.gradient));
    update.master = view(std::span(group.master));
    update.parameter = update.master;
    if (of.type == DType::kBF16) {
      update.parameter = view(bytes(group.narrow), DType::kBF16, std::ssize(group.narrow));
    }
    for (std::size_t s = 0; s < rule.rule->slots.size(); ++s) {
      update.slots.at(s) = view(std::span(group.slots.at(s)));
    }
    update.options = rule.numbers;
    update.decayed_elements = of.decayed_elements;
    update.scalars = &scalars;
    rule.rule->reference(update);
  }

  const ComputeModel& model_;
  const OptimizerOptions optimizer_;
  GroupedTrainer trainer_;
  std::vector<Group> groups_;
  std::byte* tokens_ = nullptr;
  std::array<ToyMatrix, 5> hidden_{};
  std::array<ToyMatrix, 5> hidden_gradients_{};
  std::array<ToyMatrix, 2> saved_{};
  std::array<ToyMatrix, 4> between_{};
  double loss_ = 0;
  float scale_ = 1;
};

// The gradient of the first unit's parameters has two writers in each micro-batch, so its bits
// depend on the order of micro-batches.
TierRuntimeOptions in_micro_batch_order(TierRuntimeOptions options) {
  options.placement.order = MicroBatchOrder::kMicroBatchMajor;
  return options;
}

TEST(GroupedUnits, TrainAsAPlainLoopDoes) {
  const ComputeModel model = grouped_model(1, UnitKind::kBlock);
  TierRuntimeOptions options = in_micro_batch_order(grouped_options(3));
  options.optimizer.further_rules.front().slot_form = SlotForm::kFp32;  // a plain loop has no other
  const ToyRun run = run_grouped(model, options);
  PlainGroups plain(model, options.optimizer);
  for (std::int64_t step = 1; step <= kToySteps; ++step) {
    EXPECT_EQ(run.losses.at(static_cast<std::size_t>(step - 1)),
              plain.step(step, toy_inputs(step, 3), toy_learning_rate(step)))
        << "step " << step;
  }
  for (std::int32_t g = 0; g < kGroups; ++g) {
    EXPECT_EQ(run.state.at(static_cast<std::size_t>(g) * kStateFields.size()), plain.master(g))
        << "group " << g;
  }
}

TEST(GroupedUnits, TwoWritersOfAGradientHaveTheSameBitsInEveryTier) {
  const TemporaryDirectory directory;
  const ComputeModel model = grouped_model(1, UnitKind::kBlock);
  TierRuntimeOptions options = in_micro_batch_order(grouped_options(3));
  options.nvme.directories = {{directory.path(), std::nullopt}};
  const ToyRun in_memory = run_grouped(model, options);
  for (const Tier tier : kTiers) {
    for (const bool unified : {true, false}) {
      if (unified && tier == Tier::kDevice) continue;
      put_all(options, unified, tier);
      EXPECT_EQ(run_grouped(model, options), in_memory) << name_of(tier) << unified;
    }
  }
}

struct GroupedWay {
  const char* name;
  std::function<void(TierRuntimeOptions&)> set;
};

class GroupedUnitsWays : public testing::TestWithParam<GroupedWay> {};

// Trains with clipping, which makes updates wait for the norm, and without.
TEST_P(GroupedUnitsWays, HaveTheBitsOfTrainingInMemory) {
  const TemporaryDirectory directory;
  const ComputeModel model = grouped_model();
  for (const double max_grad_norm : {0.0, 0.05}) {
    TierRuntimeOptions options = grouped_options();
    options.optimizer.max_grad_norm = max_grad_norm;
    const ToyRun in_memory = run_grouped(model, options);
    options.nvme.directories = {{directory.path(), std::nullopt}};
    GetParam().set(options);
    EXPECT_EQ(run_grouped(model, options), in_memory) << max_grad_norm;
  }
}

void put_in_memory_of_device(TierRuntimeOptions& o) { put_all(o, false, Tier::kHost); }

INSTANTIATE_TEST_SUITE_P(
    All, GroupedUnitsWays,
    testing::Values(
        GroupedWay{"nvme", [](TierRuntimeOptions& o) { put_all(o, true, Tier::kNvme); }},
        GroupedWay{"device", [](TierRuntimeOptions& o) { put_all(o, false, Tier::kDevice); }},
        GroupedWay{"host_of_device", put_in_memory_of_device},
        GroupedWay{"nvme_of_device", [](TierRuntimeOptions& o) { put_all(o, false, Tier::kNvme); }},
        GroupedWay{"recomputed",
                   [](TierRuntimeOptions& o) {
                     put_all(o, true, Tier::kNvme);
                     o.placement.recompute = true;
                   }},
        GroupedWay{"recomputed_on_device",
                   [](TierRuntimeOptions& o) {
                     put_all(o, false, Tier::kNvme);
                     o.placement.recompute = true;
                   }},
        GroupedWay{"layer_major",
                   [](TierRuntimeOptions& o) {
                     put_all(o, true, Tier::kNvme);
                     o.placement.order = MicroBatchOrder::kLayerMajor;
                   }},
        GroupedWay{"layer_major_of_device",
                   [](TierRuntimeOptions& o) {
                     put_in_memory_of_device(o);
                     o.placement.order = MicroBatchOrder::kLayerMajor;
                   }},
        GroupedWay{"streamed_updates",
                   [](TierRuntimeOptions& o) {
                     put_in_memory_of_device(o);
                     o.placement.streamed_updates = 1;
                   }},
        GroupedWay{"small_budget",
                   [](TierRuntimeOptions& o) {
                     o.placement.has_nvme = true;
                     o.budgets[static_cast<std::size_t>(Tier::kHost)] = 400 * kKiB;
                   }},
        GroupedWay{"no_lookahead",
                   [](TierRuntimeOptions& o) {
                     put_all(o, false, Tier::kNvme);
                     o.placement.lookahead = 0;
                   }},
        GroupedWay{"bf16_whole_masters",
                   [](TierRuntimeOptions& o) { o.optimizer.splits_bf16_masters = false; }}),
    [](const auto& instance) { return instance.param.name; });

// So many micro-batches that the program repeats the ones in the middle. In layer-major order it
// lists all.
TEST(GroupedUnits, AProgramWithRepetitionsHasTheSameBits) {
  const TemporaryDirectory directory;
  const ComputeModel model = grouped_model();
  TierRuntimeOptions options = grouped_options(70);
  options.placement.order = MicroBatchOrder::kLayerMajor;
  const ToyRun listed = run_grouped(model, options);
  options.nvme.directories = {{directory.path(), std::nullopt}};
  options.placement.order = MicroBatchOrder::kMicroBatchMajor;
  for (const Tier tier : kTiers) {
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(std::string(name_of(tier)) + (recompute ? " recomputed" : ""));
      put_all(options, false, tier);
      options.placement.recompute = recompute;
      EXPECT_EQ(plan_tiers(model, options).training.program.repetition.times, 65);
      EXPECT_EQ(run_grouped(model, options), listed);
    }
  }
}

// An order of the caller's in which the micro-batches take turns.
TEST(GroupedUnits, AnOrderFromOutsideHasTheSameBits) {
  const TemporaryDirectory directory;
  const ComputeModel model = grouped_model();
  TierRuntimeOptions options = grouped_options();
  const ToyRun usual = run_grouped(model, options);
  using enum UnitPass;
  for (const std::int32_t unit : {0, 1, 2, 3}) {
    for (const std::int32_t m : {0, 1}) options.schedule.push_back({kForward, unit, m});
  }
  for (const std::int32_t m : {0, 1}) options.schedule.push_back({kForward, 4, m});
  for (const std::int32_t unit : {3, 2, 1}) {
    for (const std::int32_t m : {0, 1}) options.schedule.push_back({kBackward, unit, m});
  }
  EXPECT_EQ(run_grouped(model, options), usual);
  options.nvme.directories = {{directory.path(), std::nullopt}};
  put_all(options, false, Tier::kNvme);
  EXPECT_EQ(run_grouped(model, options), usual);
}

// The middle group of the second unit stays as it was, and the others learn.
TEST(GroupedUnits, AGroupMayBeFrozen) {
  const TemporaryDirectory directory;
  ComputeModel model = grouped_model();
  ParameterGroup& frozen = model.groups.at(kC);
  frozen.frozen_elements = frozen.padded_elements;
  frozen.decayed_elements = 0;
  std::erase(model.units.at(1).backward.at(1).writes, UnitAccess{Role::kGradient, 1});
  TierRuntimeOptions options = grouped_options();
  const ToyRun in_memory = run_grouped(model, options);
  const auto masters = [&](std::int32_t group) {
    return in_memory.state.at(static_cast<std::size_t>(group) * kStateFields.size());
  };
  EXPECT_EQ(masters(kC).at(5), grouped_parameter(kC, 5));
  EXPECT_NE(masters(kB).at(5), grouped_parameter(kB, 5));
  options.nvme.directories = {{directory.path(), std::nullopt}};
  for (const bool unified : {true, false}) {
    put_all(options, unified, Tier::kNvme);
    EXPECT_EQ(run_grouped(model, options), in_memory) << unified;
  }
}

// An evaluation has the loss that the next step begins with.
TEST(GroupedUnits, AreEvaluated) {
  const TemporaryDirectory directory;
  const ComputeModel model = grouped_model();
  for (const bool unified : {true, false}) {
    TierRuntimeOptions options = grouped_options();
    options.nvme.directories = {{directory.path(), std::nullopt}};
    put_all(options, unified, Tier::kNvme);
    const TierPlan plan = plan_tiers(model, options);
    GroupedTrainer trainer(model);
    SilentLog log;
    TierRuntime runtime(options, plan, trainer, log);
    fill_groups(runtime);
    ToyRun run;
    train_toy(runtime, options, 1, 2, run);
    const std::vector<ToyInput> inputs = toy_inputs(3, 2);
    const double sum = runtime.evaluate(std::as_bytes(std::span(inputs)));
    runtime.begin_step(toy_step(3, inputs));
    EXPECT_EQ(sum / static_cast<double>(PlainTraining::terms(inputs)),
              runtime.finish_step().result.loss);
    runtime.drain();
  }
}

// The middle part of the second unit's pass waits for nothing but its own group.
TEST(GroupedUnits, AGroupIsFetchedForThePartThatUsesIt) {
  const ComputeModel model = grouped_model();
  TierRuntimeOptions options = grouped_options(1);
  put_all(options, false, Tier::kHost);
  options.placement.lookahead = 0;
  options.budgets[static_cast<std::size_t>(Tier::kDevice)] = 256 * kKiB;
  const Program program = plan_tiers(model, options).training.program;
  std::vector<std::string> order;
  for (const Op& op : program.ops) {
    const bool loads = op.lane == Lane::kUpload && op.account == Account::kParameters;
    if (loads && op.chunk == 0) order.push_back("load " + std::to_string(op.group));
    if (op.kind == OpKind::kForward) {
      order.push_back("unit " + std::to_string(op.unit) + " step " + std::to_string(op.step));
    }
  }
  const auto at = [&](const std::string& what) {
    return std::ranges::find(order, what) - order.begin();
  };
  EXPECT_LT(at("unit 1 step 0"), at("load 2"));
  EXPECT_LT(at("load 2"), at("unit 1 step 1"));
  EXPECT_LT(at("unit 1 step 1"), at("load 3"));
  EXPECT_LT(at("load 3"), at("unit 1 step 2"));
}

std::vector<ToyRun> run_grouped_ranks(std::int32_t stage, bool in_memory,
                                      const std::string& directory) {
  constexpr int kRanks = 2;
  const ComputeModel model = grouped_model(kRanks);
  auto worlds = make_thread_communicators(kRanks, "world");
  std::vector<ToyRun> runs(kRanks);
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      const StepCommunicators communicators(*worlds[r], {.data = kRanks});
      TierRuntimeOptions options = grouped_options();
      options.optimizer.max_grad_norm = 0.05;
      options.chunk_elements = 2 * kBlockElements;
      options.ranks = communicators.ranks();
      options.zero_stage = stage;
      options.nvme.directories = {{directory, std::nullopt}};
      if (!in_memory) put_all(options, true, Tier::kNvme);
      runs[r] = run_grouped(model, options);
    });
  }
  threads.clear();
  return runs;
}

TEST(GroupedUnits, EveryZeroStageHasTheSameBits) {
  const TemporaryDirectory directory;
  const std::vector<ToyRun> plain = run_grouped_ranks(0, true, directory.path());
  EXPECT_EQ(plain[0], plain[1]);
  for (const std::int32_t stage : {1, 2, 3}) {
    for (const bool in_memory : {true, false}) {
      SCOPED_TRACE(std::to_string(stage) + (in_memory ? " in memory" : " on the drive"));
      const std::vector<ToyRun> runs = run_grouped_ranks(stage, in_memory, directory.path());
      for (const ToyRun& run : runs) {
        EXPECT_EQ(run.losses, plain[0].losses);
        EXPECT_EQ(run.norms, plain[0].norms);
        for (std::size_t list = 0; list < run.state.size(); ++list) {
          for (std::size_t i = 0; i < run.state[list].size(); ++i) {
            const float here = run.state[list][i];
            if (here == kNotHere) continue;
            ASSERT_EQ(here, plain[0].state[list][i]) << list << " " << i;
          }
        }
      }
    }
  }
}

TEST(GroupedUnits, ResumeWithTheSameBits) {
  const TemporaryDirectory directory;
  const ComputeModel model = grouped_model();
  TierRuntimeOptions options = grouped_options();
  options.nvme.directories = {{directory.path(), std::nullopt}};
  put_all(options, true, Tier::kNvme);
  const ToyRun whole = run_grouped(model, options);
  ToyRun run;
  GroupedTrainer trainer(model);
  SilentLog log;
  {
    const TierPlan plan = plan_tiers(model, options);
    TierRuntime runtime(options, plan, trainer, log);
    fill_groups(runtime);
    train_toy(runtime, options, 1, 2, run);
    run.state = read_groups(runtime, model);
  }
  put_all(options, false, Tier::kHost);  // another tier than before
  const TierPlan plan = plan_tiers(model, options);
  TierRuntime runtime(options, plan, trainer, log);
  runtime.fill_state(
      [&](StateField field, std::int32_t group, std::int64_t begin, std::span<float> out) {
        const std::size_t list =
            kStateFields.size() * static_cast<std::size_t>(group) + static_cast<std::size_t>(field);
        std::copy_n(run.state.at(list).begin() + begin, out.size(), out.begin());
      });
  train_toy(runtime, options, 3, kToySteps, run);
  run.state = read_groups(runtime, model);
  EXPECT_EQ(run, whole);
}

}  // namespace
}  // namespace terrace
