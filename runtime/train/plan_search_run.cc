#include "runtime/train/plan_search_run.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/train/plan_search.h"
#include "runtime/train/plan_table.h"

namespace terrace {
namespace {

// In the first line of a result.
constexpr const char* kMark = "Chosen by terrace plan --auto";

std::string about(const PlanOptions& options, const Machine& machine, const SearchedPlan& best) {
  const RunForecast& forecast = *best.outcome.forecast;
  return fmt::format(
      "{} for {} rank{} on {} node{} of {}:\n{}\n"
      "Predicted: {} a step, {} tokens/s.",
      kMark, forecast.mesh.ranks(), forecast.mesh.ranks() == 1 ? "" : "s", options.nodes,
      options.nodes == 1 ? "" : "s", machine.name, describe(best.choice),
      seconds_cell(forecast.step_s), count_cell(forecast.tokens_per_s()));
}

// Returns the text broken after commas into lines that end before the 80th column.
std::string broken(const std::string& text) {
  constexpr std::size_t kIndent = 40;
  constexpr std::size_t kWidth = 80 - kIndent;
  std::string lines;
  std::size_t begin = 0;
  while (text.size() - begin > kWidth) {
    std::size_t end = text.rfind(", ", begin + kWidth - 1);
    if (end == std::string::npos || end <= begin) break;
    lines += text.substr(begin, end + 1 - begin) + "\n" + std::string(kIndent, ' ');
    begin = end + 2;
  }
  return lines + text.substr(begin);
}

std::string choice_line(const SearchedPlan& plan) {
  const RunForecast& forecast = *plan.outcome.forecast;
  return fmt::format("\n{:>8}  {:>8}  {:>4.1f} %  {:<10}  {}", seconds_cell(forecast.step_s),
                     count_cell(forecast.tokens_per_s()), 100 * forecast.mfu(),
                     name_of(forecast.stages.at(forecast.slowest).bottleneck),
                     broken(describe(plan.choice)));
}

std::string describe_search(const PlanSearch& search) {
  std::string text = fmt::format(
      "{} divisions of ranks and batch; {} plans compared, {} of them refused\n\n"
      "{:>8}  {:>8}  {:>6}  {:<10}  settings",
      search.choices, search.planned, search.refused, "step", "tokens/s", "MFU", "limit");
  for (const SearchedPlan& plan : search.best) text += choice_line(plan);
  if (search.left > 0) {
    text += fmt::format(
        "\n\nThe search reached its limit: {} divisions with promising estimates were not planned.",
        search.left);
  }
  return text;
}

std::string document_of(const PlanSearch& search, const Machine& machine) {
  PlanTable table;
  table.titles = {"settings"};
  for (const SearchedPlan& plan : search.best) {
    table.rows.push_back({{describe(plan.choice)}, plan.outcome});
  }
  nlohmann::ordered_json document =
      nlohmann::ordered_json::parse(to_json(table, "terrace.plan_search/1", machine.name));
  document["search"] = {{"divisions", search.choices},
                        {"planned", search.planned},
                        {"refused", search.refused},
                        {"not_planned", search.left}};
  return document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// Throws ConfigError where the result could not be written, or where a file would be lost that no
// search has written.
void check_result_file(const std::string& path) {
  const std::filesystem::path file(path);
  if (!std::filesystem::is_directory(file.has_parent_path() ? file.parent_path() : ".")) {
    throw ConfigError(
        fmt::format("--auto {}: there is no directory {}", path, file.parent_path().string()),
        "make it, or name another file");
  }
  if (!std::filesystem::exists(file)) return;
  std::ifstream present(file);
  std::string line;
  std::getline(present, line);
  if (line.find(kMark) != std::string::npos) return;
  throw ConfigError(fmt::format("--auto {}: the file exists, and no search has written it", path),
                    "name another file");
}

}  // namespace

void search_plan(const PlanOptions& options, const Machine& machine, TrainConsole& console) {
  check_result_file(options.auto_file);
  const PlanSearch search = search_plans(options, machine);
  const SearchedPlan& best = search.best.front();
  write_durable_file(options.auto_file,
                     choice_toml(options, best.choice, about(options, machine, best)));
  if (options.json) return console.say(document_of(search, machine));
  console.say(describe_search(search));
  const int ranks = best.outcome.forecast->mesh.ranks();
  const std::string launcher =
      options.nodes > 1 ? fmt::format("mpirun -n {} ", ranks) : std::string();
  console.say(fmt::format("wrote {}; {}terrace train --config {} takes it", options.auto_file,
                          launcher, options.auto_file));
}

}  // namespace terrace
