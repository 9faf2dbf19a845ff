#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/bench.h"
#include "bench/bench_compare.h"
#include "bench/drive_check.h"

// The output of a benchmark: a document, lines of comma-separated values, or a table.
namespace terrace {

// The reason why a benchmark ended before it had measured everything, and the results that it has
// not measured at all.
struct BenchCut {
  std::string by;  // in words: "the time limit"
  std::vector<std::string> missing;
};

// One run of a benchmark.
struct BenchRun {
  std::string_view bench;              // its name
  std::vector<std::string> arguments;  // after the name; paths of the machine are replaced by PATH
  std::int64_t started_s = 0;          // calendar time, since 1970
  std::int64_t duration_ns = 0;
  std::vector<DrivePlace> drives;  // that were used
  std::optional<BenchCut> cut;
};

// Everything that one benchmark has to tell.
struct BenchReport {
  const BenchRun& run;
  const BenchOptions& options;
  std::span<const BenchResult> results;
  // With --compare, these results compared with earlier ones.
  std::optional<BenchComparison> comparison = std::nullopt;
};

// Returns the document that --json prints. Names of details are unique within a result; a name that
// occurs twice is a bug, and aborts.
std::string bench_json(const BenchReport& report);
// Returns a line for each result, below a line with the columns' names.
std::string bench_csv(const BenchReport& report);
// Returns a table of at most kTableColumns columns for a console, and below each result how it was
// measured.
std::string bench_table(const BenchReport& report);

// Returns the figures of a report, for comparisons.
BenchFigures figures_of(const BenchRun& run, const BenchOptions& options,
                        std::span<const BenchResult> results);

}  // namespace terrace
