#include "runtime/model/config_rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/model/json_text.h"
#include "runtime/model/rope_table.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

constexpr const char* kOlder = "rope_scaling";
constexpr const char* kNewer = "rope_parameters";
constexpr const char* kOriginal = "original_max_position_embeddings";
constexpr const char* kFullLayers = "full_attention";

constexpr auto kTypes = std::to_array<std::pair<std::string_view, RopeType>>({
    {"default", RopeType::kDefault},
    {"linear", RopeType::kLinear},
    {"dynamic", RopeType::kDynamic},
    {"llama3", RopeType::kLlama3},
    {"yarn", RopeType::kYarn},
    {"longrope", RopeType::kLongRope},
});

// The values that config.json gives outside an object of rotary parameters.
struct RopeContext {
  double theta = 0;                     // where the object has none
  std::int64_t original_positions = 0;  // in place of the object's; 0: the object's
  const RopeDefaults& defaults;
};

RopeType rope_type(const ConfigReader& keys, const std::string& key, bool only_longrope) {
  const std::string type = keys.text(key, "default");
  if (only_longrope) {
    if (type == "longrope" || type == "su" || type == "yarn") return RopeType::kLongRope;
    if (type == "default") return RopeType::kDefault;
    keys.refuse(key, "is not a scaling of this family; use longrope, su or yarn");
  }
  for (const auto& [name, value] : kTypes) {
    if (type == name) return value;
  }
  keys.refuse(key, "is not built; use default, linear, dynamic, llama3, yarn or longrope");
}

std::int64_t original_positions(const ConfigReader& rope, const RopeContext& context) {
  if (context.original_positions > 0) return context.original_positions;
  return rope.count(kOriginal, context.defaults.positions);
}

void read_llama3(const ConfigReader& rope, const RopeContext& context, RopeOptions& options) {
  options.factor = rope.number("factor");
  options.low_freq_factor = rope.number("low_freq_factor");
  options.high_freq_factor = rope.number("high_freq_factor");
  options.original_positions = original_positions(rope, context);
  if (options.high_freq_factor <= options.low_freq_factor) {
    rope.wrong("high_freq_factor",
               fmt::format("a number above low_freq_factor {}", options.low_freq_factor));
  }
}

void read_dynamic(const ConfigReader& rope, const RopeContext& context, RopeOptions& options) {
  options.factor = rope.number("factor");
  options.positions = context.defaults.positions;
  if (context.defaults.rotary_width <= 2) {
    rope.refuse("factor", "of dynamic rotary embeddings needs more than 2 rotated elements");
  }
}

// Returns how much a factor narrows the distribution of scores, by YaRN's measurements.
double yarn_scale(double factor, double weight) {
  return factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

void read_yarn(const ConfigReader& rope, const RopeContext& context, RopeOptions& options) {
  if (options.theta == 1.0) rope.refuse("rope_type", "needs a rope_theta other than 1");
  options.original_positions = original_positions(rope, context);
  const bool is_null = rope.names("factor") && !rope.has("factor");
  options.factor = is_null ? static_cast<double>(context.defaults.positions) /
                                 static_cast<double>(options.original_positions)
                           : rope.number("factor");
  const auto or_usual = [&](const char* key, double usual) {
    const double value = rope.number_or_zero(key, 0.0);
    return value == 0.0 ? usual : value;
  };
  options.beta_fast = or_usual("beta_fast", 32.0);
  options.beta_slow = or_usual("beta_slow", 1.0);
  // Python takes null for false.
  options.truncates = !rope.names("truncate") || rope.flag("truncate", false);
  const double scale = rope.number_or_zero("mscale", 0.0);
  const double scale_all = rope.number_or_zero("mscale_all_dim", 0.0);
  const double inferred =
      scale != 0.0 && scale_all != 0.0
          ? yarn_scale(options.factor, scale) / yarn_scale(options.factor, scale_all)
          : yarn_scale(options.factor, 1.0);
  options.attention_factor = rope.number_or_zero("attention_factor", inferred);
}

std::vector<double> longrope_factors(const ConfigReader& rope, const std::string& key,
                                     std::int64_t rotary_width) {
  std::vector<double> factors = rope.numbers(key);
  const bool are_positive = std::ranges::all_of(factors, [](double each) { return each > 0.0; });
  if (static_cast<std::int64_t>(factors.size()) != rotary_width / 2 || !are_positive) {
    rope.wrong(key, fmt::format("{} numbers above 0, one for each pair of rotated elements",
                                rotary_width / 2));
  }
  return factors;
}

void read_longrope(const ConfigReader& rope, const RopeContext& context, RopeOptions& options) {
  options.short_factors = longrope_factors(rope, "short_factor", context.defaults.rotary_width);
  options.long_factors = longrope_factors(rope, "long_factor", context.defaults.rotary_width);
  options.original_positions = original_positions(rope, context);
  const auto original = static_cast<double>(options.original_positions);
  const double factor =
      rope.number("factor", static_cast<double>(context.defaults.positions) / original);
  const double inferred =
      factor <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(factor) / std::log(original));
  options.attention_factor = rope.number_or_zero("attention_factor", inferred);
}

void read_scaling(const ConfigReader& rope, const RopeContext& context, RopeOptions& options) {
  switch (options.type) {
    case RopeType::kDefault:
      return;
    case RopeType::kLinear:
      options.factor = rope.number("factor");
      return;
    case RopeType::kDynamic:
      return read_dynamic(rope, context, options);
    case RopeType::kLlama3:
      return read_llama3(rope, context, options);
    case RopeType::kYarn:
      return read_yarn(rope, context, options);
    case RopeType::kLongRope:
      return read_longrope(rope, context, options);
  }
}

// Refuses numbers that give no angles. For instance, one original position has a logarithm of 0,
// which longrope divides by.
void check_angles(const ConfigReader& rope, const RopeOptions& options,
                  const RopeDefaults& defaults) {
  constexpr std::int64_t kWidthMax = 1 << 16;
  if (defaults.rotary_width > kWidthMax) {
    throw ConfigError(fmt::format("{}: {} elements of each head are rotated, but at most {} are "
                                  "built",
                                  rope.origin(), defaults.rotary_width, kWidthMax),
                      "is this the config.json of a language model?");
  }
  bool are_angles = std::isfinite(options.attention_factor);
  for (const std::int64_t length : {std::int64_t{1}, defaults.positions + 1}) {
    for (const float each : rope_frequencies(options, length, defaults.rotary_width)) {
      are_angles = are_angles && std::isfinite(each) && each > 0.0F;
    }
  }
  if (are_angles) return;
  throw ConfigError(fmt::format("{}: with rope_theta {}, these numbers give angles that are zero "
                                "or not finite",
                                rope.origin(), options.theta),
                    "correct the file");
}

void check_names(const ConfigReader& rope, const RopeDefaults& defaults) {
  for (const std::string& name : rope.keys()) {
    if (rope.is_object(name)) {
      rope.refuse(name, "(rotary embeddings that differ by layer) is not built");
    }
  }
  if (!rope.has("rope_type") && !rope.has("type")) {
    for (const char* key : {"factor", "short_factor", "long_factor"}) {
      if (rope.has(key)) rope.refuse(key, "is of a scaling without a rope_type");
    }
  }
  if (rope.has("rope_type") &&
      rope.text("type", rope.text("rope_type", "")) != rope.text("rope_type", "")) {
    rope.wrong("type", fmt::format("{} as rope_type is", rope.written("rope_type")));
  }
  if (!defaults.may_be_partial && rope.number("partial_rotary_factor", 1.0) != 1.0) {
    rope.refuse("partial_rotary_factor", "is not built");
  }
}

RopeOptions read_object(const ConfigReader& rope, const RopeContext& context) {
  check_names(rope, context.defaults);
  RopeOptions options;
  options.theta = rope.number("rope_theta", context.theta);
  options.type =
      rope_type(rope, rope.has("rope_type") ? "rope_type" : "type", context.defaults.only_longrope);
  read_scaling(rope, context, options);
  check_angles(rope, options, context.defaults);
  return options;
}

bool is_there(const std::optional<ConfigReader>& object) {
  return object.has_value() && !object->keys().empty();
}

[[noreturn]] void refuse_both(const std::string& origin, const std::string& one,
                              const std::string& other) {
  throw ConfigError(
      fmt::format("{}: {} and {} differ, but each version of transformers uses only one of them",
                  origin, one, other),
      "remove the wrong one from config.json");
}

void check_theta(const ConfigReader& config, const RopeOptions& options, const std::string& key) {
  if (!config.has("rope_theta") || config.number("rope_theta") == options.theta) return;
  refuse_both(config.origin(), fmt::format("rope_theta {}", config.written("rope_theta")),
              fmt::format("rope_theta {} of {}", options.theta, key));
}

void refuse_partial(const ConfigReader& config, const RopeDefaults& defaults) {
  if (!defaults.may_be_partial && config.number("partial_rotary_factor", 1.0) != 1.0) {
    config.refuse("partial_rotary_factor", "is not built");
  }
}

Json parse(const std::string& text) { return Json::parse(quote_non_finite(text)); }

// Returns the object of full layers, with the keys of rope_scaling in place of its own. Where the
// file has no such object, transformers begins with the default rope_type, which a `type` does not
// change.
ConfigReader with_older_keys(const ConfigReader& config, const std::optional<ConfigReader>& all) {
  const ConfigReader older = config.object(kOlder).value();
  const bool has_own = all.has_value() && all->has(kFullLayers);
  if (!has_own && older.has("type") && !older.has("rope_type")) {
    throw ConfigError(fmt::format("{}: key type is {}, but transformers ignores the key type here",
                                  older.origin(), older.written("type")),
                      "name the key rope_type");
  }
  Json keys = has_own ? parse(all->written(kFullLayers)) : Json::object();
  keys.update(parse(config.written(kOlder)));
  const std::string origin =
      has_own ? fmt::format("{}: {} with {}", all->origin(), kFullLayers, kOlder) : older.origin();
  return {unquote_non_finite(keys.dump()), origin};
}

// Refuses keys that transformers looks for outside the layer type's object, or not at all.
void check_of_layers(const ConfigReader& config, const ConfigReader& own,
                     const RopeOptions& options) {
  if (options.type == RopeType::kYarn && !options.truncates) {
    own.refuse("truncate",
               "is ignored by transformers for the layers of a type, where it is always true");
  }
  const bool has_original = options.type == RopeType::kLlama3 || options.type == RopeType::kYarn ||
                            options.type == RopeType::kLongRope;
  if (has_original && config.has(kOriginal) &&
      config.count(kOriginal) != options.original_positions) {
    config.wrong(kOriginal, fmt::format("{}, as for these layers in {}: transformers ignores the "
                                        "key outside",
                                        options.original_positions, own.origin()));
  }
}

}  // namespace

RopeOptions read_rope(const ConfigReader& config, const RopeDefaults& defaults) {
  refuse_partial(config, defaults);
  const RopeContext context = {
      .theta = config.number("rope_theta", defaults.theta),
      .original_positions = config.count(kOriginal, defaults.original_positions),
      .defaults = defaults};
  const std::optional<ConfigReader> older = config.object(kOlder);
  const std::optional<ConfigReader> newer = config.object(kNewer);
  RopeOptions options;
  options.theta = context.theta;
  if (is_there(older)) {
    options = read_object(*older, context);
  } else if (is_there(newer)) {
    options = read_object(*newer, context);
  }
  check_theta(config, options, is_there(older) ? kOlder : kNewer);
  if (is_there(older) && is_there(newer) && !(read_object(*newer, context) == options)) {
    refuse_both(config.origin(), kOlder, kNewer);
  }
  return options;
}

RopeOptions read_rope_of_layers(const ConfigReader& config, const std::string& layer_type,
                                const RopeDefaults& defaults) {
  refuse_partial(config, defaults);
  const bool is_full = layer_type == kFullLayers;
  const std::optional<ConfigReader> all = config.object(kNewer);
  if (all.has_value()) {
    for (const std::string& key : all->keys()) {
      if (all->has(key) && !all->is_object(key)) {
        all->wrong(key, "inside an object of full_attention or of sliding_attention");
      }
    }
  }
  std::optional<ConfigReader> own = all.has_value() ? all->object(layer_type) : std::nullopt;
  if (is_full && is_there(config.object(kOlder))) own = with_older_keys(config, all);
  RopeOptions options;
  options.theta = config.number(is_full ? "rope_theta" : "rope_local_base_freq", defaults.theta);
  if (!own.has_value()) return options;
  options = read_object(*own, {.theta = options.theta, .defaults = defaults});
  check_of_layers(config, *own, options);
  return options;
}

}  // namespace terrace
