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
  float initializer_range = 0.02F;
  std::string dropout;  // what config.json says of it, as text: nothing is dropped here
  // The config.json that this came from, or one made for the preset. final/config.json will be the
  // same, with only the dtype key changed.
  std::string json;
  // Keys of it that were not looked at (--ignore-config-keys).
  std::vector<std::string> ignored_keys;
  // Patterns of the names of the tensors that train (trainable.h); the others are frozen. Empty:
  // all train.
  std::vector<std::string> trainable;
  // Where there is an adapter it trains, and everything that config.json describes is frozen.
  AdapterOptions adapter;
};

// `model` is a directory with a config.json, or a preset's name. Throws ConfigError for an unknown
// preset, with the nearest name, and for a key that is missing, contradictory, unknown or asks for
// what is not built, naming file and key. `ignored_keys` count as absent (config_keys.h).
ModelConfig load_model_config(const std::string& model,
                              const std::vector<std::string>& ignored_keys = {});
ModelConfig parse_model_config(std::string_view json, const std::string& origin,
                               const std::vector<std::string>& ignored_keys = {});

// Returns the text of a checkpoint's config.json: the model's without the keys that were ignored.
std::string config_json_to_save(const ModelConfig& config);
// Reads such a text. Its keys were checked when the run began, so unknown ones are not refused.
ModelConfig parse_saved_config(std::string_view json, const std::string& origin);

const std::vector<std::string>& preset_names();

// is_hub_name() returns whether a text has the form of a model's name on the Hugging Face hub, and
// download_remedy() what to do then.
bool is_hub_name(const std::string& model);
std::string download_remedy(const std::string& model);

}  // namespace terrace
