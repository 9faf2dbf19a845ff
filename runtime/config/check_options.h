#pragma once

#include <string_view>

#include "base/function_ref.h"
#include "runtime/config/train_options.h"

namespace terrace {

// Throws ConfigError for options that are missing, or that make no sense together. `is_given` tells
// whether the user gave a flag at all.
void check_options(const TrainOptions& options, FunctionRef<bool(std::string_view flag)> is_given);

}  // namespace terrace
