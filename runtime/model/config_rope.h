#pragma once

#include <cstdint>
#include <string>

#include "runtime/model/config_reader.h"
#include "runtime/model/rope_options.h"

namespace terrace {

// The values that a family's class takes where config.json says nothing, and what the class reads.
struct RopeDefaults {
  double theta = 10000.0;
  std::int64_t positions = 0;     // max_position_embeddings
  std::int64_t rotary_width = 0;  // elements of a head that are rotated
  // original_max_position_embeddings where config.json has none beside the object, whatever the
  // object says. 0: the object's value, or else max_position_embeddings.
  std::int64_t original_positions = 0;
  // The only scaling is longrope, which the types su and yarn name too (phi3).
  bool only_longrope = false;
  bool may_be_partial = false;  // the family itself reads partial_rotary_factor
};

// Reads the angles as a config.json describes them: rope_theta beside rope_scaling in older files,
// rope_parameters in newer ones. original_max_position_embeddings beside the object wins over the
// one inside. Throws ConfigError for what is not built, for numbers that give no angles, and where
// two places contradict each other, because versions of transformers take one or the other.
RopeOptions read_rope(const ConfigReader& config, const RopeDefaults& defaults);

// Reads the angles of the layers of one type, "full_attention" or "sliding_attention" (gemma3).
// Newer files have an object for each type in rope_parameters. In older ones rope_theta and
// rope_scaling are those of full layers, and rope_local_base_freq is the theta of sliding ones.
// Where both are given, the keys of rope_scaling replace those of rope_parameters.full_attention,
// and a theta inside an object wins over one beside it. Throws ConfigError as read_rope, and for
// what transformers ignores here: a flat rope_parameters, original_max_position_embeddings beside
// the objects, yarn's truncate.
RopeOptions read_rope_of_layers(const ConfigReader& config, const std::string& layer_type,
                                const RopeDefaults& defaults);

}  // namespace terrace
