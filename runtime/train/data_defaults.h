#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/config/train_options.h"
#include "runtime/data/dataset.h"
#include "runtime/data/token_files.h"
#include "runtime/model/model_config.h"

// Options that suit tuning. The data decides those that the user has not named.
namespace terrace {

// The longest sequences that the lengths of documents choose.
inline constexpr std::int64_t kLongestChosenLength = 4096;

// Throws ConfigError where neither --max-steps nor --num-train-epochs is given and the data is not
// JSON, so that nothing can choose them.
void check_steps_are_named(const TrainOptions& options);

// Sets the sequence length, the epochs (3 for conversations) and the learning rate (for
// conversations and prompts with weights that are loaded: 1e-5, and 2e-4 for an adapter), where the
// user has named none. Returns a text for the console that names each of them; empty where nothing
// was chosen. Throws ConfigError where the number of steps is still not known.
std::string choose_by_data(const ModelConfig& model, const Dataset& data,
                           const DocumentCounts& counts, TrainOptions& options);

// Returns warnings for samples that are documents: where most of the rows are padding, and where
// the run goes through the data more than five times.
std::vector<std::string> doubts_of_choices(const TrainOptions& options, const Dataset& data,
                                           std::int64_t total_samples);

}  // namespace terrace
