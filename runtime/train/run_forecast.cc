#include "runtime/train/run_forecast.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "runtime/config/host_facts.h"
#include "runtime/config/version.h"
#include "runtime/machine/device_speeds.h"
#include "runtime/step/simulate.h"
#include "runtime/step/simulate_stages.h"
#include "runtime/train/train_report.h"

namespace terrace {
namespace {

using nlohmann::ordered_json;

constexpr int kSteps = 4;  // simulated: the last ones are in the steady state

// Returns the profile of a rank of each stage.
std::vector<MachineProfile> profiles_of(const PlannedStages& stages, const Machine& machine,
                                        const RankSetting& setting) {
  const std::vector<double> speeds = stage_speeds(machine, setting);
  std::vector<MachineProfile> profiles;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const Machine slowed = at_speed(machine, speeds.at(stage));
    profiles.push_back(rank_profile(slowed, setting));
    estimate_ops(stages[stage].kernels, kernel_rates(slowed, profiles.back(), setting.compute_type),
                 profiles.back());
  }
  return profiles;
}

StageForecast forecast_stage(const PlannedStage& planned, const MachineProfile& profile) {
  StageForecast stage;
  stage.units = planned.units;
  stage.ledger = planned.ledger;
  stage.flops = planned.flops;
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    stage.bytes[l] = lane_bytes(planned.program, static_cast<Lane>(l));
  }
  const SimulationResult result = simulate(planned.program, profile, kSteps);
  stage.step_s = result.step_s;
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    stage.busy_share[l] = result.busy_s[l] / (kSteps * result.step_s);
  }
  stage.bottleneck = result.bottleneck;
  return stage;
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string in_days(double seconds) {
  constexpr double kDay = 86400;
  if (seconds >= 2 * kDay) return fmt::format("{:.3g} days", seconds / kDay);
  if (seconds >= 7200) return fmt::format("{:.3g} hours", seconds / 3600);
  return fmt::format("{:.3g} minutes", seconds / 60);
}

std::string describe_mesh(const RunForecast& forecast) {
  const MeshShape& mesh = forecast.mesh;
  std::string text = fmt::format(
      "{} rank{} on {} node{}: {} data-parallel x {} tensor-parallel x {} stage{}", mesh.ranks(),
      mesh.ranks() == 1 ? "" : "s", forecast.nodes, forecast.nodes == 1 ? "" : "s", mesh.data,
      mesh.tensor, mesh.pipeline, mesh.pipeline == 1 ? "" : "s");
  if (mesh.data > 1) text += fmt::format(", ZeRO stage {}", forecast.zero_stage);
  if (mesh.islands > 1) {
    const bool is_hpz = forecast.zero_partition == ZeroPartition::kHpz;
    text += fmt::format(", {} sharded in each of {} islands of {} data-parallel ranks",
                        is_hpz ? "parameters" : "all states", mesh.islands, mesh.island_ranks());
  }
  if (!forecast.wire.are_plain()) text += fmt::format(", sent: {}", describe_wire(forecast.wire));
  return text;
}

// Returns a number of each stage.
template <typename Number>
std::vector<Number> of_stages(const RunForecast& forecast, Number StageForecast::* number) {
  std::vector<Number> numbers;
  for (const StageForecast& stage : forecast.stages) numbers.push_back(stage.*number);
  return numbers;
}

std::string describe_stages(const RunForecast& forecast) {
  return fmt::format("stages run at speeds {} and have {} units",
                     fmt::join(of_stages(forecast, &StageForecast::speed), ", "),
                     fmt::join(of_stages(forecast, &StageForecast::units), ", "));
}

ordered_json figure_or_null(const std::optional<double>& figure) {
  return figure ? ordered_json(*figure) : ordered_json(nullptr);
}

}  // namespace

Ledger RunForecast::ledger() const {
  Ledger largest = stages.front().ledger;
  for (const StageForecast& stage : stages) {
    for (const Tier tier : kTiers) {
      if (stage.ledger[tier].peak_bytes > largest[tier].peak_bytes) {
        largest[tier] = stage.ledger[tier];
      }
    }
  }
  return largest;
}

double RunForecast::bytes_of(Lane lane) const {
  double bytes = 0;
  for (const StageForecast& stage : stages) bytes += stage.bytes.at(static_cast<std::size_t>(lane));
  return bytes * mesh.data * mesh.tensor;
}

bool RunForecast::has_unequal_stages() const {
  return std::ranges::any_of(
      stages, [&](const StageForecast& stage) { return stage.speed != stages.front().speed; });
}

RunForecast forecast_run(const PlannedStages& stages, const Machine& machine,
                         const RankSetting& setting) {
  const std::vector<double> speeds = stage_speeds(machine, setting);
  const std::vector<MachineProfile> profiles = profiles_of(stages, machine, setting);
  RunForecast forecast;
  forecast.mesh = setting.mesh;
  forecast.ranks_per_node = setting.ranks_on_node;
  forecast.peak_flops_per_s = peak_of_all_ranks(machine, setting);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const PlannedStage& planned = stages[s];
    check_known(machine, setting, planned.program);
    forecast.stages.push_back(forecast_stage(planned, profiles[s]));
    forecast.stages.back().speed = speeds[s];
    forecast.model_flops += planned.flops.necessary * setting.mesh.tensor;
  }
  forecast.model_flops += stages.front().flops.masked_halves;
  forecast.model_flops *= setting.mesh.data;
  for (const StageForecast& stage : forecast.stages) {
    forecast.step_s = std::max(forecast.step_s, stage.step_s);
  }
  if (stages.size() > 1) {
    std::vector<const Program*> programs;
    for (const PlannedStage& planned : stages) programs.push_back(&planned.program);
    forecast.step_s = std::max(forecast.step_s, simulate_stages(programs, profiles).step_s);
  }
  for (StageForecast& stage : forecast.stages) {  // which waits for the other stages
    for (double& share : stage.busy_share) share *= stage.step_s / forecast.step_s;
  }
  const auto slowest = std::ranges::max_element(forecast.stages, {}, &StageForecast::step_s);
  forecast.slowest = static_cast<std::size_t>(slowest - forecast.stages.begin());
  double computing = 0;
  for (const StageForecast& stage : forecast.stages) {
    computing += stage.busy_share[static_cast<std::size_t>(Lane::kCompute)];
  }
  forecast.bubble_share =
      std::max(0.0, 1 - computing / static_cast<double>(forecast.stages.size()));
  return forecast;
}

RunCost cost_of_run(const RunForecast& forecast, const Machine& machine,
                    const PlanOptions& options) {
  RunCost cost;
  const auto of_step = static_cast<double>(forecast.tokens_per_step);
  cost.tokens =
      options.tokens.value_or(static_cast<double>(options.train.batch.max_steps) * of_step);
  const double steps = cost.tokens / of_step;
  cost.seconds = steps * forecast.step_s;
  cost.written_bytes = steps * forecast.bytes_of(Lane::kWrite);
  const double node_hours = cost.seconds / 3600 * forecast.nodes;
  if (machine.knows(MachineFigure::kNodeWatts)) {
    cost.kilowatt_hours = node_hours * machine.value(MachineFigure::kNodeWatts) / 1000;
  }
  std::optional<double> price = options.price_per_node_hour;
  if (!price && machine.knows(MachineFigure::kPricePerNodeHour)) {
    price = machine.value(MachineFigure::kPricePerNodeHour);
  }
  if (price) cost.price = node_hours * *price;
  if (options.grams_per_kwh && cost.kilowatt_hours) {
    cost.carbon_kg = *cost.kilowatt_hours * *options.grams_per_kwh / 1000;
  }
  return cost;
}

std::string describe_forecast(const RunForecast& forecast, const RunCost& cost,
                              const Machine& machine) {
  const StageForecast& slowest = forecast.stages.at(forecast.slowest);
  std::string text = fmt::format(
      "{}: {}\n{}\n\n{}\n"
      "predicted: {:.3g} s a step, {:.4g} tokens/s, MFU {}, compute idle for {}, limited by the {} "
      "lane",
      machine.name, machine.about, describe_mesh(forecast), to_text(forecast.ledger()),
      forecast.step_s, forecast.tokens_per_s(), percent(forecast.mfu()),
      percent(forecast.bubble_share), name_of(slowest.bottleneck));
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    const double bytes = slowest.bytes[l];
    const auto lane = static_cast<Lane>(l);
    if (bytes == 0 || is_of_kind(lane, LaneKind::kCompute)) continue;
    text +=
        fmt::format("\n  {:<12} {:>10} a step and rank, busy for {}", name_of(lane),
                    format_size(static_cast<std::size_t>(bytes)), percent(slowest.busy_share[l]));
  }
  if (forecast.has_unequal_stages()) text += '\n' + describe_stages(forecast);
  if (forecast.power_cap) text += '\n' + describe_power_cap(*forecast.power_cap);
  if (cost.tokens == 0) return text;
  text += fmt::format("\nthe run: {:.4g} tokens in {}", cost.tokens, in_days(cost.seconds));
  if (cost.kilowatt_hours) text += fmt::format(", {:.4g} kWh", *cost.kilowatt_hours);
  if (cost.carbon_kg) text += fmt::format(", {:.4g} kg of carbon dioxide", *cost.carbon_kg);
  if (cost.price) text += fmt::format(", price {:.4g}", *cost.price);
  if (cost.written_bytes > 0) {
    text += fmt::format(", {:.3g} TB written to drives", cost.written_bytes * 1e-12);
  }
  return text;
}

std::string forecast_json(const RunForecast& forecast, const RunCost& cost,
                          const Machine& machine) {
  const StageForecast& slowest = forecast.stages.at(forecast.slowest);
  ordered_json results = ordered_json::array();
  results.push_back({{"name", "step"},
                     {"step_s", forecast.step_s},
                     {"tokens_per_s", forecast.tokens_per_s()},
                     {"mfu", forecast.mfu()},
                     {"bubble_share", forecast.bubble_share},
                     {"bottleneck", name_of(slowest.bottleneck)}});
  const Ledger ledger = forecast.ledger();
  for (const Tier tier : kTiers) {
    ordered_json accounts = ordered_json::object();
    for (std::size_t a = 0; a < kAccountCount; ++a) {
      const auto account = static_cast<Account>(a);
      accounts[std::string(name_of(account))] = ledger[tier][account];
    }
    const std::optional<std::size_t>& budget = ledger[tier].budget_bytes;
    results.push_back({{"name", name_of(tier)},
                       {"budget_bytes", budget ? ordered_json(*budget) : ordered_json(nullptr)},
                       {"peak_bytes", ledger[tier].peak_bytes},
                       {"accounts", accounts}});
  }
  ordered_json links = {{"name", "links"}};
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    const auto lane = static_cast<Lane>(l);
    if (is_of_kind(lane, LaneKind::kCompute)) continue;
    links[std::string(name_of(lane))] = {{"bytes", slowest.bytes[l]},
                                         {"busy_share", slowest.busy_share[l]}};
  }
  results.push_back(std::move(links));
  if (forecast.has_unequal_stages()) {
    results.push_back({{"name", "stages"},
                       {"speeds", of_stages(forecast, &StageForecast::speed)},
                       {"units", of_stages(forecast, &StageForecast::units)}});
  }
  if (const std::optional<PowerCap>& cap = forecast.power_cap) {
    results.push_back({{"name", "power_cap"},
                       {"watts", cap->watts},
                       {"full_watts", cap->full_watts},
                       {"clock_share", cap->clock_share}});
  }
  results.push_back({{"name", "run"},
                     {"tokens", cost.tokens},
                     {"seconds", cost.seconds},
                     {"kilowatt_hours", figure_or_null(cost.kilowatt_hours)},
                     {"price", figure_or_null(cost.price)},
                     {"carbon_kg", figure_or_null(cost.carbon_kg)},
                     {"written_bytes", cost.written_bytes}});
  const ordered_json json = {{"schema", "terrace.plan/1"},
                             {"version", terrace_version()},
                             {"host", ordered_json::parse(host_facts_json())},
                             {"machine", machine.name},
                             {"mesh",
                              {{"nodes", forecast.nodes},
                               {"ranks", forecast.mesh.ranks()},
                               {"data", forecast.mesh.data},
                               {"islands", forecast.mesh.islands},
                               {"tensor", forecast.mesh.tensor},
                               {"pipeline", forecast.mesh.pipeline}}},
                             {"results", results}};
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace terrace
