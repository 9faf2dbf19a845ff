#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

// The keys that a config.json may have. A key that is not known may change what the model computes,
// so it is refused: the list has what is read and what is known to be harmless.
namespace terrace {

// The JSON of the one value at which a key is harmless; empty: it is read, or harmless at any.
struct KnownKey {
  std::string_view name;
  std::string_view harmless_at = {};
};

// Throws ConfigError naming every key of a config.json, and of rope_scaling and rope_parameters in
// it, and of the objects of layer types in rope_parameters, that is neither among the family's
// `own` nor known to be harmless at its value. A key that is null is harmless.
void check_config_keys(std::string_view json, std::span<const KnownKey> own,
                       const std::string& origin);

// Returns a config.json without the keys of --ignore-config-keys; a key inside an object is written
// with a dot in between. Throws ConfigError for a key that is not there, with the nearest one.
std::string without_keys(std::string_view json, const std::vector<std::string>& keys,
                         const std::string& origin);

}  // namespace terrace
