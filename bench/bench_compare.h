#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Results of one benchmark at two times, or of two versions.
namespace terrace {

// One result of a document.
struct BenchFigure {
  std::string name;
  std::string unit;
  double value = 0;
  double low = 0, high = 0;  // of its samples
  int repetitions = 0;
};

// The part of a document that is compared.
struct BenchFigures {
  std::string bench;
  std::string setting;  // what figures depend on besides the machine's state: processor, threads
  std::vector<BenchFigure> figures;
};

// Reads a document of `terrace bench NAME --json`. Throws ConfigError naming the path if the file
// is no such document, has another schema, or is of another benchmark than `bench` (empty: any).
BenchFigures read_bench_figures(const std::string& path, const std::string& bench);

// Returns in words what a document's figures depend on besides the state of the machine.
std::string bench_setting(const std::string& document);

enum class BenchVerdict : std::uint8_t {
  kSame,  // the difference is within the spread of the samples
  kBetter,
  kWorse,
  kOneSample,   // one of them has one sample, so its spread is unknown
  kOnlyBefore,  // there is no new result of this name and unit
  kOnlyNow,
};

std::string_view name_of(BenchVerdict verdict);

struct ComparedFigure {
  std::string name;
  std::string unit;
  std::optional<double> before = std::nullopt;
  std::optional<double> now = std::nullopt;
  std::optional<double> ratio = std::nullopt;  // now / before
  double spread = 0;  // highest less lowest sample, of the one that is farther apart
  BenchVerdict verdict = BenchVerdict::kSame;
};

struct BenchComparison {
  std::string setting_before, setting_now;
  std::vector<ComparedFigure> figures;
};

// Returns the figures in the order of the earlier document, then those that only the later one has.
BenchComparison compare_figures(const BenchFigures& before, const BenchFigures& now);

// A table of at most kTableColumns columns.
std::string comparison_table(const BenchComparison& comparison);
std::string comparison_csv(const BenchComparison& comparison);
// Returns a document of its own, for two documents that are compared without measuring.
std::string comparison_json(const std::string& bench, const BenchComparison& comparison);
// The list "comparison" of a document, as JSON text.
std::string compared_figures_json(const BenchComparison& comparison);

}  // namespace terrace
