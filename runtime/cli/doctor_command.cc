#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "base/error.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/directory_checks.h"
#include "runtime/cli/machine_checks.h"
#include "runtime/config/flag_reader.h"
#include "runtime/config/host_facts.h"
#include "runtime/config/train_flags.h"
#include "runtime/config/version.h"

namespace terrace {
namespace {

constexpr CommandSpec kDoctorCommand = {
    "terrace doctor",
    "Reports which parts of this machine training can use, and how to make more of it usable."};

enum : std::size_t { kDoctorNvme, kDoctorJson };
constexpr auto kDoctorFlags = std::to_array<FlagSpec>({
    {"nvme", "Drives", "DIR[:SIZE]",
     "A directory on a drive to check, and the space that must be free there; may be given several "
     "times (the current directory)",
     FlagArity::kRepeated},
    {"json", "Output", "", "Print one JSON document instead of lines", FlagArity::kSwitch},
});

const char* status_name(const MachineCheck& check) {
  switch (check.status) {
    case CheckStatus::kOk:
      return "ok";
    case CheckStatus::kWarn:
      return "warn";
    case CheckStatus::kFail:
      break;
  }
  return "fail";
}

// Returns the directories of --nvme, read as `terrace train` reads them.
std::vector<NvmeDirectory> directories_of(const std::optional<FlagValue>& value) {
  if (!value) return {{.path = ".", .budget_bytes = {}}};
  const std::vector<TrainFlag> flags = tier_flags();
  const auto nvme =
      std::ranges::find(flags, "nvme", [](const TrainFlag& flag) { return flag.spec.name; });
  TERRACE_CHECK(nvme != flags.end());
  TrainOptions options;
  nvme->set(options, *value);
  return options.tiers.nvme;
}

void print_json(const std::vector<MachineCheck>& checks) {
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const MachineCheck& check : checks) {
    results.push_back({{"name", check.name},
                       {"status", status_name(check)},
                       {"value", check.value},
                       {"remedy", check.remedy}});
    if (!check.directory.empty()) results.back()["directory"] = check.directory;
  }
  const nlohmann::ordered_json document = {
      {"schema", "terrace.doctor/1"},
      {"version", terrace_version()},
      {"host", nlohmann::ordered_json::parse(host_facts_json())},
      {"results", results}};
  fmt::print("{}\n", document.dump(2));
}

void print_lines(const std::vector<MachineCheck>& checks) {
  for (const MachineCheck& check : checks) {
    fmt::print("{:<5} {:<13} {}\n", status_name(check), check.name, check.value);
    if (!check.remedy.empty()) fmt::print("{:<5} {:<13} -> {}\n", "", "", check.remedy);
  }
}

// Throws for a directory that was asked for and cannot be used, which would end a training too.
void refuse_directories(const std::vector<MachineCheck>& checks) {
  for (const MachineCheck& check : checks) {
    if (check.status != CheckStatus::kFail || check.directory.empty()) continue;
    throw ConfigError("--nvme " + check.value, check.remedy);
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
  const std::vector<NvmeDirectory> directories = directories_of(values[kDoctorNvme]);
  std::vector<MachineCheck> checks = check_machine();
  std::ranges::move(check_directories(directories, values[kDoctorNvme].has_value()),
                    std::back_inserter(checks));
  if (values[kDoctorJson] && values[kDoctorJson]->on_off()) {
    print_json(checks);
  } else {
    print_lines(checks);
  }
  refuse_directories(checks);
  return 0;
}

}  // namespace terrace
