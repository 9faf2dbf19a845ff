#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/adapter.h"
#include "runtime/model/decoder_options.h"

// A model as the keys of a Hugging Face config.json describe it, or one of the presets.
namespace terrace {

struct ModelConfig : DecoderOptions {
  std::string name;  // the preset's, or the directory's
  ParameterNames names;
  // The names of gate, up and down in the expert that all rows of a layer of experts have.
  std::array<ParameterName, 3> shared_expert_names;
  float initializer_range = 0.02F;
  std::string unused_dropout;  // the text of config.json's dropout, which nothing here uses
  // The config.json that this came from, or one made for the preset, without quantization_config:
  // weights are written as numbers. final/config.json will be the same, with only the dtype key
  // changed.
  std::string json;
  // Keys of it that were not looked at (--ignore-config-keys).
  std::vector<std::string> ignored_keys;
  // Patterns of the names of the tensors that train (trainable.h); the others are frozen. Empty:
  // all train.
  std::vector<std::string> trainable;
  // Where there is an adapter, it trains with its whole modules. Everything else that config.json
  // describes is frozen.
  AdapterOptions adapter;
};

// `model` is a directory with a config.json, as directory_of_model() finds it, or a preset's name.
// Throws ConfigError for any other path (absent_model_error(), no_config_error()), and for a key
// that is missing, contradictory, unknown or asks for what is not built, naming file and key.
// `ignored_keys` count as absent (config_keys.h).
ModelConfig load_model_config(const std::string& model,
                              const std::vector<std::string>& ignored_keys = {});
ModelConfig parse_model_config(std::string_view json, const std::string& origin,
                               const std::vector<std::string>& ignored_keys = {});

// Returns the text of a checkpoint's config.json: the model's without the keys that were ignored.
std::string config_json_to_save(const ModelConfig& config);
// Reads such a text. Its keys were checked when the run began, so unknown ones are not refused.
ModelConfig parse_saved_config(std::string_view json, const std::string& origin);

const std::vector<std::string>& preset_names();

}  // namespace terrace
