#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/config/flag_reader.h"
#include "runtime/config/train_options.h"

namespace terrace {

// One flag of `terrace train`, which is also a key of its file.
struct TrainFlag {
  FlagSpec spec;
  // Reads the value into the options; throws ConfigError for a value that is wrong or not built
  // yet.
  void (*set)(TrainOptions& options, const FlagValue& value);
  // Returns the value as a TOML literal; empty where the option is not set.
  std::string (*show)(const TrainOptions& options);
  // The hyperparameter of an update rule that the flag sets, if any. Then the two above are null,
  // because all hyperparameters are read and shown in the same way.
  const Hyperparameter* hyperparameter = nullptr;
};

void set_flag(const TrainFlag& flag, TrainOptions& options, const FlagValue& value);
std::string show_flag(const TrainFlag& flag, const TrainOptions& options);

// The tables of flags, by groups of the help.
std::span<const TrainFlag> model_flags();  // model, data, batch
std::vector<TrainFlag> optimizer_flags();  // optimizer, precision
std::vector<TrainFlag> tier_flags();       // device and tiers
std::span<const TrainFlag> step_flags();   // step program, ranks, run

// Returns the name of the flag that places a state: "place-optimizer".
std::string_view place_flag(StateClass state);

// Returns the value of --save-dtype, or of a flag like it.
SaveType parse_save_type(const FlagValue& value);

// Returns all flags, in the order of the help.
std::vector<TrainFlag> train_flags();

}  // namespace terrace
