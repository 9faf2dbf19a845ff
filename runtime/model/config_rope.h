#pragma once

#include "runtime/model/config_reader.h"
#include "runtime/model/rope_options.h"

namespace terrace {

// How a config.json says what angles are: rope_theta beside rope_scaling in older files,
// rope_parameters in newer ones. Throws ConfigError for what is not built, and where two of them
// contradict each other: versions of transformers take one or the other.
RopeOptions read_rope(const ConfigReader& config);

}  // namespace terrace
