#include "runtime/model/config_rope.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "base/error.h"

namespace terrace {
namespace {

constexpr const char* kOlder = "rope_scaling";
constexpr const char* kNewer = "rope_parameters";

RopeType rope_type(const ConfigReader& keys, const std::string& key) {
  const std::string type = keys.text(key, "default");
  if (type == "default") return RopeType::kDefault;
  if (type == "linear") return RopeType::kLinear;
  if (type == "llama3") return RopeType::kLlama3;
  keys.refuse(key, "is not built; default, linear and llama3 are");
}

void read_llama3_rope(const ConfigReader& rope, RopeOptions& options) {
  options.low_freq_factor = rope.number("low_freq_factor");
  options.high_freq_factor = rope.number("high_freq_factor");
  options.original_positions = rope.count("original_max_position_embeddings");
  if (options.high_freq_factor <= options.low_freq_factor) {
    rope.wrong("high_freq_factor",
               fmt::format("above low_freq_factor {}", options.low_freq_factor));
  }
}

// `rope` is what is under one of the two names; `theta` that of rope_theta beside it.
RopeOptions read_object(const ConfigReader& rope, double theta) {
  for (const std::string& name : rope.keys()) {
    if (rope.is_object(name)) {
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

void check_theta(const ConfigReader& config, const RopeOptions& options, const std::string& key) {
  if (!config.has("rope_theta") || config.number("rope_theta") == options.theta) return;
  refuse_both(config.origin(), fmt::format("rope_theta {}", config.written("rope_theta")),
              fmt::format("rope_theta {} of {}", options.theta, key));
}

}  // namespace

RopeOptions read_rope(const ConfigReader& config, const RopeDefaults& defaults) {
  if (config.number("partial_rotary_factor", 1.0) != 1.0) {
    config.refuse("partial_rotary_factor", "is not built");
  }
  const double theta = config.number("rope_theta", defaults.theta);
  const auto is_there = [](const std::optional<ConfigReader>& object) {
    return object.has_value() && !object->keys().empty();
  };
  const std::optional<ConfigReader> older = config.object(kOlder);
  const std::optional<ConfigReader> newer = config.object(kNewer);
  RopeOptions options;
  options.theta = theta;
  if (is_there(older)) {
    options = read_object(*older, theta);
  } else if (is_there(newer)) {
    options = read_object(*newer, theta);
  }
  check_theta(config, options, is_there(older) ? kOlder : kNewer);
  if (is_there(older) && is_there(newer) && !(read_object(*newer, theta) == options)) {
    refuse_both(config.origin(), kOlder, kNewer);
  }
  return options;
}

RopeOptions read_rope_of_layers(const ConfigReader& config, const std::string& layer_type,
                                const RopeDefaults& defaults) {
  const std::optional<ConfigReader> all = config.object(kNewer);
  const std::optional<ConfigReader> own = all.has_value() ? all->object(layer_type) : std::nullopt;
  RopeOptions options;
  options.theta = defaults.theta;
  return own.has_value() ? read_object(*own, defaults.theta) : options;
}

}  // namespace terrace
