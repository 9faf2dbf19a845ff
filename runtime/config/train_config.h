#pragma once

#include <string>
#include <vector>

#include "base/function_ref.h"
#include "runtime/config/train_options.h"

namespace terrace {

// Reads the arguments behind `terrace train`, and the file that --config names: its keys are the
// flags' names with _ for -, and flags win. Throws ConfigError for what is unknown (with the
// nearest name), wrong, contradictory, or in the interface and not built yet. Nothing is ignored.
TrainOptions parse_train_options(const std::vector<std::string>& arguments);

// Makes the micro-batch size and the number of micro-batches of a global batch, where the options
// have one, for so many ranks; then they have none. Throws ConfigError where that is not possible.
void settle_batch(TrainOptions& options, int ranks);

// What `terrace train --help` prints.
std::string train_help();

// The options as a TOML file that reads back to the same options. What is not set is there as a
// comment.
std::string to_toml(const TrainOptions& options);

// The options with every path made absolute: what it means here, it means everywhere.
TrainOptions with_absolute_paths(TrainOptions options);

// The keys in which `options` differ from `toml`, of another's to_toml(), each with both values:
// "learning_rate 0.0003 -> 0.01".
std::vector<std::string> differing_keys(const std::string& toml, const TrainOptions& options);
// Those of model, data, batch, optimizer, precision and save_dtype alone. Where a run is stopped,
// and in which form master weights are kept, makes no difference to what it computes.
std::vector<std::string> changed_keys(const std::string& toml, const TrainOptions& options);

}  // namespace terrace
