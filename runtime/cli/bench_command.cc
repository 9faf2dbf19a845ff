#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/failure_text.h"
#include "base/nearest_name.h"
#include "bench/bench_compare.h"
#include "bench/bench_cost.h"
#include "bench/bench_device.h"
#include "bench/bench_only.h"
#include "bench/bench_record.h"
#include "bench/bench_report.h"
#include "bench/drive_check.h"
#include "parallel/launch_environment.h"
#include "runtime/cli/bench_flags.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/console_log.h"
#include "runtime/cli/early_end.h"
#include "runtime/cli/failure.h"
#include "runtime/config/flag_reader.h"

namespace terrace {
namespace {

const Bench& find_bench(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Bench& bench : benches()) {
    if (bench.name == name) return bench;
    names.push_back(bench.name);
  }
  throw ConfigError(
      fmt::format("unknown benchmark '{}'", name),
      fmt::format("did you mean {}? terrace bench --help lists all", nearest_name(name, names)));
}

// Refuses a benchmark of one process that a launcher has started more than once.
void refuse_ranks(const Bench& bench, const LaunchEnvironment& launch) {
  if (bench.name == "collective" || launch.size == 1) return;
  throw ConfigError(fmt::format("terrace bench {}: {} has started {} processes of it, but it "
                                "measures with one process",
                                bench.name, launch.source_is, launch.size),
                    "start it alone; terrace bench collective measures several processes");
}

// Returns the arguments without places. Results are published: they say how they were made, but not
// where.
std::vector<std::string> without_places(std::vector<std::string> arguments) {
  bool is_place = false;  // after a flag that names places, until the next flag
  for (std::string& argument : arguments) {
    for (const std::string flag : {"--nvme", "--compare"}) {
      if (argument.starts_with(flag + "=")) argument = flag + "=PATH";
    }
    if (argument.starts_with("-")) {
      is_place = argument == "--nvme" || argument == "--compare";
    } else if (is_place) {
      argument = "PATH";
    }
  }
  return arguments;
}

bool uses_drives(const Bench& bench, const BenchOptions& options) {
  const bool has_ranks = options.zero_stage || options.local_ranks > 1;
  return bench.on_host.drives && options.device == nullptr && !has_ranks;
}

// Says which flags have no effect. All benchmarks take the same flags, and a directory that is
// named must exist.
void tell_what_changes_nothing(const Bench& bench, const BenchCommand& command, Log& log) {
  if (command.names_drives && !uses_drives(bench, command.options)) {
    check_drives(command.options, 0, log);
    log.info(
        fmt::format("bench {}: this benchmark uses no drives: --nvme changes nothing", bench.name));
  }
  if (command.leaves_grid_out && !bench.on_host.grid) {
    log.info(
        fmt::format("bench {}: this benchmark has no grid: --no-grid changes nothing", bench.name));
  }
}

// Checks the drives that the benchmark uses, and returns their places. Says in the log which
// directory is used where --nvme names none.
std::vector<DrivePlace> look_at_drives(const Bench& bench, const BenchOptions& options, Log& log) {
  check_drives(options, 0, log);
  std::vector<DrivePlace> places;
  for (const std::string& directory : bench_directories(options)) {
    places.push_back(drive_place(directory));
    if (options.nvme.empty()) {
      log.info(
          fmt::format("bench {}: no --nvme DIR is given, so it uses {} (set $TMPDIR for another "
                      "directory); its files there have no names and disappear when it ends",
                      bench.name, directory));
    }
    if (places.back().is_memory) {
      log.warning(
          fmt::format("bench {}: {} is in memory ({}), not on a drive; name a directory on a drive "
                      "with --nvme DIR",
                      bench.name, directory, places.back().file_system));
    }
  }
  return places;
}

constexpr int kExitNothingMeasured = 1;
// How long after the time limit a measurement may end by itself. Processes that measure together
// get more time to end together: if one of them leaves the others alone, its launcher calls the job
// a failure, whatever was measured.
constexpr double kGraceSeconds = 1;
constexpr double kGraceOfProcessesSeconds = 15;

// A log that remembers the last line in which a benchmark said what it is doing.
class PhaseLog final : public Log {
 public:
  explicit PhaseLog(Log& log) : log_(log) {}

  void info(std::string_view line) override {
    {
      const std::lock_guard lock(mutex_);
      last_ = line;
    }
    log_.info(line);
  }
  void warning(std::string_view line) override { log_.warning(line); }

  // Returns that in words, for a report of a failure.
  std::string doing() const {
    const std::lock_guard lock(mutex_);
    return last_.empty() ? "it began" : fmt::format("it was at '{}'", last_);
  }

 private:
  Log& log_;
  mutable std::mutex mutex_;
  std::string last_;  // guarded by mutex_
};

// One run of a benchmark, from the lines printed before it to the result at its end.
class BenchCommandRun {
 public:
  BenchCommandRun(const Bench& bench, BenchCommand command, const LaunchEnvironment& launch)
      : bench_(bench),
        command_(std::move(command)),
        is_first_rank_(launch.rank == 0),
        grace_s_(launch.size == 1 ? kGraceSeconds : kGraceOfProcessesSeconds),
        record_(command_.options.time_limit_s ? Deadline::after(*command_.options.time_limit_s)
                                              : Deadline(),
                command_.options.only) {}

  int run(const std::vector<std::string>& arguments);

 private:
  void prepare(const std::vector<std::string>& arguments);
  void tell_cost();
  void measure();
  // Prints the result. `signal`: the signal that ends the run; 0: its time is up, or everything is
  // measured. Returns the exit code: a table without rows is a failure.
  int print(int signal);

  const Bench& bench_;
  BenchCommand command_;
  const bool is_first_rank_;
  const double grace_s_;
  BenchRecord record_;
  ConsoleLog log_;
  PhaseLog phases_{log_};
  const SystemClock clock_;
  const std::int64_t begin_ns_ = clock_.now_ns();
  std::unique_ptr<BenchDevice> device_;
  std::optional<BenchFigures> before_;
  MachineSpeed speed_;
  BenchRun facts_;
};

void BenchCommandRun::prepare(const std::vector<std::string>& arguments) {
  facts_.bench = bench_.name;
  facts_.arguments = without_places(arguments);
  facts_.started_s = static_cast<std::int64_t>(std::time(nullptr));
  if (!command_.compare.empty()) {
    before_ = read_bench_figures(command_.compare.front(), std::string(bench_.name));
  }
  if (command_.device.kind == DeviceKind::kCuda) device_ = make_bench_device(command_.device);
  command_.options.device = device_.get();
  check_only(bench_, command_.options);
  if (device_ == nullptr) tell_what_changes_nothing(bench_, command_, log_);
  if (uses_drives(bench_, command_.options)) {
    facts_.drives = look_at_drives(bench_, command_.options, log_);
  }
}

void BenchCommandRun::tell_cost() {
  BenchOptions& options = command_.options;
  MachineSpeed& speed = speed_;
  BenchCost cost;
  if (device_ == nullptr) {
    speed = measure_speed(options);
    // If there is a time limit, the size of the files depends on the drive's speed.
    const bool asks_drives = options.time_limit_s && !facts_.drives.empty();
    if (asks_drives) measure_drives(options, speed, log_);
    cost = bench_.cost(options, speed);
    // The machine may become slower than it was during that measurement.
    constexpr double kMargin = 1.5;
    options.hurried = options.time_limit_s && kMargin * cost.seconds > *options.time_limit_s;
    // If only a hurried benchmark has the wanted results, it runs hurried.
    if (!any_is_wanted(options, bench_.names(options))) options.hurried = true;
    if (options.hurried) options.speed = &speed;
    if (options.hurried && bench_.fit != nullptr) {
      bench_.fit(options, speed);
      cost.written_bytes = bench_.cost(options, speed).written_bytes;
    }
  }
  log_.info(fmt::format("bench {}: {}", bench_.name, cost_text(cost, options, speed)));
}

int BenchCommandRun::print(int signal) {
  if (!is_first_rank_) return 0;
  const std::vector<BenchResult> results = record_.results();
  facts_.duration_ns = clock_.now_ns() - begin_ns_;
  if (signal != 0) {
    facts_.cut = {fmt::format("signal {} ({})", signal, ::strsignal(signal)), record_.missing()};
  } else if (record_.is_cut_short()) {
    facts_.cut = {fmt::format("the time limit of {:g} s", *command_.options.time_limit_s),
                  record_.missing()};
  }
  BenchReport report = {.run = facts_, .options = command_.options, .results = results};
  if (before_) {
    report.comparison = compare_figures(*before_, figures_of(facts_, command_.options, results));
  }
  const std::string text = command_.output == BenchOutput::kJson  ? bench_json(report)
                           : command_.output == BenchOutput::kCsv ? bench_csv(report)
                                                                  : bench_table(report);
  fmt::print("{}", text);
  if (facts_.cut && command_.output != BenchOutput::kTable) {
    log_.info(fmt::format("bench {}: cut short by {}", bench_.name, facts_.cut->by));
  }
  if (!results.empty()) return 0;
  log_.warning(
      fmt::format("bench {}: nothing was measured, so the table has no rows; give it more "
                  "time (--time-limit) or fewer results (--only NAME)",
                  bench_.name));
  return kExitNothingMeasured;
}

void BenchCommandRun::measure() {
  try {
    bench_.run(command_.options, record_, phases_);
  } catch (const TimeIsUp& over) {
    // The record has the results so far, and knows which ones are missing.
    log_.info(fmt::format("bench {}: {}", bench_.name, over.what()));
  } catch (const std::exception& failure) {
    if (is_foreseen(failure)) throw;
    throw UnforeseenFailure(failure, phases_.doing());
  }
}

int BenchCommandRun::run(const std::vector<std::string>& arguments) {
  std::optional<EarlyEnd> early_end;
  early_end.emplace(EarlyEnd::Options{.deadline = record_.end(),
                                      .grace_s = grace_s_,
                                      .last_words = [this](int signal) { return print(signal); },
                                      .directories = bench_directories(command_.options)});
  prepare(arguments);
  if (is_first_rank_) tell_cost();
  measure();
  early_end.reset();
  return print(0);
}

// Compares two documents without measuring anything.
int compare_documents(const Bench& bench, const BenchCommand& command) {
  const std::string name(bench.name);
  const BenchComparison comparison = compare_figures(read_bench_figures(command.compare[0], name),
                                                     read_bench_figures(command.compare[1], name));
  const std::string text = command.output == BenchOutput::kJson  ? comparison_json(name, comparison)
                           : command.output == BenchOutput::kCsv ? comparison_csv(comparison)
                                                                 : comparison_table(comparison);
  fmt::print("{}", text);
  return 0;
}

}  // namespace

int run_bench(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv + 2, argv + argc);
  const bool names_kind = !arguments.empty() && !arguments.front().starts_with("-");
  if (!names_kind && wants_help(arguments)) {
    fmt::print("{}", bench_help());
    return 0;
  }
  if (!names_kind) {
    throw ConfigError("terrace bench: no benchmark is named", "terrace bench --help lists them");
  }
  const Bench& bench = find_bench(arguments.front());
  arguments.erase(arguments.begin());
  if (wants_help(arguments)) {
    fmt::print("{}", bench_help(bench));
    return 0;
  }
  const LaunchEnvironment launch = detect_launch(environment_variables());
  refuse_ranks(bench, launch);
  BenchCommand command = read_bench_command(bench, arguments);
  if (command.compare.size() == 2) return compare_documents(bench, command);
  return BenchCommandRun(bench, std::move(command), launch).run(arguments);
}

}  // namespace terrace
