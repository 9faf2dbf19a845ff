#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "runtime/bench/samples.h"

// Benchmarks of parts of Terrace, each beside what the machine itself can do, measured in the same
// run. One file per benchmark; benches() is the list.
namespace terrace {

struct BenchDevice;  // runtime/bench/bench_device.h

inline constexpr std::int64_t kOverlapSequence = 512;

struct BenchOptions {
  // What is measured in place of the CPU; null: the CPU. For benchmarks that Bench::on_device.
  const BenchDevice* device = nullptr;
  std::vector<std::string> nvme;  // directories on the drives; none: the current directory
  int threads = 1;
  int repetitions = 7;    // rounds of interleaved measurements
  double seconds = 1.0;   // a measurement takes about as long, where it can be cut to length
  std::size_t bytes = 0;  // the working set; 0: what the benchmark takes for itself
  // Of bench step: the steps of so many ranks as threads, with this ZeRO stage.
  std::optional<int> zero_stage;
  int local_ranks = 1;
  // Of bench overlap: tokens of a step, a multiple of kOverlapSequence; 0: of several sizes. Of
  // bench step on a device: steps of so many only.
  std::int64_t tokens = 0;
  std::string preset;  // of bench step on a device: steps of this model only; empty: of all
  bool small = false;  // everything as small as can be: does it run? for tests
};

enum class BenchUnit : std::uint8_t {
  kGigabytesPerSecond,  // 1e9 bytes
  kGigaflopsPerSecond,
  kElementsPerSecond,
  kTokensPerSecond,
  kSeconds,
  kMillisecondsPerGigabyte,
  kNanosecondsPerElement,
  kBytesPerElement,
  kTeraflopsPerSecond,
};

std::string_view name_of(BenchUnit unit);
// Whether more is better: a rate, not a time or a size.
bool is_rate(BenchUnit unit);

struct BenchResult {
  std::string name;  // snake_case
  BenchUnit unit = BenchUnit::kGigabytesPerSecond;
  Samples value;
  Samples limit;         // what the machine can do, taken in the same rounds as `value`
  std::string limit_is;  // in words: "memcpy, 1 thread"
  // More about how it was measured, and other figures of the same rounds, for people.
  struct Detail {
    std::string name;
    std::string text;
  };
  std::vector<Detail> details = {};
  std::optional<double> goal = std::nullopt;  // that the ratio should reach

  // Of the medians: value / limit for rates, limit / value for the others. 1 is as good as it gets.
  double ratio() const;
};

// What a benchmark takes of the options; of the others, those that are not about rounds and output
// mean nothing there.
struct BenchTakes {
  bool threads = false;
  bool bytes = false;
  bool drives = false;
};

struct Bench {
  std::string_view name;     // "io"
  std::string_view summary;  // one line for the help
  // Runs it; says on `log` what it is at. Throws ConfigError, EnvironmentError, OutOfMemory,
  // IoError, CommError. No results: another rank of the job has them.
  std::vector<BenchResult> (*run)(const BenchOptions& options, Log& log) = nullptr;
  BenchTakes on_host = {};
  std::optional<BenchTakes> on_device = std::nullopt;  // set: measures devices too
};

// In the order of the help.
std::span<const Bench> benches();

// What was run, for the document.
struct BenchRun {
  std::string_view bench;              // its name
  std::vector<std::string> arguments;  // behind the name, without what names places of the machine
  std::int64_t started_s = 0;          // of the calendar, since 1970
  std::int64_t duration_ns = 0;
};

// The document that --json prints.
std::string bench_json(const BenchRun& run, const BenchOptions& options,
                       std::span<const BenchResult> results);
// An aligned table for a console, and the details below it.
std::string bench_table(std::span<const BenchResult> results);

}  // namespace terrace
