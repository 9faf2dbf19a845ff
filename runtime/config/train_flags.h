#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/config/flag_reader.h"
#include "runtime/config/train_options.h"

namespace terrace {

// One flag of `terrace train`, and key of its file.
struct TrainFlag {
  FlagSpec spec;
  // Reads the value; throws ConfigError for one that is wrong or not built yet.
  void (*set)(TrainOptions& options, const FlagValue& value);
  // The value as a TOML literal; empty where the option is not set.
  std::string (*show)(const TrainOptions& options);
  // Of an update rule; then the two above are null, as all of these are read and shown alike.
  const Hyperparameter* hyperparameter = nullptr;
};

void set_flag(const TrainFlag& flag, TrainOptions& options, const FlagValue& value);
std::string show_flag(const TrainFlag& flag, const TrainOptions& options);

// The tables, by groups of the help.
std::span<const TrainFlag> model_flags();  // model, data, batch
std::vector<TrainFlag> optimizer_flags();  // optimizer, precision
std::vector<TrainFlag> tier_flags();       // device and tiers
std::span<const TrainFlag> step_flags();   // step program, ranks, run

// The name of the flag that places a state: "place-optimizer".
std::string_view place_flag(StateClass state);

// The value of --save-dtype, and of flags like it.
SaveType parse_save_type(const FlagValue& value);

// All of them, in the order of the help.
std::vector<TrainFlag> train_flags();

}  // namespace terrace
