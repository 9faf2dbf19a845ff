#pragma once

#include <cstdint>
#include <string_view>

#include "base/function_ref.h"
#include "runtime/config/train_options.h"

namespace terrace {

// Throws ConfigError for options that are missing, or that make no sense together. `is_given`
// returns whether the user gave a flag at all.
void check_options(const TrainOptions& options, FunctionRef<bool(std::string_view flag)> is_given);

// Throws ConfigError for options that name steps which a run of `total_steps` does not have.
void check_total_steps(const TrainOptions& options, std::int64_t total_steps);

}  // namespace terrace
