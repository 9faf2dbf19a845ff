#include "runtime/model/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/hub_cache.h"
#include "base/lfs_pointer.h"
#include "runtime/model/config_keys.h"
#include "runtime/model/config_reader.h"
#include "runtime/model/families/family.h"
#include "runtime/model/model_directory.h"
#include "runtime/model/model_presets.h"

namespace terrace {
namespace {

constexpr const char* kQuantization = "quantization_config";

void check_quantization(const ConfigReader& keys, const Family& family) {
  if (!keys.has(kQuantization)) return;
  if (family.quantization.empty()) keys.refuse(kQuantization, "is not built");
  constexpr const char* kMethod = "quant_method";
  const std::optional<ConfigReader> object = keys.object(kQuantization);
  if (object->text(kMethod, "") == family.quantization) return;
  object->refuse(kMethod, fmt::format("is not built; {} is", family.quantization));
}

void check_architecture(const ConfigReader& keys, const Family& family) {
  check_quantization(keys, family);
  if (!keys.has("architectures")) return;
  const std::vector<std::string> names = keys.texts("architectures");
  if (names.empty()) keys.wrong("architectures", "a list of names");
  if (std::ranges::find(family.architectures, names.front()) != family.architectures.end()) return;
  throw ConfigError(
      fmt::format("{}: architectures names {}, which is not built", keys.origin(), names.front()),
      fmt::format("these are built: {}", fmt::join(family.architectures, ", ")));
}

// Checks keys of several families, and of some that do not list them.
void check_attention(const ConfigReader& keys) {
  if (!keys.flag("is_causal", true))
    keys.refuse("is_causal", "is not built; only causal attention is");
  if (keys.flag("use_bidirectional_attention", false)) {
    keys.refuse("use_bidirectional_attention", "is not built; only causal attention is");
  }
}

// Returns the dropout that Hugging Face's training would use, as written.
std::string read_dropout(const ConfigReader& keys) {
  std::vector<std::string> found;
  for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout"}) {
    const double probability = keys.number_or_zero(key, 0);
    if (probability != 0) found.push_back(fmt::format("{} {}", key, probability));
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

std::string read_text_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw IoError({.operation = "open", .path = path.string(), .error_number = errno});
  std::ostringstream text;
  text << stream.rdbuf();  // this fails for an empty file, too
  if (stream.bad() || text.bad()) {
    throw IoError({.operation = "read", .path = path.string(), .error_number = errno});
  }
  refuse_lfs_pointer(text.view(), path.string());
  return text.str();
}

const Family& family_of(const ConfigReader& keys) {
  const std::string type = keys.text("model_type", "");
  if (type.empty()) keys.missing("model_type");
  const Family* const family = find_family(type);
  if (family != nullptr) return *family;
  std::vector<std::string_view> built;
  for (const Family* one : all_families()) built.push_back(one->model_type);
  const std::string_view missing = missing_of(type);
  keys.refuse("model_type",
              fmt::format("is not built{}; {} are",
                          missing.empty() ? "" : fmt::format(": it needs {}", missing),
                          fmt::join(built, ", ")));
}

ModelConfig read_model_config(const ConfigReader& keys) {
  const Family& family = family_of(keys);
  check_architecture(keys, family);
  check_attention(keys);
  ModelConfig config;
  config.family = family.model_type;
  config.name = keys.origin();
  config.initializer_range = static_cast<float>(keys.number("initializer_range", 0.02));
  family.read(keys, config);
  config.unused_dropout = read_dropout(keys);
  return config;
}

}  // namespace

namespace {

// Returns the text of a model whose weights are written as numbers: without what says how they were
// quantised.
std::string as_written(std::string_view json, const std::string& origin) {
  const bool is_quantised = ConfigReader(json, origin).has(kQuantization);
  return is_quantised ? without_keys(json, {kQuantization}, origin) : std::string(json);
}

}  // namespace

ModelConfig parse_model_config(std::string_view json, const std::string& origin,
                               const std::vector<std::string>& ignored_keys) {
  const std::string looked_at = without_keys(json, ignored_keys, origin);
  ModelConfig config = read_model_config(ConfigReader(looked_at, origin));
  check_config_keys(looked_at, find_family(config.family)->keys, origin);
  config.json = as_written(json, origin);
  config.ignored_keys = ignored_keys;
  return config;
}

ModelConfig parse_saved_config(std::string_view json, const std::string& origin) {
  ModelConfig config = read_model_config(ConfigReader(json, origin));
  config.json = json;
  return config;
}

ModelConfig load_model_config(const std::string& model,
                              const std::vector<std::string>& ignored_keys) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const std::string directory = directory_of_model(model);
  const fs::path file = fs::path(directory) / "config.json";
  if (fs::exists(file, ignored)) {
    ModelConfig config = parse_model_config(read_text_file(file), file.string(), ignored_keys);
    config.name = model_name_of(directory);
    return config;
  }
  const std::string_view json = preset_json(model);
  if (!json.empty()) return parse_model_config(json, model, ignored_keys);
  if (fs::is_directory(directory, ignored)) throw no_config_error(directory);
  throw absent_model_error(model);
}

std::string config_json_to_save(const ModelConfig& config) {
  return without_keys(config.json, config.ignored_keys, config.name);
}

}  // namespace terrace
