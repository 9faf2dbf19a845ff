#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

// The keys that a config.json may have. An unknown key may change what the model computes, so it is
// refused. The list has the keys that are read and those that are known to be harmless.
namespace terrace {

// A known key. With neither of the other members it is read, or harmless at any value.
// `harmless_at`: the JSON of the one value at which it is harmless. `repeats`: the name of another
// key; this one is harmless only if that key is there with the same value.
struct KnownKey {
  std::string_view name;
  std::string_view harmless_at = {};
  std::string_view repeats = {};
};

// Throws ConfigError naming every key of a config.json that is neither among the family's `own` nor
// known to be harmless at its value. The keys inside rope_scaling and rope_parameters, and inside
// the objects of layer types in rope_parameters, are checked too. A key that is null is harmless,
// and so is an unknown key that is false: it says that the model lacks a feature.
void check_config_keys(std::string_view json, std::span<const KnownKey> own,
                       const std::string& origin);

// Returns a config.json without the keys of --ignore-config-keys. A key inside an object is written
// with a dot in between. Throws ConfigError for a key that is not there, naming the nearest one.
std::string without_keys(std::string_view json, const std::vector<std::string>& keys,
                         const std::string& origin);

}  // namespace terrace
