#include "runtime/report/metrics_table.h"

#include <fmt/format.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/json_depth.h"
#include "runtime/report/number_text.h"

namespace terrace::report {
namespace {

constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

void flatten_row(const nlohmann::json& row, const std::string& prefix,
                 std::map<std::string, double>& values) {
  for (const auto& [key, value] : row.items()) {
    if (value.is_object()) {
      flatten_row(value, prefix + key + "/", values);
    } else if (value.is_number()) {
      values[prefix + key] = value.get<double>();
    } else if (value.is_null()) {
      values[prefix + key] = kNoValue;
    } else if (value.is_boolean()) {
      values[prefix + key] = value.get<bool>() ? 1 : 0;
    }
  }
}

// Returns the numbers of a row; none for a line that is not a row.
std::map<std::string, double> values_of_line(const std::string& line) {
  std::map<std::string, double> values;
  if (nests_deeper(line)) return values;
  const nlohmann::json row = nlohmann::json::parse(line, nullptr, false);
  if (!row.is_object() || !row.contains("step") || !row["step"].is_number()) return values;
  flatten_row(row, "", values);
  return values;
}

}  // namespace

std::span<const double> MetricsTable::column(std::string_view name) const {
  const auto found = columns_.find(name);
  return found == columns_.end() ? std::span<const double>() : found->second;
}

double MetricsTable::last(std::string_view name) const {
  const std::span<const double> values = column(name);
  return values.empty() ? kNoValue : values.back();
}

std::vector<std::string> MetricsTable::columns_of(std::string_view prefix) const {
  std::vector<std::string> names;
  for (const auto& [name, values] : columns_) {
    if (name.starts_with(prefix)) names.push_back(name);
  }
  return names;
}

void MetricsTable::add(const std::map<std::string, double>& values) {
  for (const auto& [name, value] : values) {
    std::vector<double>& column = columns_[name];
    column.resize(rows_, kNoValue);
    column.push_back(value);
  }
  ++rows_;
  for (auto& [name, column] : columns_) column.resize(rows_, kNoValue);
}

MetricsTable read_metrics(const std::string& path, std::vector<std::string>& remarks) {
  MetricsTable table;
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    remarks.emplace_back(
        "metrics.jsonl is missing or cannot be read, so there are no curves and no measured times. "
        "A training writes it from its first step on.");
    return table;
  }
  std::int64_t dropped = 0;
  bool is_last_torn = false;
  for (std::string line; std::getline(stream, line);) {
    if (line.empty()) continue;
    const std::map<std::string, double> values = values_of_line(line);
    is_last_torn = values.empty();
    if (is_last_torn) {
      ++dropped;
    } else {
      table.add(values);
    }
  }
  if (is_last_torn) {
    --dropped;
    remarks.emplace_back(
        "The last line of metrics.jsonl is incomplete and is left out: the training is writing it, "
        "or was killed while it wrote.");
  }
  if (dropped > 0) {
    remarks.push_back(fmt::format("{} of metrics.jsonl cannot be read as rows and are left out.",
                                  counted(dropped, "line")));
  }
  if (table.rows() == 0) {
    remarks.emplace_back("metrics.jsonl has no complete row: no step has ended yet.");
  }
  return table;
}

}  // namespace terrace::report
