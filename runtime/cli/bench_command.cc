#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "memory/host/host_limits.h"
#include "parallel/launch_environment.h"
#include "runtime/bench/bench.h"
#include "runtime/bench/bench_device.h"
#include "runtime/bench/drive_check.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/console_log.h"
#include "runtime/config/device_flag.h"
#include "runtime/config/flag_reader.h"
#include "runtime/config/nearest_name.h"

namespace terrace {
namespace {

enum : std::size_t {
  kDevice,
  kNvme,
  kThreads,
  kRepetitions,
  kSeconds,
  kSize,
  kZeroStage,
  kLocalRanks,
  kTokens,
  kPreset,
  kSmall,
  kJson
};
constexpr auto kBenchFlags = std::to_array<FlagSpec>({
    {"device", "Machine", "auto|cpu|cuda[:N]",
     "What is measured (auto: the CPU); cuda, GPU N: of bench copy, kernel and step"},
    {"nvme", "Machine", "DIR",
     "A directory on the drive to measure; repeated: striped (the current directory)",
     FlagArity::kRepeated},
    {"threads", "Machine", "N", "Threads that compute (auto: the affinity mask and cgroup limit)"},
    {"repetitions", "Measurement", "N", "Interleaved rounds (7); figures are their medians"},
    {"seconds", "Measurement", "S", "Length of one measurement, about (1)"},
    {"size", "Measurement", "SIZE", "The working set (as large as the benchmark needs)"},
    {"zero-stage", "Measurement", "0..3",
     "Of bench step: what data-parallel ranks share out (0 with one rank, else 1)"},
    {"local-ranks", "Measurement", "N", "Of bench step: data-parallel ranks as threads (1)"},
    {"tokens", "Measurement", "N",
     "Of bench overlap: steps of so many only, a multiple of 512 (1024, 2048 and 5120); of bench "
     "step on a GPU likewise"},
    {"preset", "Measurement", "NAME", "Of bench step on a GPU: steps of this model only"},
    {"small", "Measurement", "", "As little as can be, to see that it runs", FlagArity::kSwitch},
    {"json", "Output", "", "One JSON document instead of a table", FlagArity::kSwitch},
});

std::string bench_help() {
  const CommandSpec command = {
      "terrace bench KIND",
      "Measures a part of Terrace beside what the machine can do, in interleaved rounds."};
  std::string text = flags_help(command, kBenchFlags) + "\nKinds:\n";
  for (const Bench& bench : benches()) {
    text += fmt::format("  {:<12}{}\n", bench.name, bench.summary);
  }
  return text;
}

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

using FlagValues = std::vector<std::optional<FlagValue>>;

BenchOptions read_options(const FlagValues& values) {
  constexpr int kThreadsMax = 4096;
  constexpr int kRepetitionsMax = 1000;
  constexpr int kRanksMax = 64;
  constexpr std::int64_t kTokensMax = 1 << 20;
  BenchOptions options;
  options.threads = read_host_limits().usable_cpus();
  if (values[kSmall] && values[kSmall]->on_off()) {
    options.small = true;
    options.repetitions = 2;
    options.seconds = 0.01;
  }
  if (values[kNvme]) options.nvme = values[kNvme]->texts();
  if (values[kThreads] && values[kThreads]->text() != "auto") {
    options.threads = static_cast<int>(values[kThreads]->integer(1, kThreadsMax));
  }
  if (values[kRepetitions]) {
    options.repetitions = static_cast<int>(values[kRepetitions]->integer(1, kRepetitionsMax));
  }
  if (values[kSeconds]) {
    constexpr double kSecondsMax = 86400;
    options.seconds = values[kSeconds]->positive_number();
    if (options.seconds > kSecondsMax) values[kSeconds]->refuse("is too long", "a day is the most");
  }
  if (values[kSize]) options.bytes = values[kSize]->size();
  if (values[kZeroStage]) options.zero_stage = static_cast<int>(values[kZeroStage]->integer(0, 3));
  if (values[kLocalRanks]) {
    options.local_ranks = static_cast<int>(values[kLocalRanks]->integer(1, kRanksMax));
  }
  if (values[kTokens]) options.tokens = values[kTokens]->integer(1, kTokensMax);
  if (values[kPreset]) options.preset = values[kPreset]->text();
  return options;
}

// Options that one benchmark alone has.
void check_options(const Bench& bench, const BenchOptions& options) {
  const bool has_steps_of_device = bench.name == "step" && options.device != nullptr;
  const std::string name = fmt::format("terrace bench {}", bench.name);
  if (bench.name != "step" && (options.zero_stage || options.local_ranks > 1)) {
    throw ConfigError(fmt::format("{}: --zero-stage and --local-ranks are of steps", name),
                      "use them with terrace bench step");
  }
  if (!options.preset.empty() && !has_steps_of_device) {
    throw ConfigError(fmt::format("{}: --preset is of bench step --device cuda", name),
                      "leave it out");
  }
  if (options.tokens == 0 || has_steps_of_device) return;
  if (bench.name != "overlap" || options.small) {
    throw ConfigError(
        fmt::format("{}: --tokens is of bench overlap, and not of its --small, and of bench step "
                    "--device cuda",
                    name),
        "leave it out");
  }
  if (options.tokens % kOverlapSequence != 0) {
    throw ConfigError(
        fmt::format("{}: --tokens {}: no multiple of {}", name, options.tokens, kOverlapSequence),
        fmt::format("use {}", (options.tokens / kOverlapSequence + 1) * kOverlapSequence));
  }
}

// Processes that measure the same machine at the same time would measure each other.
void refuse_ranks(const Bench& bench) {
  const LaunchEnvironment launch = detect_launch(environment_variables());
  if (bench.name == "collective" || !launch.is_mpi_job || launch.size == 1) return;
  throw ConfigError(fmt::format("terrace bench {}: {} has started {} of it, and it measures with "
                                "one process",
                                bench.name, launch.source_is, launch.size),
                    "start it alone; of several processes is bench collective");
}

void refuse_flag(const std::string& name, const FlagValues& values, std::size_t flag) {
  if (!values[flag]) return;
  throw ConfigError(fmt::format("{}: --{} means nothing there", name, kBenchFlags[flag].name),
                    fmt::format("leave --{} out", kBenchFlags[flag].name));
}

// --nvme is there for every benchmark: the same flags then do for all. What is named must be there.
void check_host_flags(const Bench& bench, const FlagValues& values, const BenchOptions& options,
                      Log& log) {
  const std::string name = fmt::format("terrace bench {}", bench.name);
  if (!bench.on_host.threads) refuse_flag(name, values, kThreads);
  if (!bench.on_host.bytes) refuse_flag(name, values, kSize);
  const bool has_ranks = options.zero_stage || options.local_ranks > 1;
  if (options.nvme.empty() || (bench.on_host.drives && !has_ranks)) return;
  check_drives(options, 0, log);
  log.info(
      fmt::format("bench {}: this benchmark uses no drives: --nvme changes nothing", bench.name));
}

// The GPU to measure; null: the CPU.
std::unique_ptr<BenchDevice> find_device(const Bench& bench, const FlagValues& values) {
  if (!values[kDevice]) return nullptr;
  const DeviceChoice choice = read_device(*values[kDevice]);
  if (choice.kind != DeviceKind::kCuda) return nullptr;
  const std::string name =
      fmt::format("terrace bench {} --device {}", bench.name, device_text(choice));
  if (!bench.on_device) {
    throw ConfigError(fmt::format("{}: it measures the host", name), "leave --device out");
  }
  refuse_flag(name, values, kNvme);
  refuse_flag(name, values, kZeroStage);
  refuse_flag(name, values, kLocalRanks);
  if (!bench.on_device->threads) refuse_flag(name, values, kThreads);
  if (!bench.on_device->bytes) refuse_flag(name, values, kSize);
  return make_bench_device(choice);
}

// Results are published: they tell how they were made, and nothing of where.
std::vector<std::string> without_places(std::vector<std::string> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].starts_with("--nvme=")) arguments[i] = "--nvme=DIR";
    if (i > 0 && arguments[i - 1] == "--nvme") arguments[i] = "DIR";
  }
  return arguments;
}

}  // namespace

int run_bench(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv + 2, argv + argc);
  if (wants_help(arguments)) {
    fmt::print("{}", bench_help());
    return 0;
  }
  if (arguments.empty() || arguments.front().starts_with("-")) {
    throw ConfigError("terrace bench: no benchmark is named", "terrace bench --help lists them");
  }
  const Bench& bench = find_bench(arguments.front());
  arguments.erase(arguments.begin());
  const std::string name = fmt::format("terrace bench {}", bench.name);
  refuse_ranks(bench);
  const auto values = read_flags({name, bench.summary}, kBenchFlags, arguments);
  BenchOptions options = read_options(values);
  const std::unique_ptr<BenchDevice> device = find_device(bench, values);
  options.device = device.get();
  check_options(bench, options);
  ConsoleLog log;
  if (device == nullptr) check_host_flags(bench, values, options, log);
  BenchRun run{.bench = bench.name, .arguments = without_places(arguments)};
  run.started_s = static_cast<std::int64_t>(std::time(nullptr));
  const SystemClock clock;
  const std::int64_t begin_ns = clock.now_ns();
  const std::vector<BenchResult> results = bench.run(options, log);
  if (results.empty()) return 0;
  run.duration_ns = clock.now_ns() - begin_ns;
  const bool as_json = values[kJson] && values[kJson]->on_off();
  fmt::print("{}", as_json ? bench_json(run, options, results) : bench_table(results));
  return 0;
}

}  // namespace terrace
