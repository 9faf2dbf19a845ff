#include "tests/runtime/model/parsed_families.h"

#include <nlohmann/json.hpp>

namespace terrace {
namespace {

nlohmann::json keys_of(const std::string& family, const std::string& more) {
  nlohmann::json keys = {
      {"model_type", family},         {"hidden_size", 128}, {"intermediate_size", 96},
      {"num_hidden_layers", 6},       {"vocab_size", 300},  {"num_attention_heads", 32},
      {"max_position_embeddings", 50}};
  const bool has_large_default = family == "phi3" || family == "smollm3";
  if (has_large_default) keys["pad_token_id"] = 3;
  keys.update(nlohmann::json::parse(more));
  return keys;
}

ModelConfig parsed(const nlohmann::json& keys) {
  return parse_model_config(keys.dump(), "a/config.json");
}

}  // namespace

ModelConfig parse_with(const std::string& family, const std::string& more) {
  return parsed(keys_of(family, more));
}

ModelConfig parse_unpadded(const std::string& family, const std::string& more) {
  nlohmann::json keys = keys_of(family, more);
  keys.erase("pad_token_id");
  return parsed(keys);
}

std::vector<std::int64_t> windows(const ModelConfig& config) {
  std::vector<std::int64_t> list;
  for (std::int64_t i = 0; i < config.layers; ++i) list.push_back(config.layer(i).window);
  return list;
}

}  // namespace terrace
