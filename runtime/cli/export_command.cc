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
#include "runtime/config/train_flags.h"
#include "runtime/model/model_directory.h"
#include "runtime/train/checkpoint_export.h"

namespace terrace {
namespace {

constexpr auto kExportOperands = std::to_array<std::string_view>({"CHECKPOINT", "DIR"});
constexpr CommandSpec kExportCommand = {
    "terrace export",
    "Writes the weights of a checkpoint-N as a Hugging Face directory DIR. DIR must be empty or "
    "must not exist yet.",
    kExportOperands};

enum : std::size_t { kExportDtype, kMaxShardSize, kCompanionsOf };
constexpr auto kExportFlags = std::to_array<FlagSpec>({
    {"dtype", "Weights", "auto|fp32|bf16|fp16",
     "Type of the weights; float32, bfloat16 and float16 work too (auto: the types in the run's "
     "final/)"},
    {"max-shard-size", "Weights", "SIZE",
     "Largest size of a file; only a larger tensor exceeds it. Not for an adapter (5GB)"},
    {"model", "Other files", "DIR",
     "The model directory to copy the tokenizer, the licence and other files from (the one that "
     "the run started from)"},
});

}  // namespace

int run_export(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + 2, argv + argc);
  if (wants_help(arguments)) {
    fmt::print("{}", flags_help(kExportCommand, kExportFlags));
    return 0;
  }
  const auto [values, operands] = read_command_line(kExportCommand, kExportFlags, arguments);
  CheckpointExport request;
  request.checkpoint = operands[0];
  request.directory = operands[1];
  if (values[kExportDtype]) request.dtype = parse_save_type(*values[kExportDtype]);
  if (values[kMaxShardSize]) request.max_shard_bytes = values[kMaxShardSize]->size();
  if (values[kCompanionsOf]) {
    request.model_directory = directory_of_model(values[kCompanionsOf]->name());
  }
  ConsoleLog log;
  ProgressConsole console(stdout, {.is_terminal = erases_lines(STDOUT_FILENO)});
  export_checkpoint(request, console, log);
  return 0;
}

}  // namespace terrace
