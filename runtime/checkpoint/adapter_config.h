#pragma once

#include <string>

#include "runtime/model/adapter.h"

// The text of adapter_config.json, as Hugging Face's PEFT writes it for LoRA.
namespace terrace {

struct AdapterConfig {
  AdapterOptions options;       // with the layers that target_modules names; without layers after
                                // parsing, because the tensors tell them
  std::string base_model = {};  // base_model_name_or_path
  bool is_fan_in_fan_out = false;
  bool ties_head = false;  // ensure_weight_tying; written, not read: the tensors tell it
};

// Parses the text. Throws ConfigError, which names `origin` and the key, where the adapter is no
// LoRA, and where a key changes what is computed and is not built. Unknown keys may be null, false
// or empty.
AdapterConfig parse_adapter_config(const std::string& json, const std::string& origin);
std::string to_json(const AdapterConfig& config);

}  // namespace terrace
