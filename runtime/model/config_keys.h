#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/model_config.h"

// The keys that a config.json may have. A key that is not known may change what the model computes,
// so it is refused: the list has what is read and what is known to be harmless.
namespace terrace {

// Throws ConfigError naming every key of a config.json, and of rope_scaling and rope_parameters in
// it, that is neither read nor known to be harmless at its value. A key that is null is harmless.
void check_config_keys(std::string_view json, ModelFamily family, const std::string& origin);

// Returns a config.json without the keys of --ignore-config-keys; a key inside an object is written
// with a dot in between. Throws ConfigError for a key that is not there, with the nearest one.
std::string without_keys(std::string_view json, const std::vector<std::string>& keys,
                         const std::string& origin);

}  // namespace terrace
