#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/flag_value.h"

// A command's flags as a table: how they are read from the command line, and how its help shows
// them.
namespace terrace {

enum class FlagArity : std::uint8_t {
  kSwitch,    // on; or --name=off (true, false, 1, 0, too): its text is "on" or "off"
  kOne,       // one value, given once
  kRepeated,  // one value each time it is given
  kList,      // one or more values each time it is given
};

struct FlagSpec {
  std::string_view name;   // without the dashes in front
  std::string_view group;  // its heading in the help
  std::string_view value;  // what its value is called, "N"; empty for a switch
  std::string_view help;
  FlagArity arity = FlagArity::kOne;
};

struct CommandSpec {
  std::string_view name;     // "terrace train"
  std::string_view summary;  // one sentence or more
  // What is given without a flag, by name: "CHECKPOINT". Each is given once, the last of them once
  // or more where the command says so.
  std::span<const std::string_view> operands = {};
  bool repeats_last_operand = false;
};

struct CommandLine {
  std::vector<std::optional<FlagValue>> values;  // of flags, in the table's order
  std::vector<std::string> operands;
};

// What was given for each flag, in the table's order; unset for one that was not given. Throws
// ConfigError for an unknown flag with the nearest one, for a flag given twice and for a missing
// value.
std::vector<std::optional<FlagValue>> read_flags(const CommandSpec& command,
                                                 std::span<const FlagSpec> flags,
                                                 const std::vector<std::string>& arguments);

// The same, with the command's operands, which may stand before, between and behind flags. Throws
// ConfigError for one that is missing or too many.
CommandLine read_command_line(const CommandSpec& command, std::span<const FlagSpec> flags,
                              const std::vector<std::string>& arguments);

// What `--help` prints. --help and -h are flags of every command and in no table.
std::string flags_help(const CommandSpec& command, std::span<const FlagSpec> flags);
// Whether the arguments ask for it.
bool wants_help(const std::vector<std::string>& arguments);

// "--a-b" as the nearest of the flags' names, for messages.
std::string nearest_flag(std::string_view name, std::span<const FlagSpec> flags);

}  // namespace terrace
