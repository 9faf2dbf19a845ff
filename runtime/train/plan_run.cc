#include "runtime/train/plan_run.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/plan/unit_names.h"
#include "runtime/train/plan_explanation.h"
#include "runtime/train/plan_forecast.h"
#include "runtime/train/plan_gains.h"
#include "runtime/train/run_forecast.h"

namespace terrace {
namespace {

using nlohmann::ordered_json;

// Says why the states of a unit live where they do, on the pipeline stage that has the unit.
std::string explanation_of(const PlannedRun& run, const std::string& unit) {
  const StepModel model = run.stage_model(0);
  const std::optional<std::int32_t> found = find_unit(model, unit);
  const int stage = found.has_value() ? model.stage_of(*found) : 0;
  std::string text = explain_unit(run.plan_stage(stage), unit);
  if (run.mesh().pipeline > 1) text = fmt::format("pipeline stage {}: {}", stage, text);
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

ordered_json gains_json(const std::vector<PlanGain>& gains) {
  ordered_json changes = ordered_json::array();
  for (const PlanGain& gain : gains) {
    changes.push_back({{"change", gain.change},
                       {"of", gain.is_of_machine ? "machine" : "settings"},
                       {"times_as_fast", gain.times_as_fast}});
  }
  return {{"name", "gains"}, {"changes", changes}};
}

// Returns the document of a forecast with the reasons of the slowest stage, and with the gains if
// they were asked for.
std::string document_of(const std::string& forecast, std::size_t stage, const TierPlan& plan,
                        const std::optional<std::vector<PlanGain>>& gains) {
  ordered_json document = ordered_json::parse(forecast);
  ordered_json reasons = ordered_json::parse(reasons_json(plan));
  document["results"].push_back({{"name", "reasons"}, {"stage", stage}, {"reasons", reasons}});
  if (gains.has_value()) document["results"].push_back(gains_json(*gains));
  return document.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

void plan_run(const PlanOptions& options, const Machine& machine, TrainConsole& console) {
  const PlannedRun run(options, machine, PlanEffort::kExplained);
  const RunForecast forecast = run.forecast(run.plan_stages(), machine);
  const RunCost cost = cost_of_run(forecast, run.machine(), options);
  std::optional<std::vector<PlanGain>> gains;
  if (options.what_helps) gains = plan_gains(options, machine, forecast);
  if (options.json) {
    const TierPlan slowest = run.plan_stage(static_cast<int>(forecast.slowest));
    console.say(
        document_of(forecast_json(forecast, cost, machine), forecast.slowest, slowest, gains));
    return;
  }
  console.say(describe_forecast(forecast, cost, machine));
  const std::string& unit = options.train.run.explain;
  if (!unit.empty()) console.say(explanation_of(run, unit));
  if (gains.has_value()) console.say(describe_gains(*gains));
}

}  // namespace terrace
