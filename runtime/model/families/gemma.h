#pragma once

#include <string>

#include "runtime/model/config_reader.h"
#include "runtime/model/model_config.h"

// What Gemma 2 and Gemma 3 have in common.
namespace terrace {

// Sizes, names, norms around attention and feed-forward, GELU gates, the scales of embeddings and
// scores. Rotary embeddings, windows and caps are left.
void read_gemma(const ConfigReader& keys, ModelConfig& config);

// A cap of scores or logits: `fallback` where the key is absent, none where it is null.
float read_soft_cap(const ConfigReader& keys, const std::string& key, double fallback);

}  // namespace terrace
