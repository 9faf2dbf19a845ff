#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/families/family.h"

// Models of a config.json with few keys: all keys that have no default, and as many heads as any
// class has key-value heads by default.
namespace terrace {

// `more` is an object of keys to add or to replace.
ModelConfig parse_with(const std::string& family, const std::string& more = "{}");
// Does the same without pad_token_id, where the class's padding token counts.
ModelConfig parse_unpadded(const std::string& family, const std::string& more = "{}");

// Returns the window of each layer.
std::vector<std::int64_t> windows(const ModelConfig& config);

// A config.json that its family refuses.
struct RefusedByAFamily {
  const char* what;
  const char* family;
  std::string more;   // as for parse_with()
  const char* named;  // in the message
};

}  // namespace terrace
