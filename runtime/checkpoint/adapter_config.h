#pragma once

#include <string>

#include "runtime/model/adapter.h"

// The text of adapter_config.json, as Hugging Face's PEFT writes it for LoRA.
namespace terrace {

struct AdapterConfig {
  AdapterOptions options;       // of the layers, what target_modules names; of a text that is read
                                // they are told by the tensors instead, and none are here
  std::string base_model = {};  // base_model_name_or_path
  double dropout = 0;           // lora_dropout
  bool is_fan_in_fan_out = false;
};

// Throws ConfigError naming `origin` and the key: for what is no LoRA, and for a key that changes
// what is computed and is not built. Keys that are not known may be null, false or empty.
AdapterConfig parse_adapter_config(const std::string& json, const std::string& origin);
std::string to_json(const AdapterConfig& config);

}  // namespace terrace
