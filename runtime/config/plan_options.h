#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/train_options.h"

// The flags of `terrace plan`: those of `terrace train`, and some of its own.
namespace terrace {

struct PlanOptions {
  TrainOptions train;
  std::string machine;  // --profile: a shipped machine or a file; empty: this machine, as measured
  std::int32_t nodes = 1;
  std::optional<std::int32_t> ranks_per_node;  // unset: one for each device, or --local-ranks
  std::optional<double> tokens;                // of the whole run; unset: those of --max-steps
  std::optional<double> price_per_node_hour;
  std::optional<double> grams_per_kwh;  // of carbon dioxide
  std::optional<double> power_cap;      // watts of a node
  bool json = false;
  bool csv = false;         // of --sweep
  bool what_helps = false;  // whether other machines and settings are compared with these
  std::string auto_file;    // --auto: where the best settings are written; empty: none are searched
  // The names of the flags of `terrace train` that are set, on the command line or in files.
  std::vector<std::string_view> given;
};

// Reads the arguments after `terrace plan`. Data may be left out. Throws as parse_train_options()
// does.
PlanOptions parse_plan_options(const std::vector<std::string>& arguments);

// Throws ConfigError for flags that ask for two things at once. `sweeps` says whether there is a
// --sweep.
void check_plan_modes(const PlanOptions& plan, bool sweeps);

// Returns the text that `terrace plan --help` prints.
std::string plan_help();

// Returns the names of all flags that `terrace plan` takes.
std::vector<std::string_view> plan_flag_names();

}  // namespace terrace
