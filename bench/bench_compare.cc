#include "bench/bench_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "bench/bench.h"
#include "bench/figure_text.h"
#include "runtime/config/host_facts.h"
#include "runtime/config/version.h"

namespace terrace {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kSchema = "terrace.bench/1";
constexpr auto kVerdicts = std::to_array<std::string_view>(
    {"same", "better", "worse", "one sample", "only before", "only now"});

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw ConfigError(fmt::format("--compare {}: {}", path, why),
                    "give a document that terrace bench KIND --json printed for the same kind");
}

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

json read_document(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream.is_open() || stream.bad() || std::filesystem::is_directory(path)) {
    refuse(path, "it cannot be read");
  }
  json document = json::parse(text.str(), nullptr, false);
  if (!document.is_object()) refuse(path, "it is not a JSON document");
  return document;
}

BenchFigure figure_of(const json& result) {
  const auto& range = result.at("value_range");
  return {.name = result.at("name").get<std::string>(),
          .unit = result.at("unit").get<std::string>(),
          .value = result.at("value").get<double>(),
          .low = range.at(0).get<double>(),
          .high = range.at(1).get<double>(),
          .repetitions = result.at("repetitions").get<int>()};
}

const BenchFigure* find(const std::vector<BenchFigure>& figures, const BenchFigure& like) {
  const auto found = std::ranges::find_if(figures, [&](const BenchFigure& figure) {
    return figure.name == like.name && figure.unit == like.unit;
  });
  return found == figures.end() ? nullptr : &*found;
}

bool is_rate(std::string_view unit) { return unit.ends_with("/s"); }

ComparedFigure compare(const BenchFigure& before, const BenchFigure& now) {
  ComparedFigure compared = {
      .name = now.name, .unit = now.unit, .before = before.value, .now = now.value};
  if (before.value != 0) compared.ratio = now.value / before.value;
  compared.spread = std::max(before.high - before.low, now.high - now.low);
  if (std::min(before.repetitions, now.repetitions) < 2) {
    compared.verdict = BenchVerdict::kOneSample;
  } else if (std::abs(now.value - before.value) > compared.spread) {
    const bool is_better = (now.value > before.value) == is_rate(now.unit);
    compared.verdict = is_better ? BenchVerdict::kBetter : BenchVerdict::kWorse;
  }
  return compared;
}

ordered_json number_or_null(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json figures_json(const BenchComparison& comparison) {
  ordered_json list = ordered_json::array();
  for (const ComparedFigure& figure : comparison.figures) {
    const bool differs =
        figure.verdict == BenchVerdict::kBetter || figure.verdict == BenchVerdict::kWorse;
    list.push_back({{"name", figure.name},
                    {"unit", figure.unit},
                    {"old", number_or_null(figure.before)},
                    {"new", number_or_null(figure.now)},
                    {"ratio", number_or_null(figure.ratio)},
                    {"spread", figure.spread},
                    {"differs", differs},
                    {"verdict", name_of(figure.verdict)}});
  }
  return list;
}

std::string table_row(const ComparedFigure& figure) {
  constexpr std::size_t kNameColumns = 40;
  const ShownUnit unit = shown_unit(figure.before.value_or(figure.now.value_or(0)), figure.unit);
  const auto number = [&](const std::optional<double>& value) {
    return value ? short_number(*value * unit.factor) : std::string("-");
  };
  const bool is_long = figure.name.size() > kNameColumns;
  const std::string verdict =
      figure.verdict == BenchVerdict::kSame ? "" : std::string(name_of(figure.verdict));
  return fmt::format("{}{:<{}}  {:>9} {:>9} {:>9}  {:<10} {}", is_long ? figure.name + "\n" : "",
                     is_long ? "" : figure.name, kNameColumns, number(figure.before),
                     number(figure.now), figure.ratio ? short_number(*figure.ratio) : "-",
                     unit.name, verdict);
}

std::string without_end_spaces(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

}  // namespace

std::string_view name_of(BenchVerdict verdict) {
  return kVerdicts.at(static_cast<std::size_t>(verdict));
}

std::string bench_setting(const std::string& document) {
  const json facts = json::parse(document);
  std::string setting = text_of(facts.value("host", json::object()), "cpu");
  const json options = facts.value("options", json::object());
  for (const char* const key : {"threads", "small", "size_bytes", "tokens"}) {
    const auto found = options.find(key);
    if (found != options.end()) setting += fmt::format(", {} {}", key, found->dump());
  }
  const std::string device = text_of(facts, "device");
  return device.empty() ? setting : setting + ", " + device;
}

BenchFigures read_bench_figures(const std::string& path, const std::string& bench) {
  const json document = read_document(path);
  const std::string schema = text_of(document, "schema");
  if (schema != kSchema) {
    refuse(path, fmt::format("its schema is '{}', not '{}'", schema, kSchema));
  }
  BenchFigures figures = {.bench = text_of(document, "benchmark"), .setting = {}, .figures = {}};
  if (!bench.empty() && figures.bench != bench) {
    refuse(path, fmt::format("it belongs to bench {}, not to bench {}", figures.bench, bench));
  }
  try {
    figures.setting = bench_setting(document.dump());
    for (const json& result : document.at("results")) figures.figures.push_back(figure_of(result));
  } catch (const json::exception& error) {
    refuse(path, error.what());
  }
  return figures;
}

BenchComparison compare_figures(const BenchFigures& before, const BenchFigures& now) {
  BenchComparison comparison = {
      .setting_before = before.setting, .setting_now = now.setting, .figures = {}};
  for (const BenchFigure& old : before.figures) {
    if (const BenchFigure* figure = find(now.figures, old)) {
      comparison.figures.push_back(compare(old, *figure));
    } else {
      comparison.figures.push_back({.name = old.name,
                                    .unit = old.unit,
                                    .before = old.value,
                                    .verdict = BenchVerdict::kOnlyBefore});
    }
  }
  for (const BenchFigure& figure : now.figures) {
    if (find(before.figures, figure) != nullptr) continue;
    comparison.figures.push_back({.name = figure.name,
                                  .unit = figure.unit,
                                  .now = figure.value,
                                  .verdict = BenchVerdict::kOnlyNow});
  }
  return comparison;
}

std::string comparison_table(const BenchComparison& comparison) {
  std::string text;
  if (comparison.setting_before != comparison.setting_now) {
    text += wrapped(fmt::format("Measured differently: old with {}; new with {}.",
                                comparison.setting_before, comparison.setting_now),
                    0);
  }
  text += fmt::format("{:<40}  {:>9} {:>9} {:>9}  {}\n", "result", "old", "new", "new/old", "unit");
  for (const ComparedFigure& figure : comparison.figures) {
    text += without_end_spaces(table_row(figure));
  }
  return text +
         "better, worse: the medians differ by more than the spread of either side's samples.\n";
}

std::string comparison_csv(const BenchComparison& comparison) {
  const auto number = [](const std::optional<double>& value) {
    return value ? fmt::format("{}", *value) : std::string();
  };
  std::string text = "name,old,new,ratio,unit,spread,verdict\n";
  for (const ComparedFigure& figure : comparison.figures) {
    text += fmt::format("{},{},{},{},{},{},{}\n", figure.name, number(figure.before),
                        number(figure.now), number(figure.ratio), figure.unit, figure.spread,
                        name_of(figure.verdict));
  }
  return text;
}

std::string compared_figures_json(const BenchComparison& comparison) {
  return figures_json(comparison).dump();
}

std::string comparison_json(const std::string& bench, const BenchComparison& comparison) {
  const ordered_json document = {{"schema", "terrace.bench_comparison/1"},
                                 {"version", terrace_version()},
                                 {"host", ordered_json::parse(host_facts_json())},
                                 {"benchmark", bench},
                                 {"old_setting", comparison.setting_before},
                                 {"new_setting", comparison.setting_now},
                                 {"results", figures_json(comparison)}};
  return document.dump(2) + "\n";
}

}  // namespace terrace
