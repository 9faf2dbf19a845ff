#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "memory/host/host_limits.h"
#include "memory/host/topology.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/machine_checks.h"
#include "runtime/config/flag_reader.h"
#include "runtime/config/version.h"

namespace terrace {
namespace {

constexpr CommandSpec kDoctorCommand = {
    "terrace doctor", "Tells what of this machine training can use, and how to get more."};

enum : std::size_t { kDoctorNvme, kDoctorJson };
constexpr auto kDoctorFlags = std::to_array<FlagSpec>({
    {"nvme", "Drives", "DIR", "The directory of a drive to look at (the current directory)"},
    {"json", "Output", "", "One JSON document instead of lines", FlagArity::kSwitch},
});

nlohmann::ordered_json host_facts() {
  const Topology topology = read_topology();
  const HostLimits limits = read_host_limits();
  std::array<char, 256> name = {};
  ::gethostname(name.data(), name.size() - 1);
  return {{"name", name.data()},
          {"cpu", topology.cpu_model},
          {"cores", topology.cores},
          {"hardware_threads", topology.hardware_threads},
          {"usable_threads", limits.usable_cpus()},
          {"memory_bytes", limits.total_bytes},
          {"usable_memory_bytes", limits.usable_bytes()}};
}

void print_json(const std::vector<MachineCheck>& checks) {
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const MachineCheck& check : checks) {
    results.push_back({{"name", check.name},
                       {"status", check.ok ? "ok" : "warn"},
                       {"value", check.value},
                       {"remedy", check.remedy}});
  }
  const nlohmann::ordered_json document = {{"schema", "terrace.doctor/1"},
                                           {"version", terrace_version()},
                                           {"host", host_facts()},
                                           {"results", results}};
  fmt::print("{}\n", document.dump(2));
}

void print_lines(const std::vector<MachineCheck>& checks) {
  for (const MachineCheck& check : checks) {
    fmt::print("{:<5} {:<13} {}\n", check.ok ? "ok" : "warn", check.name, check.value);
    if (!check.remedy.empty()) fmt::print("{:<5} {:<13} -> {}\n", "", "", check.remedy);
  }
}

}  // namespace

int run_doctor(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + 2, argv + argc);
  if (wants_help(arguments)) {
    fmt::print("{}", flags_help(kDoctorCommand, kDoctorFlags));
    return 0;
  }
  const auto values = read_flags(kDoctorCommand, kDoctorFlags, arguments);
  const auto checks = check_machine(values[kDoctorNvme] ? values[kDoctorNvme]->name() : ".");
  if (values[kDoctorJson] && values[kDoctorJson]->on_off()) {
    print_json(checks);
  } else {
    print_lines(checks);
  }
  return 0;
}

}  // namespace terrace
