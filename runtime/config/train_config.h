#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "runtime/config/flag_reader.h"
#include "runtime/config/train_options.h"

namespace terrace {

// Reads the arguments after `terrace train`, and the file that --config names: its keys are the
// flags' names with _ for -, and flags win. Throws ConfigError for options that are unknown (with
// the nearest name), wrong, contradictory, or in the interface but not built yet. Nothing is
// ignored.
TrainOptions parse_train_options(const std::vector<std::string>& arguments);

// The flags of another command that takes those of `terrace train`, too.
struct TrainFlagReading {
  TrainOptions options;
  std::vector<std::optional<FlagValue>> own;  // of the command's own flags, in their order
  // The names of the flags of `terrace train` that are set, on the command line or in files.
  std::vector<std::string_view> given;
};
// Reads the arguments of such a command. It runs no training, so it needs no data, and
// prints --json itself.
TrainFlagReading read_train_flags(const CommandSpec& command, std::span<const FlagSpec> own,
                                  const std::vector<std::string>& arguments);
// Returns the help of such a command: its own flags come first.
std::string train_flags_help(const CommandSpec& command, std::span<const FlagSpec> own);

// Replaces the global batch of the options, if they have one, by the micro-batch size and the
// number of micro-batches for `ranks` ranks. Throws ConfigError where that is not possible.
void settle_batch(TrainOptions& options, int ranks);

// Returns the text that `terrace train --help` prints.
std::string train_help();

// Returns the options as a TOML file that reads back to the same options. Options that are not set
// appear as comments.
std::string to_toml(const TrainOptions& options);
// Returns only the keys of the flags with these names, without comments and headings.
std::string to_toml(const TrainOptions& options, std::span<const std::string_view> flags);

// Returns the options with every path made absolute, so that they mean the same in any directory.
TrainOptions with_absolute_paths(TrainOptions options);

// Returns the keys in which `options` differ from `toml`, the to_toml() of other options, each with
// both values: "learning_rate 0.0003 -> 0.01".
std::vector<std::string> differing_keys(const std::string& toml, const TrainOptions& options);
// Returns only the differing keys of model, data, batch, optimizer, precision and save_dtype. Where
// a run is stopped, and the form in which master weights are kept, make no difference to what it
// computes.
std::vector<std::string> changed_keys(const std::string& toml, const TrainOptions& options);

}  // namespace terrace
