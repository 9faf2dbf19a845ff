#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string_view>

#include "runtime/cli/commands.h"
#include "runtime/cli/console_log.h"
#include "runtime/cli/progress_console.h"
#include "runtime/cli/standard_output.h"
#include "runtime/config/flag_reader.h"
#include "runtime/train/adapter_merge.h"

namespace terrace {
namespace {

constexpr auto kMergeOperands = std::to_array<std::string_view>({"BASE", "ADAPTER", "DIR"});
constexpr CommandSpec kMergeCommand = {
    "terrace merge",
    "Merges an adapter into the matrices of its base model BASE and writes the result, in the "
    "types of BASE, as a Hugging Face directory DIR. DIR must be empty or must not exist yet.",
    kMergeOperands};

constexpr auto kMergeFlags = std::to_array<FlagSpec>({
    {"ignore-config-keys", "Model", "KEY",
     "Keys of BASE's config.json that Terrace does not know and that do not change the model",
     FlagArity::kList},
});

}  // namespace

int run_merge(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + 2, argv + argc);
  if (wants_help(arguments)) {
    fmt::print("{}", flags_help(kMergeCommand, kMergeFlags));
    return 0;
  }
  const auto [values, operands] = read_command_line(kMergeCommand, kMergeFlags, arguments);
  AdapterMerge request = {.base = operands[0], .adapter = operands[1], .directory = operands[2]};
  if (values[0]) request.ignored_config_keys = values[0]->texts();
  ConsoleLog log;
  ProgressConsole console(stdout, {.is_terminal = erases_lines(STDOUT_FILENO)});
  merge_adapter(request, console, log);
  return 0;
}

}  // namespace terrace
