#include "runtime/report/metrics_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/json_depth.h"
#include "runtime/report/number_text.h"

namespace terrace::report {
namespace {

constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

bool has_only_numbers(const nlohmann::json& list) {
  return std::ranges::all_of(list, [](const nlohmann::json& one) { return one.is_number(); });
}

void flatten_row(const nlohmann::json& json, const std::string& prefix, MetricsRow& row) {
  for (const auto& [key, value] : json.items()) {
    if (value.is_object()) {
      flatten_row(value, prefix + key + "/", row);
    } else if (value.is_number()) {
      row.values[prefix + key] = value.get<double>();
    } else if (value.is_null()) {
      row.values[prefix + key] = kNoValue;
    } else if (value.is_boolean()) {
      row.values[prefix + key] = value.get<bool>() ? 1 : 0;
    } else if (value.is_array() && has_only_numbers(value)) {
      row.lists[prefix + key] = value.get<std::vector<double>>();
    }
  }
}

// Returns a row without values for a line that is not a row.
MetricsRow row_of_line(const std::string& line) {
  MetricsRow row;
  if (nests_deeper(line)) return row;
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number()) return row;
  flatten_row(json, "", row);
  return row;
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

ListSums MetricsTable::list_sums(std::string_view name) const {
  const auto found = lists_.find(name);
  return found == lists_.end() ? ListSums() : found->second;
}

void MetricsTable::add(const MetricsRow& row) {
  for (const auto& [name, list] : row.lists) {
    ListSums& all = lists_[name];
    if (all.sums.size() != list.size()) {
      all = {.sums = std::vector<double>(list.size()), .first_row = all.sums.empty() ? 0 : rows_};
    }
    for (std::size_t i = 0; i < list.size(); ++i) all.sums[i] += list[i];
  }
  for (const auto& [name, value] : row.values) {
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
    const MetricsRow row = row_of_line(line);
    is_last_torn = row.values.empty();
    if (is_last_torn) {
      ++dropped;
    } else {
      table.add(row);
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
