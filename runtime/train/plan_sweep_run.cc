#include "runtime/train/plan_sweep_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/config/plan_options.h"
#include "runtime/model/model_directory.h"
#include "runtime/train/plan_table.h"

namespace terrace {
namespace {

constexpr std::chrono::minutes kLongest{10};

std::optional<std::string> name_of_all(const std::vector<Machine>& machines) {
  const std::string& name = machines.front().name;
  if (std::ranges::count(machines, name, &Machine::name) != std::ssize(machines)) return {};
  return name;
}

}  // namespace

void sweep_plans(const PlanSweep& sweep, TrainConsole& console) {
  // All flags, models and machines are read before anything is planned.
  std::vector<PlanOptions> plans;
  std::vector<Machine> machines;
  for (std::size_t c = 0; c < sweep.combinations(); ++c) {
    PlanOptions& plan = plans.emplace_back(parse_plan_options(sweep.arguments_of(c)));
    plan.train.model.model = directory_of_model(plan.train.model.model);
    machines.push_back(planned_machine(plan));
  }
  check_plan_modes(plans.front(), true);
  PlanTable table;
  for (const SweptFlag& flag : sweep.flags) table.titles.push_back(flag.name);
  const auto end = std::chrono::steady_clock::now() + kLongest;
  for (std::size_t c = 0; c < plans.size(); ++c) {
    PlanRow row{sweep.values_of(c), {}};
    if (std::chrono::steady_clock::now() < end) {
      row.outcome = try_plan(plans[c], machines[c], PlanEffort::kBrief);
    } else {
      row.outcome.refusal = fmt::format("not planned: the sweep took {} minutes", kLongest.count());
    }
    table.rows.push_back(std::move(row));
  }
  const PlanOptions& first = plans.front();
  console.say(first.csv    ? to_csv(table)
              : first.json ? to_json(table, "terrace.plan_sweep/1", name_of_all(machines))
                           : to_text(table));
}

}  // namespace terrace
