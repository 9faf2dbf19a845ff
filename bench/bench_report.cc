#include "bench/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "bench/bench_device.h"
#include "runtime/config/host_facts.h"
#include "runtime/config/version.h"

namespace terrace {
namespace {

using nlohmann::ordered_json;

std::string date_text(std::int64_t seconds_since_1970) {
  const auto time = static_cast<std::time_t>(seconds_since_1970);
  std::tm parts = {};
  ::gmtime_r(&time, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

ordered_json options_json(const BenchOptions& options) {
  ordered_json json = {
      {"threads", options.threads}, {"repetitions", options.repetitions},
      {"seconds", options.seconds}, {"drives", std::max<std::size_t>(1, options.nvme.size())},
      {"small", options.small},     {"grid", options.grid}};
  if (options.bytes != 0) json["size_bytes"] = options.bytes;
  if (options.sizes) {
    json["sizes"] = {{"first_bytes", options.sizes->first},
                     {"last_bytes", options.sizes->last},
                     {"factor", options.sizes->factor}};
  }
  if (options.tokens != 0) json["tokens"] = options.tokens;
  if (!options.only.empty()) json["only"] = options.only;
  if (options.time_limit_s) json["time_limit_s"] = *options.time_limit_s;
  return json;
}

ordered_json detail_json(const BenchResult::Detail& detail) {
  ordered_json json = {{"value", detail.values.median()}, {"unit", detail.unit}};
  if (detail.values.count() > 1) json["samples"] = detail.values.values();
  return json;
}

// Adds a value under a name that no other value has.
void add_unique(ordered_json& object, const std::string& name, ordered_json value) {
  TERRACE_CHECK(!object.contains(name));
  object[name] = std::move(value);
}

ordered_json shape_rate_json(const BenchResult::ShapeRate& rate) {
  return {{"tool", rate.tool},
          {"block_bytes", rate.block_bytes},
          {"depth", rate.depth},
          {"gb_per_s", rate.gb_per_s},
          {"iops", rate.gb_per_s * 1e9 / static_cast<double>(rate.block_bytes)},
          {"rounds", rate.rounds}};
}

// Returns the spread, or null for a single round, which has none.
ordered_json spread_json(const BenchResult& result) {
  return result.value.count() < 2 ? ordered_json() : ordered_json(result.spread());
}

ordered_json result_json(const BenchResult& result) {
  ordered_json json = {{"name", result.name},
                       {"value", result.value.median()},
                       {"unit", name_of(result.unit)},
                       {"limit", result.limit.median()},
                       {"ratio", result.ratio()},
                       {"spread", spread_json(result)},
                       {"unsteady", result.is_unsteady()},
                       {"value_range", {result.value.low(), result.value.high()}},
                       {"limit_range", {result.limit.low(), result.limit.high()}},
                       {"limit_is", result.limit_is},
                       {"repetitions", result.value.count()},
                       {"value_samples", result.value.values()},
                       {"limit_samples", result.limit.values()}};
  if (result.goal) json["goal"] = *result.goal;
  ordered_json details = ordered_json::object();
  for (const BenchResult::Detail& detail : result.details) {
    add_unique(details, detail.name, detail_json(detail));
  }
  if (!details.empty()) json["details"] = details;
  ordered_json notes = ordered_json::object();
  for (const BenchResult::Note& note : result.notes) add_unique(notes, note.name, note.text);
  if (!notes.empty()) json["notes"] = notes;
  for (const BenchResult::ShapeRate& rate : result.matrix) {
    json["matrix"].push_back(shape_rate_json(rate));
  }
  return json;
}

ordered_json drive_json(const DrivePlace& place) {
  return {{"device", place.device},
          {"model", place.model},
          {"kind", place.kind},
          {"file_system", place.file_system},
          {"free_bytes", place.free_bytes},
          {"total_bytes", place.total_bytes}};
}

ordered_json cut_json(const BenchRun& run) {
  return {{"by", run.cut->by},
          {"after_s", static_cast<double>(run.duration_ns) * 1e-9},
          {"missing", run.cut->missing}};
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

std::string bench_json(const BenchReport& report) {
  const BenchRun& run = report.run;
  ordered_json list = ordered_json::array();
  for (const BenchResult& result : report.results) list.push_back(result_json(result));
  ordered_json document = {{"schema", "terrace.bench/1"},
                           {"version", terrace_version()},
                           {"benchmark", run.bench},
                           {"args", run.arguments},
                           {"started", date_text(run.started_s)},
                           {"duration_ns", run.duration_ns},
                           {"host", ordered_json::parse(host_facts_json())},
                           {"options", options_json(report.options)},
                           {"complete", !run.cut.has_value()}};
  if (run.cut) document["cut_short"] = cut_json(run);
  if (!run.drives.empty()) {
    document["drives"] = ordered_json::array();
    for (const DrivePlace& place : run.drives) document["drives"].push_back(drive_json(place));
  }
  if (report.options.device != nullptr) document["device"] = report.options.device->description;
  document["results"] = list;
  if (report.comparison) {
    document["comparison"] = ordered_json::parse(compared_figures_json(*report.comparison));
  }
  return document.dump(2) + "\n";
}

std::string bench_csv(const BenchReport& report) {
  std::string text =
      "benchmark,name,value,unit,limit,ratio,value_low,value_high,limit_low,limit_high,"
      "repetitions,unsteady,limit_is\n";
  for (const BenchResult& result : report.results) {
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{}\n", report.run.bench, result.name,
                        result.value.median(), name_of(result.unit), result.limit.median(),
                        result.ratio(), result.value.low(), result.value.high(), result.limit.low(),
                        result.limit.high(), result.value.count(), result.is_unsteady(),
                        csv_field(result.limit_is));
  }
  if (report.comparison) text += "\n" + comparison_csv(*report.comparison);
  return text;
}

BenchFigures figures_of(const BenchRun& run, const BenchOptions& options,
                        std::span<const BenchResult> results) {
  const BenchReport report = {.run = run, .options = options, .results = {}};
  const ordered_json facts = ordered_json::parse(bench_json(report));
  BenchFigures figures = {.bench = std::string(run.bench), .setting = {}, .figures = {}};
  figures.setting = bench_setting(facts.dump());
  for (const BenchResult& result : results) {
    figures.figures.push_back({.name = result.name,
                               .unit = std::string(name_of(result.unit)),
                               .value = result.value.median(),
                               .low = result.value.low(),
                               .high = result.value.high(),
                               .repetitions = result.value.count()});
  }
  return figures;
}

}  // namespace terrace
