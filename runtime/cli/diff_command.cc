#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "runtime/cli/commands.h"
#include "runtime/cli/failure.h"
#include "runtime/compare/run_diff.h"
#include "runtime/config/flag_reader.h"
#include "runtime/config/host_facts.h"
#include "runtime/config/version.h"

namespace terrace {
namespace {

using Document = nlohmann::ordered_json;

constexpr auto kDiffOperands = std::to_array<std::string_view>({"RUN", "RUN"});
constexpr CommandSpec kDiffCommand = {
    "terrace diff",
    "Finds where two runs part: the first step and, where both were trained with --record-hashes, "
    "the first op and the values that it has computed otherwise. Exit code 0: what both have "
    "recorded is equal; 7: it differs.",
    kDiffOperands};

enum : std::size_t { kDiffJson };
constexpr auto kDiffFlags = std::to_array<FlagSpec>({
    {"json", "Output", "", "Print one JSON document instead of lines", FlagArity::kSwitch},
});

}  // namespace

int run_diff(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + 2, argv + argc);
  if (wants_help(arguments)) {
    fmt::print("{}", flags_help(kDiffCommand, kDiffFlags));
    return 0;
  }
  const auto [values, operands] = read_command_line(kDiffCommand, kDiffFlags, arguments);
  const RecordedRun a = read_recorded_run(operands.at(0));
  const RecordedRun b = read_recorded_run(operands.at(1));
  const RunDiff diff = diff_runs(a, b);
  if (values[kDiffJson] && values[kDiffJson]->on_off()) {
    const Document document = {
        {"schema", "terrace.diff/1"},
        {"version", terrace_version()},
        {"host", Document::parse(host_facts_json())},
        {"results", Document::array({Document::parse(diff_json(a, b, diff))})}};
    fmt::print("{}\n", document.dump(2));
  } else {
    fmt::print("{}", diff_text(a, b, diff));
  }
  return diff.is_equal ? 0 : kExitDiffers;
}

}  // namespace terrace
