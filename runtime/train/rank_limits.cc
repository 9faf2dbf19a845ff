#include "runtime/train/rank_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "runtime/train/train_report.h"

namespace terrace {
namespace {

constexpr auto kNone = std::numeric_limits<std::int64_t>::max();

std::int64_t number_of(const std::optional<std::size_t>& budget) {
  return budget.has_value() ? static_cast<std::int64_t>(*budget) : kNone;
}

std::optional<std::size_t> budget_of(std::int64_t number) {
  if (number == kNone) return std::nullopt;
  return static_cast<std::size_t>(number);
}

// The ranks of a host measure its free memory at different times. Those that plan with a part of it
// take the same part.
void agree_on_host_default(const TierOptions& tiers, const RankGroup& ranks,
                           ModelRuntimeOptions& engine) {
  std::optional<std::size_t>& budget = engine.budgets.at(static_cast<std::size_t>(Tier::kHost));
  const bool is_default = !tiers.host_memory.has_value();
  const std::int64_t least = ranks.smallest_on_host(is_default ? number_of(budget) : kNone);
  if (is_default) budget = budget_of(least);
}

RankLimits least_of(const RankLimits& a, const RankLimits& b) {
  RankLimits least = {.threads = std::min(a.threads, b.threads),
                      .update_threads = std::min(a.update_threads, b.update_threads)};
  for (std::size_t t = 0; t < kTierCount; ++t) {
    least.budgets.at(t) = std::min(a.budgets.at(t), b.budgets.at(t));
  }
  return least;
}

StageLimits limits_of_stage(const RankLimits& limits) {
  StageLimits stage = {.threads = limits.threads, .update_threads = limits.update_threads};
  for (std::size_t t = 0; t < kTierCount; ++t) {
    const std::uint64_t budget = limits.budgets.at(t);
    if (budget != RankLimits::kNoBudget) stage.budgets.at(t) = budget;
  }
  return stage;
}

// Gives the engine the least limits that any rank of its pipeline stage has, and the limits of the
// other stages if they differ. Returns whether the ranks of some stage are unequal.
bool take_least_of_stages(const RankGroup& ranks, ModelRuntimeOptions& engine) {
  std::vector<std::vector<RankLimits>> by_stage(
      static_cast<std::size_t>(engine.ranks.shape.pipeline));
  const std::vector<RankLimits> all = limits_of_ranks(engine, ranks);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    by_stage.at(static_cast<std::size_t>(ranks.stage_of(rank))).push_back(all[rank]);
  }
  std::vector<StageLimits> stages;
  for (const std::vector<RankLimits>& stage : by_stage) {
    stages.push_back(
        limits_of_stage(std::accumulate(stage.begin(), stage.end(), stage.front(), least_of)));
  }
  const StageLimits own = stages.at(static_cast<std::size_t>(engine.ranks.position.pipeline));
  engine.budgets = own.budgets;
  engine.threads = own.threads;
  engine.update_threads = own.update_threads;
  const bool are_alike = std::ranges::count(stages, own) == std::ssize(stages);
  engine.stage_limits = are_alike ? std::vector<StageLimits>() : std::move(stages);
  return std::ranges::any_of(by_stage, are_unequal);
}

// Returns why ranks with these settings must have one program.
std::string reason_for_one_program(const ModelRuntimeOptions& engine) {
  const MeshShape& mesh = engine.ranks.shape;
  if (exchange_of(engine.backend) != nullptr) return "ranks with GPUs";
  if (mesh.pipeline > 1) return "the ranks of a pipeline stage";
  if (mesh.tensor > 1) return "tensor-parallel ranks";
  if (engine.shared_plans != nullptr) return "ranks that are threads of one process";
  return fmt::format("ranks of ZeRO stage {}", engine.zero_stage);
}

}  // namespace

bool has_own_limits(const ModelRuntimeOptions& engine) {
  constexpr std::int32_t kDividesParameters = 3;
  const MeshShape& mesh = engine.ranks.shape;
  const bool is_data_parallel = mesh.data > 1 && mesh.tensor == 1 && mesh.pipeline == 1;
  return is_data_parallel && engine.zero_stage < kDividesParameters &&
         engine.shared_plans == nullptr && exchange_of(engine.backend) == nullptr;
}

void agree_on_limits(const TrainOptions& options, const MachineShare& machine,
                     const RankGroup& ranks, ModelRuntimeOptions& engine, TrainConsole& console) {
  const std::size_t on_host = budgets_on_host(options.tiers, machine, ranks);
  if (!options.run.dry_run) check_budgets(options.tiers, machine, on_host);
  engine.ranks = ranks.steps();
  engine.zero_stage = zero_stage_for(options, ranks.steps().shape);
  agree_on_host_default(options.tiers, ranks, engine);
  if (std::optional<GpuSetting>& gpu = engine.placement.gpu; gpu.has_value()) {
    const auto link = static_cast<std::int64_t>(gpu->link_bytes_per_s);
    gpu->link_bytes_per_s = static_cast<double>(ranks.smallest(link));
  }
  // The groups of experts are reduced one by one, so all ranks have the same ones.
  const std::int64_t experts = experts_per_group_of(engine);
  const std::int64_t least_experts = ranks.smallest(experts);
  if (!ranks.is_same(static_cast<std::uint64_t>(experts))) engine.experts_per_group = least_experts;
  if (has_own_limits(engine)) return;
  const bool differ = take_least_of_stages(ranks, engine);
  if (!differ || options.run.json) return;  // that document has no place for it
  console.say(
      fmt::format("the ranks have different budgets or threads: all plan for the least of them, "
                  "because {} must compile one program",
                  reason_for_one_program(engine)));
}

std::vector<RankLimits> limits_of_ranks(const ModelRuntimeOptions& engine, const RankGroup& ranks) {
  RankLimits own;
  for (std::size_t t = 0; t < kTierCount; ++t) {
    own.budgets.at(t) = engine.budgets.at(t).value_or(RankLimits::kNoBudget);
  }
  own.threads = engine.threads;
  own.update_threads = engine.update_threads;
  if (ranks.world() == nullptr) return {own};
  return of_all_ranks(*ranks.world(), own);
}

bool are_unequal(const std::vector<RankLimits>& ranks) {
  constexpr std::uint64_t kParts = 20;
  const auto differ = [&](auto member) {
    const auto [least, most] = std::ranges::minmax(ranks, {}, member);
    return member(most) - member(least) > member(least) / kParts;
  };
  for (std::size_t t = 0; t < kTierCount; ++t) {
    if (differ([t](const RankLimits& rank) { return rank.budgets.at(t); })) return true;
  }
  const auto threads = [](const RankLimits& rank) {
    return std::pair(rank.threads, rank.update_threads);
  };
  return std::ranges::any_of(
      ranks, [&](const RankLimits& rank) { return threads(rank) != threads(ranks.front()); });
}

std::vector<RankMemory> unequal_memory(const ModelRuntimeOptions& engine, const TierPlan& plan,
                                       const RankGroup& ranks) {
  const std::vector<RankLimits> limits = limits_of_ranks(engine, ranks);
  if (!are_unequal(limits)) return {};
  RankMemory own = {.limits = limits.at(static_cast<std::size_t>(ranks.rank()))};
  for (const Tier tier : kTiers) {
    own.peaks.at(static_cast<std::size_t>(tier)) = plan.ledger[tier].peak_bytes;
  }
  const Program& program = plan.training.program;
  own.read_bytes = static_cast<std::uint64_t>(lane_bytes(program, Lane::kRead));
  own.written_bytes = static_cast<std::uint64_t>(lane_bytes(program, Lane::kWrite));
  return of_all_ranks(*ranks.world(), own);
}

std::string describe_memory(const std::vector<RankMemory>& ranks) {
  constexpr std::size_t kShown = 16;
  if (ranks.empty()) return "";
  const auto has = [&](Tier tier) {
    return std::ranges::any_of(ranks, [t = static_cast<std::size_t>(tier)](const auto& rank) {
      return rank.peaks.at(t) > 0;
    });
  };
  const auto size_or_none = [](std::uint64_t bytes) {
    return bytes == RankLimits::kNoBudget ? std::string("none") : format_size(bytes);
  };
  std::string text = "the ranks plan for their own budgets:\nrank";
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    if (has(tier))
      text += fmt::format("{:>14}  {:>11}", fmt::format("{} budget", name_of(tier)), "peak");
  }
  text += fmt::format("{:>14}  {:>11}  {:>14}  {:>7}", "on the drive", "read a step",
                      "written a step", "threads");
  for (std::size_t rank = 0; rank < std::min(ranks.size(), kShown); ++rank) {
    const RankMemory& of = ranks[rank];
    text += fmt::format("\n{:>4}", rank);
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
      const auto t = static_cast<std::size_t>(tier);
      if (!has(tier)) continue;
      text += fmt::format("{:>14}  {:>11}", size_or_none(of.limits.budgets.at(t)),
                          format_size(of.peaks.at(t)));
    }
    text +=
        fmt::format("{:>14}  {:>11}  {:>14}  {:>7}",
                    format_size(of.peaks.at(static_cast<std::size_t>(Tier::kNvme))),
                    format_size(of.read_bytes), format_size(of.written_bytes), of.limits.threads);
  }
  if (ranks.size() > kShown) {
    text += fmt::format("\n({} more ranks: see run.json)", ranks.size() - kShown);
  }
  return text;
}

std::string memory_json(const std::vector<RankMemory>& ranks) {
  using nlohmann::ordered_json;
  if (ranks.empty()) return "";
  ordered_json all = ordered_json::array();
  for (const RankMemory& rank : ranks) {
    ordered_json memory = ordered_json::array();
    for (const Tier tier : kTiers) {
      const auto t = static_cast<std::size_t>(tier);
      const std::uint64_t budget = rank.limits.budgets.at(t);
      memory.push_back({{"name", name_of(tier)},
                        {"budget_bytes", budget == RankLimits::kNoBudget ? ordered_json(nullptr)
                                                                         : ordered_json(budget)},
                        {"peak_bytes", rank.peaks.at(t)}});
    }
    all.push_back({{"threads", rank.limits.threads},
                   {"memory", memory},
                   {"nvme_read_bytes", rank.read_bytes},
                   {"nvme_write_bytes", rank.written_bytes}});
  }
  return all.dump();
}

std::vector<RankMemory> tell_plan(const ModelRuntimeOptions& engine, const TierPlan& plan,
                                  const RankGroup& ranks, TrainConsole& console) {
  std::vector<RankMemory> memory = unequal_memory(engine, plan, ranks);
  console.say(describe_plan(engine, plan));
  if (!memory.empty()) console.say(describe_memory(memory));
  return memory;
}

}  // namespace terrace
