#pragma once

#include <span>
#include <string_view>

#include "runtime/model/config_keys.h"
#include "runtime/model/config_reader.h"
#include "runtime/model/model_config.h"

// The families of models: each is a file in this folder and a line in families.cc. docs/adding.md
// says how to add one.
namespace terrace {

struct Family {
  std::string_view model_type;                      // of config.json
  std::span<const std::string_view> architectures;  // those read; a config.json may name none
  std::span<const KnownKey> keys;                   // besides those that every model may have
  // Sets the options and the names of the parameters. Throws ConfigError for what is not built.
  void (*read)(const ConfigReader& keys, ModelConfig& config);
  // The quant_method of a quantization_config whose weights are read; empty: none is.
  std::string_view quantization = {};
};

// Returns null for a model_type that is not built.
const Family* find_family(std::string_view model_type);
// Returns what a well-known model_type that is not built would need; empty for others.
std::string_view missing_of(std::string_view model_type);
std::span<const Family* const> all_families();

extern const Family kGemma2Family;
extern const Family kGemma3TextFamily;
extern const Family kGlm4MoeFamily;
extern const Family kGpt2Family;
extern const Family kGptOssFamily;
extern const Family kGraniteFamily;
extern const Family kGraniteMoeFamily;
extern const Family kLlamaFamily;
extern const Family kMistralFamily;
extern const Family kMixtralFamily;
extern const Family kOlmo2Family;
extern const Family kOlmoeFamily;
extern const Family kPhi3Family;
extern const Family kQwen2Family;
extern const Family kQwen2MoeFamily;
extern const Family kQwen3Family;
extern const Family kQwen3MoeFamily;
extern const Family kSmolLm3Family;

}  // namespace terrace
