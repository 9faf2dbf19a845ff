#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/compare/hash_comparison.h"
#include "runtime/compare/recorded_run.h"

namespace terrace {

// A key of config.toml with other values; empty: not set.
struct OptionDifference {
  std::string key;
  std::string a;
  std::string b;
  bool may_change_results = true;  // else it is one of the switches of docs/numerics.md
};

// The first step in which a column of metrics.jsonl differs.
struct ColumnDifference {
  std::string column;
  std::int64_t step = 0;
  std::string a;
  std::string b;
};

// The result of a comparison of two runs.
struct RunDiff {
  bool is_equal = false;                 // in all that both have recorded
  std::optional<HashComparison> hashes;  // none: not both have any
  std::vector<ColumnDifference> columns;
  std::int64_t rows = 0;  // compared
  std::int64_t first_row = 0;
  std::int64_t last_row = 0;
  std::vector<OptionDifference> options;
  std::vector<std::string> notes;
};

// Compares two runs. Throws ConfigError where they have nothing that could be compared.
RunDiff diff_runs(const RecordedRun& a, const RecordedRun& b);

// Returns the keys of config.toml that do not change what a run computes.
std::span<const std::string_view> keys_without_effect();

// Returns the lines for people, and one result of the JSON document.
std::string diff_text(const RecordedRun& a, const RecordedRun& b, const RunDiff& diff);
std::string diff_json(const RecordedRun& a, const RecordedRun& b, const RunDiff& diff);

}  // namespace terrace
