#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/flag_value.h"

// A command's flags as a table: reads them from the command line, and shows them in the command's
// help.
namespace terrace {

enum class FlagArity : std::uint8_t {
  kSwitch,    // on; or --name=off (true, false, 1, 0, too): its text is "on" or "off"
  kOne,       // one value, given once
  kOptional,  // one value, given once, or none: then it has no texts
  kRepeated,  // one value each time it is given
  kList,      // one or more values each time it is given
};

struct FlagSpec {
  std::string_view name;   // without the dashes in front
  std::string_view group;  // the flag's heading in the help
  std::string_view value;  // what its value is called, "N"; empty for a switch
  std::string_view help;
  FlagArity arity = FlagArity::kOne;
};

struct CommandSpec {
  std::string_view name;     // "terrace train"
  std::string_view summary;  // one sentence or more
  // The names of the arguments without a flag: "CHECKPOINT". Each is given once; the last one may
  // be repeated if the command says so.
  std::span<const std::string_view> operands = {};
  bool repeats_last_operand = false;
};

struct CommandLine {
  std::vector<std::optional<FlagValue>> values;  // of flags, in the table's order
  std::vector<std::string> operands;
};

// Returns the value given for each flag, in the table's order; unset for a flag that was not given.
// Throws ConfigError for an unknown flag (naming the nearest one), for a flag given twice and for a
// missing value.
std::vector<std::optional<FlagValue>> read_flags(const CommandSpec& command,
                                                 std::span<const FlagSpec> flags,
                                                 const std::vector<std::string>& arguments);

// Returns the same, with the command's operands, which may stand before, between and after flags.
// Throws ConfigError for a missing operand and for one too many.
CommandLine read_command_line(const CommandSpec& command, std::span<const FlagSpec> flags,
                              const std::vector<std::string>& arguments);

// Returns the text that `--help` prints. --help and -h are flags of every command and are in no
// table.
std::string flags_help(const CommandSpec& command, std::span<const FlagSpec> flags);
// Returns whether the arguments ask for help.
bool wants_help(const std::vector<std::string>& arguments);

// Returns the name among the flags that is nearest to `name`, both without dashes in front, for
// messages.
std::string nearest_flag(std::string_view name, std::span<const FlagSpec> flags);

}  // namespace terrace
