#include "runtime/train/plan_explanation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/runtime/engine/engine_fixture.h"

namespace terrace {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Returns a plan with a device that is too small for everything, and a drive.
TierPlan tight_plan(double share_of_device) {
  ModelRuntimeOptions options = tiny_options(tiny_model("llama", true, false), DType::kBF16);
  options.placement.unified = false;
  options.placement.recompute.reset();
  options.placement.order.reset();
  const TierPlan loose = plan_model(options);
  const auto device = static_cast<std::size_t>(Tier::kDevice);
  const auto needed =
      static_cast<double>(loose.training.program.use_of(Tier::kDevice).packed_bytes);
  options.budgets.at(device) = static_cast<std::size_t>(share_of_device * needed);
  return plan_model(options);
}

TEST(PlanExplanation, WithRoomNothingGivesWay) {
  const TierPlan plan = tight_plan(1.5);
  EXPECT_THAT(
      explain_unit(plan, "0"),
      AllOf(HasSubstr("reasons for block 0:"), HasSubstr("there is room"),
            HasSubstr("on the device, where the optimizer state is"), Not(HasSubstr("gave way"))));
}

TEST(PlanExplanation, SaysForWhichBudgetAStateGaveWay) {
  const TierPlan plan = tight_plan(0.5);
  const std::string embedding = explain_unit(plan, "embedding");
  EXPECT_THAT(embedding, AllOf(HasSubstr("optimizer state"),
                               HasSubstr("on the host: gave way for the device's "
                                         "budget of"),
                               HasSubstr("as number 1 of the")));
  const json reasons = json::parse(reasons_json(plan));
  const json& device = reasons.at("tiers").at(0);
  EXPECT_EQ(device.at("name"), "device");
  EXPECT_GT(device.at("gave_way"), 0);
  EXPECT_LE(device.at("gave_way"), device.at("could_give_way"));
  EXPECT_GT(device.at("bytes_with_one_less"), device.at("budget_bytes"));
  const json& units = reasons.at("units");
  ASSERT_EQ(units.size(), plan.model.unit_count());
  EXPECT_EQ(units.at(0).at("updates").at(0).at("where"), "host");
  EXPECT_EQ(units.at(0).at("updates").at(0).at("when"), "after_norm");
  // Every state that gave way is where the plan has it.
  std::size_t given_way = 0;
  for (const json& unit : units) {
    for (const json& state : unit.at("states")) {
      if (state.at("cause") != "gave_way") continue;
      ++given_way;
      EXPECT_EQ(state.at("home"), "host");
      EXPECT_EQ(state.at("for_tier"), "device");
    }
    if (unit.at("recomputed")) ++given_way;
  }
  EXPECT_GE(given_way, 1U);
  EXPECT_LE(given_way, device.at("gave_way").get<std::size_t>());
}

TEST(PlanExplanation, SaysWhatHeldBackLoads) {
  ModelRuntimeOptions options = tiny_options(tiny_model("llama", true, false), DType::kBF16);
  options.placement.has_nvme = true;
  options.placement.lookahead = 12;
  options.nvme.directories = {{".", std::nullopt}};
  const TierPlan loose = plan_model(options);
  const std::size_t needed = loose.training.program.use_of(Tier::kHost).packed_bytes;
  options.budgets.at(static_cast<std::size_t>(Tier::kHost)) = needed / 10 * 6;
  const TierPlan plan = plan_model(options);
  std::int64_t loads = 0;
  std::int64_t held_back = 0;
  const json reasons = json::parse(reasons_json(plan));
  for (const json& unit : reasons.at("units")) {
    for (const json& alike : unit.at("loads")) {
      loads += alike.at("count").get<std::int64_t>();
      if (alike.at("limit") != "room") continue;
      held_back += alike.at("count").get<std::int64_t>();
      EXPECT_GT(alike.at("lacking_bytes"), 0);
    }
  }
  std::int64_t of_units = 0;
  for (const LoadNote& note : plan.training.program.loads) of_units += note.unit >= 0 ? 1 : 0;
  EXPECT_EQ(loads, of_units);
  EXPECT_GT(held_back, 0);
}

// The loads under a repeated micro-batch count as often as it is repeated.
TEST(PlanExplanation, CountsTheLoadsOfAllMicroBatches) {
  ModelRuntimeOptions options = tiny_options(tiny_model("llama", true, false), DType::kBF16);
  options.placement.has_nvme = true;
  options.placement.homes[StateClass::kActivations] = Tier::kNvme;
  options.nvme.directories = {{".", std::nullopt}};
  const auto loads_of = [&](std::int32_t micro_batches) {
    options.placement.micro_batches = micro_batches;
    std::int64_t loads = 0;
    const json reasons = json::parse(reasons_json(plan_model(options)));
    for (const json& unit : reasons.at("units")) {
      for (const json& alike : unit.at("loads")) loads += alike.at("count").get<std::int64_t>();
    }
    return loads;
  };
  const std::int64_t of_one = loads_of(63) - loads_of(62);
  EXPECT_GT(of_one, 0);
  EXPECT_EQ(loads_of(64) - loads_of(63), of_one);
  EXPECT_EQ(loads_of(1000) - loads_of(64), 936 * of_one);
}

TEST(PlanExplanation, AnUnknownUnitIsNamed) {
  const TierPlan plan = tight_plan(1.5);
  for (const char* name : {"6", "-1", "tail", "1x", ""}) {
    TERRACE_EXPECT_THROW_WITH(explain_unit(plan, name), ConfigError, "no such unit");
  }
}

}  // namespace
}  // namespace terrace
