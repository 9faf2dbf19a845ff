// Experts that are moved, divided and updated in groups: how many there are in a group changes no
// bit, whatever else changes.
#include "runtime/model/expert_groups.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/model/trainable.h"
#include "runtime/step/schedule.h"
#include "runtime/step/verify.h"
#include "tests/runtime/engine/step_switches.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kExperts = 5;
constexpr std::int64_t kPerGroup[] = {1, 2, kExperts};

// An expert of the odd model is no whole number of blocks, and one of the other is.
ModelRuntimeOptions moe_options(std::string_view family, bool odd, DType type = DType::kBF16) {
  ModelRuntimeOptions options = tiny_options(tiny_model(family, false, odd), type);
  options.experts_per_group = kExperts;
  options.model.experts.balance_coefficient = 0.02;
  options.model.experts.z_coefficient = 0.01;
  return options;
}

ModelRuntimeOptions in_groups(ModelRuntimeOptions options, std::int64_t experts) {
  options.experts_per_group = experts;
  return options;
}

std::string name_of_groups(std::int64_t experts) { return fmt::format("{} per group", experts); }

// --- bits ---------------------------------------------------------------------------------------

class ExpertGroups : public testing::TestWithParam<std::size_t> {};

TEST_P(ExpertGroups, HaveTheBitsOfOneGroupWithASwitchSet) {
  const Switch& one = kSwitches[GetParam()];
  constexpr std::string_view kFamilies[] = {"mixtral", "qwen3_moe", "gpt_oss"};
  const std::string_view family = kFamilies[GetParam() % std::size(kFamilies)];
  for (const SlotForm moments : {SlotForm::kFp32, SlotForm::kInt8}) {
    ModelRuntimeOptions plain = moe_options(family, GetParam() % 4 < 2);
    plain.optimizer.slot_form = moments;
    const SwitchedRun expected = result_of(plain, 3);
    for (const std::int64_t experts : kPerGroup) {
      ModelRuntimeOptions options = in_groups(plain, experts);
      const TemporaryDirectory drive;
      options.nvme.directories = {{.path = drive.path(), .budget_bytes = {}}};
      one.set(options);
      expect_same(result_of(options, 3), expected, name_of_groups(experts).c_str());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Switches, ExpertGroups,
                         testing::Range(std::size_t{0}, std::size(kSwitches)),
                         [](const auto& test) { return kSwitches[test.param].name; });

// An expert of all tokens, a bias of the choice that does not train, other scores.
TEST(ExpertGroupsOfFamilies, HaveTheBitsOfOneGroup) {
  for (const std::string_view family : {"qwen2_moe", "granitemoe", "glm4_moe"}) {
    const ModelRuntimeOptions plain = moe_options(family, true);
    const SwitchedRun expected = result_of(plain, 3);
    for (const std::int64_t experts : kPerGroup) {
      for (const bool recomputes : {false, true}) {
        ModelRuntimeOptions options = in_groups(plain, experts);
        const TemporaryDirectory drive;
        options.nvme.directories = {{.path = drive.path(), .budget_bytes = {}}};
        options.placement.recompute = recomputes;
        if (recomputes) options.placement.order = MicroBatchOrder::kLayerMajor;
        all_on(options, true, recomputes ? Tier::kHost : Tier::kNvme);
        expect_same(result_of(options, 3), expected,
                    fmt::format("{} {}", family, name_of_groups(experts)).c_str());
      }
    }
  }
}

TEST(ExpertGroupsOfRanks, HaveTheBitsOfOneGroupAtEveryStage) {
  for (const char* family : {"mixtral", "gpt_oss"}) {
    SCOPED_TRACE(family);
    const ModelRuntimeOptions plain = moe_options(family, true);
    const RankedRun expected = train_ranks(plain, 2, 0);
    for (const std::int64_t experts : kPerGroup) {
      for (std::int32_t stage = 0; stage <= 3; ++stage) {
        ModelRuntimeOptions options = in_groups(plain, experts);
        const TemporaryDirectory drive;
        options.nvme.directories = {{.path = drive.path(), .budget_bytes = {}}};
        if (stage > 1) all_on(options, stage == 2, Tier::kNvme);
        const RankedRun run = train_ranks(options, 2, stage);
        EXPECT_EQ(run.curves, expected.curves) << stage << ", " << name_of_groups(experts);
        EXPECT_EQ(run.state, expected.state) << stage << ", " << name_of_groups(experts);
      }
    }
  }
}

TEST(ExpertGroupsOfRanks, HaveTheBitsOfOneGroupInAPipeline) {
  ModelRuntimeOptions plain = moe_options("qwen3_moe", false);
  plain.model.experts.balance_coefficient = 0;  // is refused in a pipeline
  const RankedRun expected = train_ranks(plain, MeshShape{.data = 1}, 0);
  for (const std::int64_t experts : kPerGroup) {
    const RankedRun run = train_ranks(in_groups(plain, experts), MeshShape{.pipeline = 2}, 0);
    EXPECT_EQ(run.curves.front(), expected.curves.front()) << name_of_groups(experts);
    EXPECT_EQ(run.state, expected.state) << name_of_groups(experts);
  }
}

TEST(ExpertGroupsResumed, GoOnInOtherGroups) {
  for (const SlotForm moments : {SlotForm::kFp32, SlotForm::kInt8}) {
    ModelRuntimeOptions plain = moe_options("mixtral", true);
    plain.optimizer.slot_form = moments;
    const SwitchedRun whole = result_of(plain, 4);
    for (const std::int64_t before : kPerGroup) {
      std::optional<SnapshotState> half;
      train_tiny(in_groups(plain, before), 2, [&](ModelRuntime& engine) { half.emplace(engine); });
      const ModelRuntimeOptions after = in_groups(plain, before == 1 ? 2 : 1);
      const TierPlan plan = plan_model(after);
      SilentLog log;
      ModelRuntime engine(after, plan, log);
      engine.fill_state(*half);
      TrainedRun rest;
      train_steps(engine, after, 3, 4, rest);
      EXPECT_TRUE(SnapshotState(engine) == whole.state) << name_of_groups(before);
    }
  }
}

struct FrozenExperts {
  const char* family;
  const char* trainable;
};

TEST(ExpertGroupsFrozen, HaveTheBitsOfOneGroup) {
  // The biases of gpt_oss's experts are parameters of their own.
  for (const auto& [family, pattern] :
       {FrozenExperts{"mixtral", "*experts*"}, FrozenExperts{"mixtral", "*self_attn*"},
        FrozenExperts{"gpt_oss", "*experts*"}, FrozenExperts{"gpt_oss", "*gate_up_proj_bias"},
        FrozenExperts{"gpt_oss", "*.sinks"}, FrozenExperts{"gpt_oss", "*down_proj_bias"}}) {
    ModelRuntimeOptions plain = moe_options(family, true);
    plain.model = with_trainable(plain.model, {pattern}, field_of_option);
    const SwitchedRun expected = result_of(plain, 3);
    for (const std::int64_t experts : kPerGroup) {
      ModelRuntimeOptions options = in_groups(plain, experts);
      const TemporaryDirectory drive;
      options.nvme.directories = {{.path = drive.path(), .budget_bytes = {}}};
      all_on(options, true, Tier::kNvme);
      expect_same(result_of(options, 3), expected, pattern);
    }
  }
}

ModelRuntimeOptions with_attention_adapter(ModelRuntimeOptions options) {
  options.model = with_adapter(options.model, {.rank = 5, .alpha = 12, .targets = {}}, {});
  options.optimizer.max_grad_norm = 0.02;
  return options;
}

// Experts under an adapter have no gradient, no optimizer state and no update, and are read at most
// once in the forward and once in the backward.
class ExpertGroupsOfFamilies : public testing::TestWithParam<const char*> {};

TEST_P(ExpertGroupsOfFamilies, HaveTheBitsOfOneGroupWithAnAdapter) {
  for (const auto form : {std::optional<QuantizedForm>(), std::optional(QuantizedForm::kNf4)}) {
    ModelRuntimeOptions plain = with_attention_adapter(moe_options(GetParam(), true));
    plain.base_quantization = form;
    const SwitchedRun expected = result_of(plain, 3);
    for (const std::int64_t experts : kPerGroup) {
      ModelRuntimeOptions options = in_groups(plain, experts);
      const TemporaryDirectory drive;
      options.nvme.directories = {{.path = drive.path(), .budget_bytes = {}}};
      all_on(options, experts == 1, Tier::kNvme);
      expect_same(result_of(options, 3), expected, name_of_groups(experts).c_str());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ExpertGroupsOfFamilies,
                         testing::Values("qwen3_moe", "qwen2_moe", "glm4_moe", "gpt_oss"),
                         [](const auto& each) { return std::string(each.param); });

TEST(ExpertGroupsAdapted, AreOnlyRead) {
  ModelRuntimeOptions options = in_groups(with_attention_adapter(moe_options("mixtral", false)), 2);
  all_on(options, true, Tier::kNvme);
  options.placement.micro_batches = 1;
  options.placement.lookahead = 0;
  const TierPlan plan = plan_model(options);
  const UnitModel& block = plan.model.units.at(3);
  ASSERT_EQ(block.groups.size(), 4U);
  for (std::size_t g = 1; g < block.groups.size(); ++g) {
    const std::int32_t group = block.groups[g];
    EXPECT_EQ(plan.model.groups.at(static_cast<std::size_t>(group)).trained_elements(), 0);
    std::int64_t fetched = 0;
    for (const Op& op : plan.training.program.ops) {
      if (op.group != group) continue;
      EXPECT_NE(op.kind, OpKind::kUpdate);
      EXPECT_EQ(op.account, Account::kParameters);
      fetched += op.lane == Lane::kRead ? 1 : 0;
    }
    const std::int64_t chunks = plan.model.chunks(group);
    EXPECT_GE(fetched, chunks) << g;
    EXPECT_LE(fetched, 2 * chunks) << g;
  }
}

// --- rows of an expert --------------------------------------------------------------------------

// Expert 0 gets every row, and expert 4 none: the first column of each token is large, and the
// router asks for it.
class OneSidedState final : public StateSource {
 public:
  void read(StateField field, const UnitLayout& unit, std::int64_t begin,
            std::span<float> out) const override {
    random_.read(field, unit, begin, out);
    if (field != StateField::kMaster) return;
    for_each_tensor_part(
        unit, begin, out,
        [](const ParameterTensor& tensor, std::int64_t first, std::span<float> part) {
          for (std::size_t i = 0; i < part.size(); ++i) {
            const std::int64_t element = first + static_cast<std::int64_t>(i);
            set(tensor, element / tensor.columns, element % tensor.columns, part[i]);
          }
        });
  }

 private:
  static void set(const ParameterTensor& tensor, std::int64_t row, std::int64_t column,
                  float& value) {
    if (tensor.kind == ParameterKind::kTokenEmbedding && column == 0) value = 4;
    if (tensor.kind != ParameterKind::kRouter) return;
    const bool is_first = row == 0;
    if (is_first || row == kExperts - 1) value = column > 0 ? 0.0F : is_first ? 8.0F : -8.0F;
  }

  RandomState random_{7};
};

struct OneSidedRun {
  Curve curve;
  SnapshotState before, after;

  friend bool operator==(const OneSidedRun&, const OneSidedRun&) = default;
};

OneSidedRun train_one_sided(const ModelRuntimeOptions& options) {
  const TierPlan plan = plan_model(options);
  EXPECT_THAT(verify(plan.training.program), IsEmpty());
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  engine.fill_state(OneSidedState());
  const SnapshotState before(engine);
  TrainedRun run;
  train_steps(engine, options, 1, 3, run);
  return {run.curve, before, SnapshotState(engine)};
}

// Returns the down matrix of an expert.
std::vector<float> expert_of(const SnapshotState& state, const UnitLayout& unit,
                             std::int32_t expert) {
  const ParameterTensor* down = unit.find(ParameterKind::kExpertDown, expert);
  std::vector<float> values(static_cast<std::size_t>(down->elements()));
  state.read(StateField::kMaster, unit, down->offset, values);
  return values;
}

TEST(ExpertGroupsOneSided, HaveTheBitsOfOneGroup) {
  for (const bool recomputes : {false, true}) {
    ModelRuntimeOptions plain = moe_options("mixtral", true);
    plain.placement.recompute = recomputes;
    plain.optimizer.numbers.weight_decay = 0;
    const OneSidedRun expected = train_one_sided(plain);
    const UnitLayout unit = parameter_layout(plain.model).at(1);
    EXPECT_NE(expert_of(expected.before, unit, 0), expert_of(expected.after, unit, 0));
    EXPECT_EQ(expert_of(expected.before, unit, kExperts - 1),
              expert_of(expected.after, unit, kExperts - 1));
    for (const std::int64_t experts : kPerGroup) {
      EXPECT_TRUE(train_one_sided(in_groups(plain, experts)) == expected)
          << name_of_groups(experts);
    }
  }
}

// --- descriptions -------------------------------------------------------------------------------

TEST(ExpertGroupsLayout, EachExpertHasBlocksOfItsOwn) {
  const ModelConfig model = tiny_model("mixtral", false, true);
  for (const std::int32_t ranks : {1, 3}) {
    const UnitLayout unit = parameter_layout(model, ranks).at(1);
    EXPECT_EQ(unit.experts.count, kExperts);
    EXPECT_EQ(unit.experts.elements % (ranks * kBlockElements), 0);
    EXPECT_EQ(unit.shared_elements() % (ranks * kBlockElements), 0);
    for (std::int32_t expert = 0; expert < kExperts; ++expert) {
      EXPECT_EQ(unit.find(ParameterKind::kExpertGate, expert)->offset,
                unit.shared_elements() + expert * unit.experts.elements);
    }
    EXPECT_EQ(std::ssize(unit.trained_spans()), 1 + kExperts);
    std::int64_t next = unit.shared_elements();
    for (const ExpertGroup& group : expert_groups(unit, 2)) {
      EXPECT_EQ(group.elements.begin, next);
      next = group.elements.end;
    }
    EXPECT_EQ(next, unit.padded_elements);
  }
}

// Returns the groups that the steps of a pass read, by their indices.
std::vector<std::vector<std::int32_t>> groups_read(const std::vector<UnitStep>& pass) {
  std::vector<std::vector<std::int32_t>> groups;
  for (const UnitStep& step : pass) groups.push_back(step.groups);
  return groups;
}

TEST(ExpertGroupsGraph, APartOfAPassWorksWithEachGroup) {
  const ModelRuntimeOptions options = in_groups(moe_options("mixtral", false), 2);
  const UnitModel block = step_model_of(options).units.at(1);
  const std::vector<std::int32_t> none;
  EXPECT_THAT(groups_read(block.forward),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(3), none));
  EXPECT_THAT(groups_read(block.recompute), ElementsAre(ElementsAre(0)));
  EXPECT_THAT(groups_read(block.backward),
              ElementsAre(none, ElementsAre(3), ElementsAre(2), ElementsAre(1), ElementsAre(0)));
  EXPECT_EQ(UnitModel::parts(block.backward).size(), block.backward.size());
  const UnitModel whole = step_model_of(in_groups(options, kExperts)).units.at(1);
  EXPECT_THAT(groups_read(whole.recompute), ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_LT(block.saved_bytes, whole.saved_bytes);
}

// Returns the parts of one kind of a unit's tasks, in the order of the step.
std::vector<std::int32_t> parts_of(const std::vector<Task>& tasks, OpKind kind) {
  std::vector<std::int32_t> parts;
  for (const Task& task : tasks) {
    if (task.kind == kind && task.unit == 1) parts.push_back(task.part);
  }
  return parts;
}

TEST(ExpertGroupsOrder, APartOfAllMicroBatchesComesBeforeTheNext) {
  ModelRuntimeOptions options = in_groups(moe_options("mixtral", false), kExperts);
  options.placement.micro_batches = 2;
  options.placement.recompute = true;
  options.placement.order = MicroBatchOrder::kLayerMajor;
  const TierPlan plan = plan_model(options);
  const StepPolicy& policy = plan.training.policy;
  const std::vector<Task> tasks =
      add_recompute(plan.model, policy, schedule_step(plan.model, policy));
  EXPECT_THAT(parts_of(tasks, OpKind::kForward), ElementsAre(0, 0, 1, 1, 2, 2));
  EXPECT_THAT(parts_of(tasks, OpKind::kRecompute), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(parts_of(tasks, OpKind::kBackward), ElementsAre(0, 0, 1, 1, 2, 2));
}

// A deferred update comes one part ahead of the first part that uses its group. Another update
// follows the part that finishes its gradient.
TEST(ExpertGroupsOrder, AGroupIsUpdatedNextToThePartThatUsesIt) {
  for (const double max_grad_norm : {1.0, 0.0}) {
    ModelRuntimeOptions options = in_groups(moe_options("mixtral", false), 1);
    all_on(options, true, Tier::kNvme);
    options.placement.micro_batches = 1;
    options.optimizer.max_grad_norm = max_grad_norm;
    const TierPlan plan = plan_model(options);
    const std::vector<Task> tasks = schedule_step(plan.model, plan.training.policy);
    const auto uses = parameter_uses(plan.model, tasks);
    int checked = 0;
    for (std::int32_t t = 0; t < std::ssize(tasks); ++t) {
      const Task& task = tasks[static_cast<std::size_t>(t)];
      if (task.kind != OpKind::kUpdate || task.unit != 3) continue;
      const std::vector<std::int32_t>& of_group = uses.at(static_cast<std::size_t>(task.group));
      const std::int32_t use = task.is_deferred() ? of_group.front() : of_group.back();
      const auto between =
          std::span(tasks).subspan(static_cast<std::size_t>(std::min(t, use)) + 1,
                                   static_cast<std::size_t>(std::abs(t - use)) - 1);
      EXPECT_LE(std::ranges::count_if(between, computes), task.is_deferred() ? 1 : 0);
      ++checked;
    }
    EXPECT_GE(checked, kExperts + 1);
  }
}

// --- plans --------------------------------------------------------------------------------------

// With several groups the backward computes again what one group may keep, so the forward that is
// recomputed ends before the experts: each group is read once in each pass.
TEST(ExpertGroupsPlans, AFineGroupingReadsNoMoreAndNeedsLess) {
  ModelRuntimeOptions plain = moe_options("mixtral", false);
  all_on(plain, true, Tier::kNvme);
  plain.placement.micro_batches = 1;
  plain.placement.recompute = true;
  plain.placement.lookahead = 0;
  const TierPlan coarse = plan_model(plain);
  const TierPlan fine = plan_model(in_groups(plain, 1));
  EXPECT_EQ(lane_bytes(fine.training.program, Lane::kRead),
            lane_bytes(coarse.training.program, Lane::kRead));
  EXPECT_LT(fine.ledger[Tier::kHost].live_peak_bytes, coarse.ledger[Tier::kHost].live_peak_bytes);
  EXPECT_EQ(std::ssize(fine.model.groups) - std::ssize(coarse.model.groups),
            plain.model.layers * (kExperts - 1));
}

TEST(ExpertGroupsPlans, ALayerPassReadsAGroupOnceForAllMicroBatches) {
  for (const bool recomputes : {false, true}) {
    for (const std::int64_t experts : kPerGroup) {
      ModelRuntimeOptions options = in_groups(moe_options("mixtral", false), experts);
      all_on(options, true, Tier::kNvme);
      options.placement.order = MicroBatchOrder::kLayerMajor;
      options.placement.recompute = recomputes;
      options.placement.lookahead = 0;
      std::vector<double> bytes;
      for (const std::int32_t micro_batches : {1, 4}) {
        options.placement.micro_batches = micro_batches;
        bytes.push_back(
            lane_bytes(plan_model(options).training.program, Lane::kRead, Account::kParameters));
      }
      EXPECT_EQ(bytes[0], bytes[1]) << name_of_groups(experts) << recomputes;
    }
  }
}

TEST(ExpertGroupsPlans, TheChoiceFollowsTheMemory) {
  ModelRuntimeOptions options = moe_options("mixtral", false);
  options.experts_per_group = 0;
  std::optional<std::size_t>& host = options.budgets.at(static_cast<std::size_t>(Tier::kHost));
  host.reset();
  EXPECT_EQ(experts_per_group_of(options), kExperts);
  host = std::size_t{1} << 40;
  EXPECT_EQ(experts_per_group_of(options), kExperts);
  const ExpertLayout experts = parameter_layout(options.model).at(1).experts;
  const auto of_expert = static_cast<std::size_t>(experts.elements) * 6;  // bf16, and a gradient
  host = 8 * 3 * of_expert;
  EXPECT_EQ(experts_per_group_of(options), 3);
  host = 8 * 3 * of_expert - 1;
  EXPECT_EQ(experts_per_group_of(options), 2);
  host = 1;
  EXPECT_EQ(experts_per_group_of(options), 1);
  EXPECT_EQ(experts_per_group_of(tiny_options(tiny_model("llama", false, false), DType::kBF16)), 0);
}

std::string refusal_of(const ModelRuntimeOptions& options) {
  try {
    plan_model(options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ExpertGroupsPlans, NumbersThatNoGroupCanHaveAreRefused) {
  const ModelRuntimeOptions moe = moe_options("mixtral", false);
  EXPECT_THAT(refusal_of(in_groups(moe, kExperts + 1)), HasSubstr("experts_per_group 6"));
  EXPECT_THAT(refusal_of(in_groups(moe, -1)), HasSubstr("experts_per_group -1"));
  const ModelRuntimeOptions dense = tiny_options(tiny_model("llama", false, false), DType::kBF16);
  EXPECT_THAT(refusal_of(in_groups(dense, 1)), HasSubstr("has no layers of experts"));
}

}  // namespace
}  // namespace terrace
