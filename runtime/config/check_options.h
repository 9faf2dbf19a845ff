#pragma once

#include <cstdint>
#include <string_view>

#include "base/function_ref.h"
#include "runtime/config/train_options.h"

namespace terrace {

// The command that takes the options. A plan needs no data, and prints --json itself.
enum class CommandUse : std::uint8_t { kTrain, kPlan };

// Throws ConfigError for options that are missing, or that make no sense together. `is_given`
// returns whether the user gave a flag at all.
void check_options(const TrainOptions& options, CommandUse use,
                   FunctionRef<bool(std::string_view flag)> is_given);

// Throws ConfigError for options that name steps which a run of `total_steps` does not have.
void check_total_steps(const TrainOptions& options, std::int64_t total_steps);

// Checks that the final learning rate is not above the peak. Throws ConfigError.
void check_learning_rate(const OptimizerFlags& optimizer);

}  // namespace terrace
