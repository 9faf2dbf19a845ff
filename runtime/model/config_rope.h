#pragma once

#include <cstdint>
#include <string>

#include "runtime/model/config_reader.h"
#include "runtime/model/rope_options.h"

namespace terrace {

// What a family's class takes where config.json says nothing.
struct RopeDefaults {
  double theta = 10000.0;
  std::int64_t positions = 0;     // max_position_embeddings
  std::int64_t rotary_width = 0;  // elements of a head that are rotated
};

// How a config.json says what angles are: rope_theta beside rope_scaling in older files,
// rope_parameters in newer ones. Throws ConfigError for what is not built, and where two of them
// contradict each other: versions of transformers take one or the other.
RopeOptions read_rope(const ConfigReader& config, const RopeDefaults& defaults);

// Of the layers of one type, where rope_parameters has an object for each type
// ("full_attention", "sliding_attention").
RopeOptions read_rope_of_layers(const ConfigReader& config, const std::string& layer_type,
                                const RopeDefaults& defaults);

}  // namespace terrace
