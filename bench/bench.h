#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "bench/samples.h"
#include "parallel/communicator.h"

// Benchmarks of parts of Terrace, each beside what the machine itself can do, measured in the same
// run. One file per benchmark; benches() is the list.
namespace terrace {

struct BenchDevice;   // bench/bench_device.h
class BenchRecord;    // bench/bench_record.h
struct MachineSpeed;  // bench/bench_cost.h

inline constexpr std::int64_t kOverlapSequence = 512;

// Sizes that grow by a factor: the first one, and as many more as are not above the last one.
struct SizeRange {
  std::size_t first = 8;
  std::size_t last = 8;
  std::size_t factor = 2;
};

struct BenchOptions {
  // The device that is measured in place of the CPU; null: the CPU. For benchmarks that set
  // Bench::on_device.
  const BenchDevice* device = nullptr;
  std::vector<std::string> nvme;  // directories on the drives; none: temporary_directory()
  int threads = 1;
  int repetitions = 7;                 // rounds of interleaved measurements
  double seconds = 1.0;                // about how long a measurement takes, where it can be cut
  std::size_t bytes = 0;               // the working set; 0: what the benchmark takes for itself
  bool grid = true;                    // for bench io: tries every block size with every depth
  std::optional<double> time_limit_s;  // of the whole benchmark
  // Whether the time limit is shorter than the whole benchmark is expected to take. Then quick
  // measurements come first.
  bool hurried = false;
  // The measured speed of the machine if the benchmark is hurried; else null.
  const MachineSpeed* speed = nullptr;
  // For bench step: steps of `local_ranks` ranks as threads, with this ZeRO stage.
  std::optional<int> zero_stage;
  int local_ranks = 1;
  // For bench collective with ranks on several hosts.
  HierarchicalUse hierarchical = HierarchicalUse::kAuto;
  std::optional<SizeRange> sizes;  // for bench collective; unset: the sizes that it has by itself
  // For bench overlap: tokens of a step, a multiple of kOverlapSequence; 0: several sizes. For
  // bench step on a device: measures only the steps with this number of tokens; 0: all.
  std::int64_t tokens = 0;
  std::string preset;  // for bench step on a device: steps of this model only; empty: all
  bool small = false;  // everything as small as possible: does it run? for tests
  // Patterns of the names of results that are measured; empty: all are (bench_only.h).
  std::vector<std::string> only;
};

// Returns the options of the part that a hurried benchmark measures first, so that there is some
// result: the same options with everything as small as possible. Returns nothing if there is no
// hurry, or if everything is small anyway.
std::optional<BenchOptions> quick_options(const BenchOptions& options);

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
// Returns whether more is better: a rate, not a time or a size.
bool is_rate(BenchUnit unit);

struct BenchResult {
  std::string name;  // snake_case
  BenchUnit unit = BenchUnit::kGigabytesPerSecond;
  Samples value;
  Samples limit;         // what the machine can do, taken in the same rounds as `value`
  std::string limit_is;  // in words: "memcpy, 1 thread"
  // Other figures of the same rounds. Names are snake_case, and unique within a result.
  struct Detail {
    std::string name;
    std::string unit;
    Samples values;
  };
  std::vector<Detail> details = {};
  // How it was measured, in words. Names follow the same rules.
  struct Note {
    std::string name;
    std::string text;
  };
  std::vector<Note> notes = {};
  std::optional<double> goal = std::nullopt;  // that the ratio should reach
  // Rates of I/O by tool, block size and queue depth: all that was measured for this result.
  struct ShapeRate {
    std::string tool;  // "store", "bare loop"
    std::size_t block_bytes = 0;
    int depth = 1;
    double gb_per_s = 0;
    int rounds = 0;  // whose median it is; 0: of a single try before the rounds
  };
  std::vector<ShapeRate> matrix = {};

  // Returns the ratio of the medians: value / limit for rates, limit / value for the others. 1 is
  // as good as it gets.
  double ratio() const;
  // Returns the ratio of each round. Value and limit have the same number of rounds.
  Samples ratios() const;
  // Returns how far apart the samples are that the ratio is made of, highest / lowest: the values,
  // the limits, or the ratios of the rounds, whichever are farthest apart.
  double spread() const;
  // Returns whether the samples are too far apart for the ratio to say much. The spread of a single
  // round is unknown, so it is not called steady.
  bool is_unsteady() const { return value.count() < 2 || spread() > kSteadySpread; }
  static constexpr double kSteadySpread = 2;
};

// Turns a text into a name: "1.00 MiB, depth 8" into "1_00_mib_depth_8".
std::string snake_name(std::string_view text);
// Makes a detail that is one number.
BenchResult::Detail number_detail(std::string name, std::string unit, double value);

// The options that a benchmark takes. Options about rounds and output apply to every benchmark;
// other options that it does not take mean nothing there.
struct BenchTakes {
  bool threads = false;
  bool bytes = false;
  bool drives = false;
  bool grid = false;
  bool ranks = false;  // --zero-stage, --local-ranks
  bool hosts = false;  // --hierarchical-collectives
  bool sizes = false;
  bool tokens = false;
  bool preset = false;
  bool seconds = false;  // its measurements can be cut to length
};

// The expected cost of a benchmark.
struct BenchCost {
  double seconds = 0;               // 0: unknown before it runs
  std::uint64_t written_bytes = 0;  // to drives
};

struct Bench {
  std::string_view name;     // "io"
  std::string_view summary;  // one line for the help
  // Runs the benchmark. Tells the record what it will measure and, after every round, what it has
  // measured; says on `log` what it is doing. Throws TimeIsUp if the record's time ends before the
  // benchmark does, ConfigError, EnvironmentError, OutOfMemory, IoError, CommError. If nothing is
  // in the record, another rank of the job has the results.
  void (*run)(const BenchOptions& options, BenchRecord& record, Log& log) = nullptr;
  // Returns the names of its results, in the order in which they are measured.
  std::vector<std::string> (*names)(const BenchOptions& options) = nullptr;
  // Estimates what it will cost, from quick measurements.
  BenchCost (*cost)(const BenchOptions& options, const MachineSpeed& speed) = nullptr;
  BenchTakes on_host = {};
  std::optional<BenchTakes> on_device = std::nullopt;  // set: measures devices too
  // Makes measurements shorter so that each fits a hurried benchmark. If null, the last
  // measurements are left out instead.
  void (*fit)(BenchOptions& options, const MachineSpeed& speed) = nullptr;
};

// Returns all benchmarks in the order of the help.
std::span<const Bench> benches();

}  // namespace terrace
