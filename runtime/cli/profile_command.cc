#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "bench/machine_measure.h"
#include "memory/cuda/cuda_device.h"
#include "memory/host/host_limits.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/console_log.h"
#include "runtime/config/device_flag.h"
#include "runtime/config/flag_reader.h"
#include "runtime/machine/machine_toml.h"
#include "runtime/machine/remembered_machine.h"
#include "runtime/machine/shipped_machines.h"

namespace terrace {
namespace {

enum : std::size_t { kDevice, kNvme, kThreads, kName };

constexpr auto kProfileOperands = std::to_array<std::string_view>({"FILE"});
constexpr CommandSpec kProfileCommand = {
    "terrace profile",
    "Measures this machine's GPU or processors, its memory and, with --nvme, a drive, and\n"
    "writes the profile to FILE. terrace plan --profile FILE reads it. The last profile is\n"
    "remembered: terrace plan uses it without --profile. With the name of a shipped machine,\n"
    "as in terrace profile dgx-h100, its profile is printed.",
    kProfileOperands};

constexpr auto kProfileFlags = std::to_array<FlagSpec>({
    {"device", "Machine", "auto|cpu|cuda[:N]",
     "The device that computes (auto: the first GPU, if there is one that can be used)"},
    {"nvme", "Machine", "DIR", "A directory on the drive to measure (drives are not measured)"},
    {"threads", "Machine", "N",
     "Number of compute threads (auto: all processors that may be used)"},
    {"name", "Output", "NAME", "The name of the machine in the profile (the name of FILE)"},
});

bool is_shipped(const std::string& name) {
  const std::vector<std::string> names = shipped_machine_names();
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

int run_profile(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + 2, argv + argc);
  if (wants_help(arguments)) {
    fmt::print("{}", flags_help(kProfileCommand, kProfileFlags));
    return 0;
  }
  const auto [values, operands] = read_command_line(kProfileCommand, kProfileFlags, arguments);
  const std::string& file = operands.front();
  if (is_shipped(file)) {
    fmt::print("{}", to_toml(shipped_machine(file)));
    return 0;
  }
  MachineMeasurement measurement;
  measurement.name =
      values[kName] ? values[kName]->name() : std::filesystem::path(file).stem().string();
  measurement.threads = values[kThreads] ? static_cast<int>(values[kThreads]->integer(1, 4096))
                                         : read_host_limits().usable_cpus();
  const DeviceChoice choice = values[kDevice] ? read_device(*values[kDevice]) : DeviceChoice{};
  const std::unique_ptr<BenchDevice> device = make_bench_device(choice);
  if (device != nullptr) {
    measurement.device = device.get();
    measurement.devices = cuda_device_count();
  }
  if (values[kNvme]) measurement.nvme = values[kNvme]->name();
  ConsoleLog log;
  fmt::print("measuring this machine...\n");
  std::fflush(stdout);
  const std::string text = to_toml(measure_machine(measurement, log));
  write_durable_file(file, text);
  const std::string kept = remember_machine(text);
  fmt::print("{}wrote {}{}\n", text, file,
             kept.empty() ? "" : fmt::format("; terrace plan remembers it in {}", kept));
  return 0;
}

}  // namespace terrace
