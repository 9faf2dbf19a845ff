#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "runtime/bench/bench.h"
#include "runtime/bench/bench_device.h"
#include "runtime/config/host_facts.h"
#include "runtime/config/version.h"

namespace terrace {
namespace {

std::string date_text(std::int64_t seconds_since_1970) {
  const auto time = static_cast<std::time_t>(seconds_since_1970);
  std::tm parts = {};
  ::gmtime_r(&time, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

nlohmann::ordered_json options_json(const BenchOptions& options) {
  return {{"threads", options.threads},
          {"repetitions", options.repetitions},
          {"seconds", options.seconds},
          {"drives", std::max<std::size_t>(1, options.nvme.size())},
          {"small", options.small}};
}

nlohmann::ordered_json result_json(const BenchResult& result) {
  nlohmann::ordered_json json = {{"name", result.name},
                                 {"value", result.value.median()},
                                 {"unit", name_of(result.unit)},
                                 {"limit", result.limit.median()},
                                 {"ratio", result.ratio()},
                                 {"value_range", {result.value.low(), result.value.high()}},
                                 {"limit_range", {result.limit.low(), result.limit.high()}},
                                 {"limit_is", result.limit_is},
                                 {"repetitions", result.value.count()}};
  if (result.goal) json["goal"] = *result.goal;
  for (const BenchResult::Detail& detail : result.details) {
    json["details"][detail.name] = detail.text;
  }
  return json;
}

std::string number(double value) {
  return value >= 1e5 ? fmt::format("{:.3g}", value)
                      : fmt::format("{:.{}f}", value, value < 10 ? 3 : 1);
}

std::string spread(const Samples& samples) {
  return fmt::format("{} [{}, {}]", number(samples.median()), number(samples.low()),
                     number(samples.high()));
}

}  // namespace

std::string bench_json(const BenchRun& run, const BenchOptions& options,
                       std::span<const BenchResult> results) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const BenchResult& result : results) list.push_back(result_json(result));
  nlohmann::ordered_json document = {{"schema", "terrace.bench/1"},
                                     {"version", terrace_version()},
                                     {"benchmark", run.bench},
                                     {"args", run.arguments},
                                     {"started", date_text(run.started_s)},
                                     {"duration_ns", run.duration_ns},
                                     {"host", nlohmann::ordered_json::parse(host_facts_json())},
                                     {"options", options_json(options)},
                                     {"results", list}};
  if (options.device != nullptr) document["device"] = options.device->description;
  return document.dump(2) + "\n";
}

std::string bench_table(std::span<const BenchResult> results) {
  constexpr std::string_view kTitle = "result";
  std::size_t widest = kTitle.size();
  for (const BenchResult& result : results) widest = std::max(widest, result.name.size());
  std::string text = fmt::format(
      "Medians [lowest, highest] of interleaved rounds.\n{:<{}}  {:>26}  {:>26}  {:>6}  {}\n",
      kTitle, widest, "value", "limit", "ratio", "unit; the limit is");
  for (const BenchResult& result : results) {
    text += fmt::format("{:<{}}  {:>26}  {:>26}  {:>6.3f}  {}; {}\n", result.name, widest,
                        spread(result.value), spread(result.limit), result.ratio(),
                        name_of(result.unit), result.limit_is);
    if (result.goal && result.ratio() < *result.goal) {
      text += fmt::format("{:<{}}    below the goal of {}\n", "", widest, *result.goal);
    }
    for (const BenchResult::Detail& detail : result.details) {
      text += fmt::format("{:<{}}    {}: {}\n", "", widest, detail.name, detail.text);
    }
  }
  return text;
}

}  // namespace terrace
