#include "runtime/cli/bench_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "base/error.h"
#include "memory/host/host_limits.h"
#include "parallel/launch_environment.h"
#include "runtime/config/device_flag.h"
#include "runtime/config/flag_reader.h"
#include "runtime/config/thread_count.h"

namespace terrace {
namespace {

enum : std::size_t {
  kDevice,
  kNvme,
  kThreads,
  kTimeLimit,
  kRepetitions,
  kSeconds,
  kSize,
  kSizes,
  kNoGrid,
  kZeroStage,
  kLocalRanks,
  kHierarchical,
  kTokens,
  kPreset,
  kOnly,
  kSmall,
  kJson,
  kCsv,
  kCompare
};

struct BenchFlag {
  FlagSpec spec;
  // The member that says whether a benchmark takes this flag; null: every benchmark takes it.
  bool BenchTakes::* taken = nullptr;
};

constexpr auto kBenchFlags = std::to_array<BenchFlag>({
    {{"device", "Machine", "auto|cpu|cuda[:N]", "The device to measure (auto: the CPU)"}},
    {{"nvme", "Machine", "DIR",
      "A directory on the drive to measure; several are striped ($TMPDIR, else /var/tmp)",
      FlagArity::kRepeated},
     &BenchTakes::drives},
    {{"threads", "Machine", "N",
      "Number of compute threads (auto: from the affinity mask and cgroup limit)"},
     &BenchTakes::threads},
    {{"time-limit", "Measurement", "SECONDS",
      "Ends within this time, prints what it has measured and says what is missing"}},
    {{"repetitions", "Measurement", "N", "Interleaved rounds (7); results are their medians"}},
    {{"seconds", "Measurement", "S", "Approximate length of one measurement (1)"},
     &BenchTakes::seconds},
    {{"size", "Measurement", "SIZE", "Size of the working set (what the benchmark needs)"},
     &BenchTakes::bytes},
    {{"sizes", "Measurement", "FIRST:LAST[:FACTOR]",
      "Sizes from FIRST to LAST, each FACTOR (2) times the one before; LAST may be auto: what an "
      "eighth of the free memory has room for, at most 1 GiB"},
     &BenchTakes::sizes},
    {{"no-grid", "Measurement", "",
      "Skip the search over block sizes and queue depths at the start", FlagArity::kSwitch},
     &BenchTakes::grid},
    {{"zero-stage", "Measurement", "0..3",
      "The state that data-parallel ranks shard (0 with one rank, else 1)"},
     &BenchTakes::ranks},
    {{"local-ranks", "Measurement", "N", "Data-parallel ranks, run as threads (1)"},
     &BenchTakes::ranks},
    {{"hierarchical-collectives", "Measurement", "auto|on|off",
      "As for terrace train: whether data crosses between hosts once for all ranks of a host"},
     &BenchTakes::hosts},
    {{"tokens", "Measurement", "N",
      "Only steps of N tokens; bench overlap: a multiple of 512; bench step: with --device cuda"},
     &BenchTakes::tokens},
    {{"preset", "Measurement", "NAME", "With --device cuda: only steps of this model"},
     &BenchTakes::preset},
    {{"only", "Measurement", "NAME",
      "Only results with these names; patterns with * and ? are allowed", FlagArity::kList}},
    {{"small", "Measurement", "", "The smallest sizes, to check that it runs", FlagArity::kSwitch}},
    {{"json", "Output", "", "One JSON document instead of a table", FlagArity::kSwitch}},
    {{"csv", "Output", "", "Comma-separated values instead of a table", FlagArity::kSwitch}},
    {{"compare", "Output", "OLD.json [NEW.json]",
      "Compare the results with an earlier --json; with NEW.json nothing is measured",
      FlagArity::kList}},
});

std::vector<FlagSpec> all_specs() {
  std::vector<FlagSpec> specs;
  for (const BenchFlag& flag : kBenchFlags) specs.push_back(flag.spec);
  return specs;
}

bool is_taken(const BenchFlag& flag, const BenchTakes& takes) {
  return flag.taken == nullptr || takes.*flag.taken;
}

bool is_of(std::size_t flag, const Bench& bench) {
  if (flag == kDevice) return bench.on_device.has_value();
  return is_taken(kBenchFlags[flag], bench.on_host) ||
         (bench.on_device && is_taken(kBenchFlags[flag], *bench.on_device));
}

// Returns the benchmarks that take a flag: "bench step and bench overlap", "bench step --device
// cuda".
std::string takers_of(std::size_t flag) {
  std::vector<std::string> names;
  for (const Bench& bench : benches()) {
    if (!is_of(flag, bench)) continue;
    const bool on_host = is_taken(kBenchFlags[flag], bench.on_host);
    names.push_back(fmt::format("bench {}{}", bench.name, on_host ? "" : " --device cuda"));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

using FlagValues = std::vector<std::optional<FlagValue>>;

bool is_on(const FlagValues& values, std::size_t flag) {
  return values[flag] && values[flag]->on_off();
}

// Returns the largest size of --sizes FIRST:auto. Each rank has two buffers of it, and all ranks
// are taken to be on this host.
std::size_t largest_size_here(const BenchOptions& options) {
  constexpr std::size_t kShareOfMemory = 8;
  constexpr std::size_t kBuffers = 2;
  const int processes = detect_launch(environment_variables()).size;
  const auto ranks = static_cast<std::size_t>(std::max(processes, options.threads));
  const std::size_t room = read_host_limits().usable_bytes() / kShareOfMemory / kBuffers / ranks;
  return std::min(room, std::size_t{kGiB});
}

SizeRange read_sizes(const FlagValue& value, const BenchOptions& options) {
  constexpr std::int64_t kFactorMax = 1024;
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end = 0; end != std::string::npos; begin = end + 1) {
    end = value.name().find(':', begin);
    parts.push_back(value.name().substr(begin, end - begin));
  }
  if (parts.size() < 2 || parts.size() > 3) {
    value.refuse("not FIRST:LAST or FIRST:LAST:FACTOR", "give for example 8:64MiB or 8:auto:4");
  }
  const auto part = [&](std::size_t at) { return FlagValue(value.where(), {parts[at]}); };
  SizeRange range;
  range.first = part(0).size();
  range.last = parts[1] == "auto" ? largest_size_here(options) : part(1).size();
  if (parts.size() == 3) range.factor = static_cast<std::size_t>(part(2).integer(2, kFactorMax));
  if (range.last < range.first) {
    value.refuse(fmt::format("the last size, {}, is below the first", format_size(range.last)),
                 "raise LAST or lower FIRST");
  }
  return range;
}

void read_measurement(const FlagValues& values, BenchOptions& options) {
  constexpr int kRepetitionsMax = 1000;
  constexpr double kSecondsMax = 86400;
  if (is_on(values, kSmall)) {
    options.small = true;
    options.repetitions = 2;
    options.seconds = 0.01;
  }
  if (values[kRepetitions]) {
    options.repetitions = static_cast<int>(values[kRepetitions]->integer(1, kRepetitionsMax));
  }
  const auto seconds_of = [&](std::size_t flag) {
    const double seconds = values[flag]->positive_number();
    if (seconds > kSecondsMax) values[flag]->refuse("too long", "give at most a day");
    return seconds;
  };
  if (values[kSeconds]) options.seconds = seconds_of(kSeconds);
  if (values[kTimeLimit]) options.time_limit_s = seconds_of(kTimeLimit);
  if (values[kSize]) options.bytes = values[kSize]->size();
  options.grid = !is_on(values, kNoGrid);
  if (values[kOnly]) options.only = values[kOnly]->texts();
}

BenchOptions read_options(const FlagValues& values) {
  constexpr int kRanksMax = 64;
  constexpr std::int64_t kTokensMax = 1 << 20;
  BenchOptions options;
  options.threads = read_host_limits().usable_cpus();
  read_measurement(values, options);
  if (values[kNvme]) options.nvme = values[kNvme]->texts();
  if (values[kThreads] && values[kThreads]->text() != "auto") {
    options.threads = read_threads(*values[kThreads]);
  }
  if (values[kSizes]) options.sizes = read_sizes(*values[kSizes], options);
  if (values[kZeroStage]) options.zero_stage = static_cast<int>(values[kZeroStage]->integer(0, 3));
  if (values[kLocalRanks]) {
    options.local_ranks = static_cast<int>(values[kLocalRanks]->integer(1, kRanksMax));
  }
  if (values[kHierarchical]) {
    constexpr auto kNames = std::to_array<std::string_view>({"auto", "on", "off"});
    options.hierarchical = static_cast<HierarchicalUse>(values[kHierarchical]->choice(kNames));
  }
  if (values[kTokens]) options.tokens = values[kTokens]->integer(1, kTokensMax);
  if (values[kPreset]) options.preset = values[kPreset]->text();
  return options;
}

void refuse_flags(const std::string& name, const BenchTakes& takes, const FlagValues& values,
                  bool on_device) {
  for (std::size_t flag = 0; flag < kBenchFlags.size(); ++flag) {
    if (!values[flag] || is_taken(kBenchFlags[flag], takes)) continue;
    if (!on_device && (flag == kNvme || flag == kNoGrid)) continue;
    throw ConfigError(fmt::format("{}: --{} has no effect here", name, kBenchFlags[flag].spec.name),
                      fmt::format("leave it out; it is a flag of {}", takers_of(flag)));
  }
}

void check_sizes(const std::string& name, const BenchOptions& options) {
  if (!options.sizes || options.bytes == 0) return;
  throw ConfigError(fmt::format("{}: --size and --sizes are both given", name),
                    "leave one of the two out");
}

void check_tokens(const std::string& name, const BenchOptions& options) {
  if (options.tokens == 0) return;
  if (options.small) {
    throw ConfigError(fmt::format("{}: --tokens has no effect with --small", name),
                      "leave one of the two out");
  }
  if (options.tokens % kOverlapSequence == 0) return;
  throw ConfigError(
      fmt::format("{}: --tokens {}: not a multiple of {}", name, options.tokens, kOverlapSequence),
      fmt::format("use {}", round_up(static_cast<std::size_t>(options.tokens),
                                     static_cast<std::size_t>(kOverlapSequence))));
}

DeviceChoice read_device_of(const Bench& bench, const FlagValues& values) {
  if (!values[kDevice]) return {};
  const DeviceChoice choice = read_device(*values[kDevice]);
  if (choice.kind == DeviceKind::kCuda && !bench.on_device) {
    throw ConfigError(fmt::format("terrace bench {} --device {}: this benchmark measures the host "
                                  "only",
                                  bench.name, device_text(choice)),
                      "leave --device out");
  }
  return choice;
}

BenchOutput read_output(const std::string& name, const FlagValues& values) {
  const bool as_json = is_on(values, kJson);
  const bool as_csv = is_on(values, kCsv);
  if (as_json && as_csv) {
    throw ConfigError(fmt::format("{}: --json and --csv are both given", name),
                      "give only one of them");
  }
  return as_json ? BenchOutput::kJson : as_csv ? BenchOutput::kCsv : BenchOutput::kTable;
}

}  // namespace

BenchCommand read_bench_command(const Bench& bench, const std::vector<std::string>& arguments) {
  const std::string name = fmt::format("terrace bench {}", bench.name);
  const FlagValues values = read_flags({name, bench.summary}, all_specs(), arguments);
  BenchCommand command = {.options = read_options(values),
                          .device = read_device_of(bench, values),
                          .output = read_output(name, values),
                          .compare = {},
                          .names_drives = values[kNvme].has_value(),
                          .leaves_grid_out = is_on(values, kNoGrid)};
  const bool on_device = command.device.kind == DeviceKind::kCuda;
  refuse_flags(on_device ? fmt::format("{} --device {}", name, device_text(command.device)) : name,
               on_device ? *bench.on_device : bench.on_host, values, on_device);
  check_sizes(name, command.options);
  if (!on_device) check_tokens(name, command.options);
  if (values[kCompare]) command.compare = values[kCompare]->texts();
  if (command.compare.size() > 2) {
    throw ConfigError(fmt::format("--compare has {} documents", command.compare.size()),
                      "give the earlier document, or the earlier one and a later one");
  }
  return command;
}

std::string bench_help() {
  std::string text =
      "Measures a part of Terrace against the limits of the machine, in interleaved rounds.\n"
      "Usage: terrace bench KIND [FLAGS]\n"
      "\n"
      "Kinds:\n";
  for (const Bench& bench : benches()) {
    text += fmt::format("  {:<12}{}\n", bench.name, bench.summary);
  }
  return text +
         "\n"
         "terrace bench KIND --help lists the flags of a kind; all have --time-limit, "
         "--repetitions, --only,\n"
         "--small, --json, --csv and --compare.\n";
}

std::string bench_help(const Bench& bench) {
  const std::string name = fmt::format("terrace bench {}", bench.name);
  std::vector<FlagSpec> specs;
  for (std::size_t flag = 0; flag < kBenchFlags.size(); ++flag) {
    if (is_of(flag, bench)) specs.push_back(kBenchFlags[flag].spec);
  }
  const std::string summary = fmt::format("Measures {}.", bench.summary);
  return flags_help({name, summary}, specs);
}

}  // namespace terrace
