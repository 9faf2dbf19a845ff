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

// What a benchmark prints: a document, lines of comma-separated values, or a table.
namespace terrace {

// What ended a benchmark before it had measured everything, and what it has not measured at all.
struct BenchCut {
  std::string by;  // in words: "the time limit"
  std::vector<std::string> missing;
};

// What was run.
struct BenchRun {
  std::string_view bench;              // its name
  std::vector<std::string> arguments;  // behind the name, without what names places of the machine
  std::int64_t started_s = 0;          // of the calendar, since 1970
  std::int64_t duration_ns = 0;
  std::vector<DrivePlace> drives;  // that were used
  std::optional<BenchCut> cut;
};

// Everything that one benchmark has to tell.
struct BenchReport {
  const BenchRun& run;
  const BenchOptions& options;
  std::span<const BenchResult> results;
  // With --compare, what earlier results are to these.
  std::optional<BenchComparison> comparison = std::nullopt;
};

// The document that --json prints. Names of details are unique within a result; to break that is a
// bug that aborts.
std::string bench_json(const BenchReport& report);
// A line for each result under one with the columns' names.
std::string bench_csv(const BenchReport& report);
// A table of at most kTableColumns columns for a console, and below each result how it was
// measured.
std::string bench_table(const BenchReport& report);

// The figures of a report, for comparisons.
BenchFigures figures_of(const BenchRun& run, const BenchOptions& options,
                        std::span<const BenchResult> results);

}  // namespace terrace
