#include "runtime/model/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "runtime/config/nearest_name.h"
#include "runtime/model/config_keys.h"
#include "runtime/model/json_text.h"
#include "runtime/model/model_presets.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

// The keys of one JSON object, read with the object's origin at hand for messages.
class Keys {
 public:
  Keys(const Json& object, const std::string& origin) : object_(object), origin_(origin) {}

  bool has(const std::string& key) const {
    const auto found = object_.find(key);
    return found != object_.end() && !found->is_null();
  }

  // The value as it stands in the file.
  std::string written(const std::string& key) const {
    return has(key) ? unquote_non_finite(object_.at(key).dump()) : "(absent)";
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& why) const {
    throw ConfigError(fmt::format("{}: {} {} {}", origin_, key, written(key), why),
                      "this model needs something that is not built; choose another");
  }

  // A count of at least one. JSON writers may give 4096.0.
  std::int64_t count(const std::string& key) const {
    if (!has(key)) missing(key);
    const Json& value = object_.at(key);
    double number = value.is_number() ? value.get<double>() : 0.0;
    if (number < 1.0 || number > 1e15 ||
        number != static_cast<double>(static_cast<std::int64_t>(number))) {
      wrong(key, "a whole number of at least 1");
    }
    return static_cast<std::int64_t>(number);
  }
  std::int64_t count(const std::string& key, std::int64_t fallback) const {
    return has(key) ? count(key) : fallback;
  }
  // The value of a key that has two names; refuses two values.
  std::int64_t count_of(const std::string& key, const std::string& alias) const {
    if (!has(alias)) return count(key);
    if (has(key) && count(key) != count(alias)) {
      wrong(key,
            fmt::format("{} as {}, another name of the same size, has it", written(alias), alias));
    }
    return count(alias);
  }

  double number(const std::string& key) const {
    if (!has(key)) missing(key);
    const Json& value = object_.at(key);
    if (!value.is_number() || !(value.get<double>() > 0.0)) wrong(key, "a number above 0");
    return value.get<double>();
  }
  double number(const std::string& key, double fallback) const {
    return has(key) ? number(key) : fallback;
  }

  double number_or_zero(const std::string& key) const {
    const Json& value = object_.at(key);
    if (!value.is_number() || !(value.get<double>() >= 0.0)) wrong(key, "a number from 0 on");
    return value.get<double>();
  }

  bool flag(const std::string& key, bool fallback) const {
    if (!has(key)) return fallback;
    if (!object_.at(key).is_boolean()) wrong(key, "true or false");
    return object_.at(key).get<bool>();
  }

  std::string text(const std::string& key, const std::string& fallback) const {
    if (!has(key)) return fallback;
    if (!object_.at(key).is_string()) wrong(key, "a string");
    return object_.at(key).get<std::string>();
  }

  // Null when absent.
  const Json* object(const std::string& key) const {
    if (!has(key)) return nullptr;
    if (!object_.at(key).is_object()) wrong(key, "an object");
    return &object_.at(key);
  }

  [[noreturn]] void missing(const std::string& key) const {
    throw ConfigError(fmt::format("{}: key {} is missing", origin_, key),
                      "is this the config.json of a whole model?");
  }

  [[noreturn]] void wrong(const std::string& key, const std::string& wanted) const {
    throw ConfigError(fmt::format("{}: key {} is {}, not {}", origin_, key, written(key), wanted),
                      "correct the file");
  }

 private:
  const Json& object_;
  const std::string& origin_;
};

void check_architecture(const Keys& keys, const Json& object, const std::string& origin,
                        const std::vector<std::string>& accepted) {
  if (keys.has("quantization_config")) keys.refuse("quantization_config", "is not built");
  if (!keys.has("architectures")) return;
  const Json& list = object.at("architectures");
  if (!list.is_array() || list.empty() || !list.at(0).is_string()) {
    keys.wrong("architectures", "a list of names");
  }
  const auto name = list.at(0).get<std::string>();
  if (std::find(accepted.begin(), accepted.end(), name) == accepted.end()) {
    throw ConfigError(fmt::format("{}: architectures names {}, which is not built", origin, name),
                      fmt::format("what is: {}", fmt::join(accepted, ", ")));
  }
}

void read_gpt2(const Keys& keys, ModelConfig& config) {
  config.width = keys.count_of("n_embd", "hidden_size");
  config.layers = keys.count_of("n_layer", "num_hidden_layers");
  config.heads = keys.count_of("n_head", "num_attention_heads");
  config.positions = keys.count_of("n_positions", "max_position_embeddings");
  config.vocabulary = keys.count("vocab_size");
  config.intermediate = keys.count("n_inner", 4 * config.width);
  config.key_value_heads = config.heads;
  if (config.width % config.heads != 0) {
    keys.refuse("n_embd", fmt::format("is not a multiple of n_head {}", config.heads));
  }
  config.head_width = config.width / config.heads;
  config.norm_epsilon = static_cast<float>(keys.number("layer_norm_epsilon", 1e-5));
  config.tied = keys.flag("tie_word_embeddings", true);
  const std::string activation = keys.text("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    keys.refuse("activation_function", "is not built; gelu_new and gelu_pytorch_tanh are");
  }
  if (!keys.flag("scale_attn_weights", true)) keys.refuse("scale_attn_weights", "is not built");
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    if (keys.flag(key, false)) keys.refuse(key, "is not built");
  }
}

constexpr const char* kOlder = "rope_scaling";
constexpr const char* kNewer = "rope_parameters";

RopeType rope_type(const Keys& keys, const std::string& key) {
  const std::string type = keys.text(key, "default");
  if (type == "default") return RopeType::kDefault;
  if (type == "linear") return RopeType::kLinear;
  if (type == "llama3") return RopeType::kLlama3;
  keys.refuse(key, "is not built; default, linear and llama3 are");
}

void read_llama3_rope(const Keys& rope, RopeOptions& options) {
  options.low_freq_factor = rope.number("low_freq_factor");
  options.high_freq_factor = rope.number("high_freq_factor");
  options.original_positions = rope.count("original_max_position_embeddings");
  if (options.high_freq_factor <= options.low_freq_factor) {
    rope.wrong("high_freq_factor",
               fmt::format("above low_freq_factor {}", options.low_freq_factor));
  }
}

// `object` is the value of `key`, or an empty one. `theta` is that of rope_theta beside it.
RopeOptions read_object(const Json& object, const std::string& key, double theta,
                        const std::string& origin) {
  const std::string rope_origin = fmt::format("{}: {}", origin, key);
  const Keys rope(object, rope_origin);
  for (const auto& [name, value] : object.items()) {
    if (value.is_object()) {
      rope.refuse(name, "(rotary embeddings that differ by layer) is not built");
    }
  }
  if (!rope.has("rope_type") && !rope.has("type") && rope.has("factor")) {
    rope.refuse("factor", "is of a scaling without a rope_type");
  }
  if (rope.has("rope_type") &&
      rope.text("type", rope.text("rope_type", "")) != rope.text("rope_type", "")) {
    rope.wrong("type", fmt::format("{} as rope_type is", rope.written("rope_type")));
  }
  RopeOptions options;
  options.theta = rope.number("rope_theta", theta);
  options.type = rope_type(rope, rope.has("rope_type") ? "rope_type" : "type");
  if (options.type != RopeType::kDefault) options.factor = rope.number("factor");
  if (options.type == RopeType::kLlama3) read_llama3_rope(rope, options);
  if (rope.number("partial_rotary_factor", 1.0) != 1.0) {
    rope.refuse("partial_rotary_factor", "is not built");
  }
  return options;
}

[[noreturn]] void refuse_both(const std::string& origin, const std::string& one,
                              const std::string& other) {
  throw ConfigError(
      fmt::format("{}: {} and {} differ, and versions of transformers take one or the other",
                  origin, one, other),
      "remove the wrong one from config.json");
}

void check_theta(const Keys& keys, const RopeOptions& options, const std::string& key,
                 const std::string& origin) {
  if (!keys.has("rope_theta") || keys.number("rope_theta") == options.theta) return;
  refuse_both(origin, fmt::format("rope_theta {}", keys.written("rope_theta")),
              fmt::format("rope_theta {} of {}", options.theta, key));
}

// Older files have rope_theta beside rope_scaling, newer ones rope_parameters. Where two of them
// contradict each other, versions of transformers take one or the other.
RopeOptions read_rope(const Json& config, const std::string& origin) {
  const Keys keys(config, origin);
  if (keys.number("partial_rotary_factor", 1.0) != 1.0) {
    keys.refuse("partial_rotary_factor", "is not built");
  }
  const double theta = keys.number("rope_theta", RopeOptions().theta);
  const Json* const older = keys.object(kOlder);
  const Json* const newer = keys.object(kNewer);
  const bool has_older = older != nullptr && !older->empty();
  const bool has_newer = newer != nullptr && !newer->empty();
  const std::string key = has_older ? kOlder : kNewer;
  const Json empty = Json::object();
  const RopeOptions options = read_object(has_older   ? *older
                                          : has_newer ? *newer
                                                      : empty,
                                          key, theta, origin);
  check_theta(keys, options, key, origin);
  if (has_older && has_newer && !(read_object(*newer, kNewer, theta, origin) == options)) {
    refuse_both(origin, kOlder, kNewer);
  }
  return options;
}

void read_llama(const Keys& keys, ModelConfig& config) {
  config.width = keys.count("hidden_size");
  config.intermediate = keys.count("intermediate_size");
  config.layers = keys.count("num_hidden_layers");
  config.heads = keys.count("num_attention_heads");
  config.key_value_heads = keys.count("num_key_value_heads", config.heads);
  config.vocabulary = keys.count("vocab_size");
  config.positions = keys.count("max_position_embeddings");
  if (config.heads % config.key_value_heads != 0) {
    keys.refuse("num_attention_heads",
                fmt::format("is not a multiple of num_key_value_heads {}", config.key_value_heads));
  }
  if (!keys.has("head_dim") && config.width % config.heads != 0) {
    keys.refuse("hidden_size", fmt::format("is not a multiple of num_attention_heads {}, and there "
                                           "is no head_dim",
                                           config.heads));
  }
  config.head_width = keys.count("head_dim", config.width / config.heads);
  if (config.head_width % 2 != 0) {
    keys.refuse(
        keys.has("head_dim") ? "head_dim" : "hidden_size",
        fmt::format("makes heads of odd width {}, which cannot be rotated", config.head_width));
  }
  config.norm_epsilon = static_cast<float>(keys.number("rms_norm_eps", 1e-6));
  config.tied = keys.flag("tie_word_embeddings", false);
  config.attention_bias = keys.flag("attention_bias", false);
  config.mlp_bias = keys.flag("mlp_bias", false);
  const std::string activation = keys.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {  // two names of one function
    keys.refuse("hidden_act", "is not built; silu is");
  }
  if (keys.count("pretraining_tp", 1) != 1) keys.refuse("pretraining_tp", "is not built; 1 is");
}

// What Hugging Face's training would drop at random, as written.
std::string read_dropout(const Keys& keys) {
  std::vector<std::string> found;
  for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout"}) {
    if (keys.has(key) && keys.number_or_zero(key) != 0) {
      found.push_back(fmt::format("{} {}", key, keys.number_or_zero(key)));
    }
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

// Sizes whose mere lists would fill memory, or whose products would not fit 64 bits.
void check_sizes(const ModelConfig& config, const std::string& origin) {
  constexpr std::int64_t kLayersMax = 10'000;
  constexpr std::int64_t kWidthMax = std::int64_t{1} << 24;
  const auto refuse = [&](const char* what, std::int64_t is, std::int64_t most) {
    throw ConfigError(fmt::format("{}: {} {}, and at most {} are built", origin, is, what, most),
                      "is this the config.json of a language model?");
  };
  if (config.layers > kLayersMax) refuse("layers", config.layers, kLayersMax);
  for (const std::int64_t width :
       {config.width, config.intermediate, config.vocabulary, config.heads, config.head_width}) {
    if (width > kWidthMax) refuse("columns in a matrix", width, kWidthMax);
  }
  if (config.positions > kWidthMax) refuse("positions", config.positions, kWidthMax);
  const std::int64_t of_heads = config.heads * config.head_width;
  if (of_heads > kWidthMax) refuse("columns in a matrix", of_heads, kWidthMax);
}

Json parse_object(std::string_view text, const std::string& origin) {
  Json object;
  try {
    object = Json::parse(quote_non_finite(text));
  } catch (const Json::parse_error& error) {
    throw ConfigError(fmt::format("{}: not JSON: {}", origin, error.what()), "correct the file");
  }
  if (!object.is_object()) {
    throw ConfigError(fmt::format("{}: not a JSON object", origin), "correct the file");
  }
  return object;
}

[[noreturn]] void refuse_model(const std::string& model) {
  if (is_hub_name(model)) {
    throw ConfigError(
        fmt::format("model {}: there is no such directory, and nothing is downloaded", model),
        download_remedy(model));
  }
  const std::vector<std::string_view> names(preset_names().begin(), preset_names().end());
  throw ConfigError(
      fmt::format("model {}: neither a directory with a config.json nor a preset", model),
      fmt::format("did you mean {}? Presets: {}", nearest_name(model, names),
                  fmt::join(names, ", ")));
}

std::string read_text_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw IoError({.operation = "open", .path = path.string(), .error_number = errno});
  std::ostringstream text;
  text << stream.rdbuf();  // of an empty file this fails, too
  if (stream.bad() || text.bad()) {
    throw IoError({.operation = "read", .path = path.string(), .error_number = errno});
  }
  return text.str();
}

ModelConfig read_model_config(std::string_view json, const std::string& origin) {
  const Json object = parse_object(json, origin);
  const Keys keys(object, origin);
  ModelConfig config;
  config.name = origin;
  config.initializer_range = static_cast<float>(keys.number("initializer_range", 0.02));
  const std::string type = keys.text("model_type", "");
  if (type == "gpt2") {
    config.family = ModelFamily::kGpt2;
    check_architecture(keys, object, origin, {"GPT2LMHeadModel", "GPT2Model"});
    read_gpt2(keys, config);
  } else if (type == "llama") {
    config.family = ModelFamily::kLlama;
    check_architecture(keys, object, origin, {"LlamaForCausalLM", "LlamaModel"});
    read_llama(keys, config);
    config.rope = read_rope(object, origin);
  } else if (type.empty()) {
    keys.missing("model_type");
  } else {
    keys.refuse("model_type", "is not built; gpt2 and llama are");
  }
  config.dropout = read_dropout(keys);
  check_sizes(config, origin);
  return config;
}

}  // namespace

ModelConfig parse_model_config(std::string_view json, const std::string& origin,
                               const std::vector<std::string>& ignored_keys) {
  const std::string looked_at = without_keys(json, ignored_keys, origin);
  ModelConfig config = read_model_config(looked_at, origin);
  check_config_keys(looked_at, config.family, origin);
  config.json = json;
  config.ignored_keys = ignored_keys;
  return config;
}

ModelConfig parse_saved_config(std::string_view json, const std::string& origin) {
  ModelConfig config = read_model_config(json, origin);
  config.json = json;
  return config;
}

// "meta-llama/Llama-3.2-1B": two names of the letters that the hub allows.
bool is_hub_name(const std::string& model) {
  const std::size_t slash = model.find('/');
  const std::string_view name = std::string_view(model).substr(slash + 1);
  const auto is_name = [](std::string_view part) {
    return !part.empty() && part.front() != '.' && part.front() != '~' &&
           std::ranges::all_of(part, [](unsigned char c) {
             return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
           });
  };
  return slash != std::string::npos && is_name(std::string_view(model).substr(0, slash)) &&
         is_name(name);
}

std::string download_remedy(const std::string& model) {
  return fmt::format(
      "if it is a model of the Hugging Face hub, download it (for example with hf download {} "
      "--local-dir DIR) and give --model DIR",
      model);
}

ModelConfig load_model_config(const std::string& model,
                              const std::vector<std::string>& ignored_keys) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path file = fs::path(model) / "config.json";
  if (fs::exists(file, ignored)) {
    ModelConfig config = parse_model_config(read_text_file(file), file.string(), ignored_keys);
    const fs::path directory = fs::path(model).lexically_normal();
    config.name = directory.has_filename() ? directory.filename().string()
                                           : directory.parent_path().filename().string();
    return config;
  }
  const std::string_view json = preset_json(model);
  if (!json.empty()) return parse_model_config(json, model, ignored_keys);
  if (fs::is_directory(model, ignored)) {
    throw ConfigError(fmt::format("{}: no config.json in this directory", model),
                      "--model takes a Hugging Face model directory or a preset");
  }
  refuse_model(model);
}

std::string config_json_to_save(const ModelConfig& config) {
  return without_keys(config.json, config.ignored_keys, config.name);
}

}  // namespace terrace
