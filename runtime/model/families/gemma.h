#pragma once

#include <string>

#include "runtime/model/config_reader.h"
#include "runtime/model/model_config.h"

// The parts that Gemma 2 and Gemma 3 have in common.
namespace terrace {

// Reads sizes, names, norms around attention and feed-forward, GELU gates, and the scales of
// embeddings and scores. `positions`: their number, where the key is absent. The caller reads
// rotary embeddings, windows and caps.
void read_gemma(const ConfigReader& keys, ModelConfig& config, std::int64_t positions);

// Reads a cap of scores or logits. Returns `fallback` where the key is absent, no cap (0) where it
// is null.
float read_soft_cap(const ConfigReader& keys, const std::string& key, double fallback);

}  // namespace terrace
