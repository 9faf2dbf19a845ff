#include "runtime/model/config_reader.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json_depth.h"
#include "runtime/model/json_text.h"

namespace terrace {

struct ConfigReader::Object {
  nlohmann::json value;

  const nlohmann::json& at(const std::string& key) const { return value.at(key); }
  // Returns none where the value is not a whole number, or is far from all sizes.
  std::optional<std::int64_t> whole_number(const std::string& key) const {
    if (!at(key).is_number()) return std::nullopt;
    const auto number = at(key).get<double>();
    if (!(std::abs(number) <= 1e15) || number != std::trunc(number)) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
};

ConfigReader::ConfigReader(std::string_view json, const std::string& origin) : origin_(origin) {
  if (nests_deeper(json)) {
    throw ConfigError(
        fmt::format("{}: lists and objects are nested more than {} deep", origin, kJsonLevels),
        "correct the file");
  }
  auto parsed = std::make_shared<Object>();
  try {
    parsed->value = nlohmann::json::parse(quote_non_finite(json));
  } catch (const nlohmann::json::exception& error) {  // also for a number beyond a double
    throw ConfigError(fmt::format("{}: not JSON: {}", origin, error.what()), "correct the file");
  }
  if (!parsed->value.is_object()) {
    throw ConfigError(fmt::format("{}: not a JSON object", origin), "correct the file");
  }
  object_ = std::move(parsed);
}

ConfigReader::ConfigReader(std::shared_ptr<const Object> object, std::string origin)
    : object_(std::move(object)), origin_(std::move(origin)) {}

bool ConfigReader::has(const std::string& key) const {
  return names(key) && !object_->at(key).is_null();
}

bool ConfigReader::names(const std::string& key) const { return object_->value.contains(key); }

std::vector<std::string> ConfigReader::keys() const {
  std::vector<std::string> names;
  for (const auto& item : object_->value.items()) names.push_back(item.key());
  return names;
}

bool ConfigReader::is_object(const std::string& key) const {
  return names(key) && object_->at(key).is_object();
}

std::string ConfigReader::written(const std::string& key) const {
  return names(key) ? unquote_non_finite(object_->at(key).dump()) : "(absent)";
}

std::int64_t ConfigReader::count(const std::string& key) const {
  if (!has(key)) missing(key);
  const std::optional<std::int64_t> number = object_->whole_number(key);
  if (!number.has_value() || *number < 1) wrong(key, "a whole number of at least 1");
  return *number;
}

std::int64_t ConfigReader::count(const std::string& key, std::int64_t fallback) const {
  return has(key) ? count(key) : fallback;
}

std::int64_t ConfigReader::integer(const std::string& key, std::int64_t fallback) const {
  if (!has(key)) return fallback;
  const std::optional<std::int64_t> number = object_->whole_number(key);
  if (!number.has_value()) wrong(key, "a whole number");
  return *number;
}

std::int64_t ConfigReader::count_of(const std::string& key, const std::string& alias) const {
  if (!has(alias)) return count(key);
  if (has(key) && count(key) != count(alias)) {
    wrong(key, fmt::format("{}, the value of {}, which is another name of the same size",
                           written(alias), alias));
  }
  return count(alias);
}

double ConfigReader::number(const std::string& key) const {
  if (!has(key)) missing(key);
  const nlohmann::json& value = object_->at(key);
  if (!value.is_number() || !(value.get<double>() > 0.0)) wrong(key, "a number above 0");
  return value.get<double>();
}

double ConfigReader::number(const std::string& key, double fallback) const {
  return has(key) ? number(key) : fallback;
}

double ConfigReader::number_or_zero(const std::string& key, double fallback) const {
  if (!has(key)) return fallback;
  const nlohmann::json& value = object_->at(key);
  if (!value.is_number() || !(value.get<double>() >= 0.0)) wrong(key, "a number of at least 0");
  return value.get<double>();
}

bool ConfigReader::flag(const std::string& key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!object_->at(key).is_boolean()) wrong(key, "true or false");
  return object_->at(key).get<bool>();
}

std::string ConfigReader::text(const std::string& key, const std::string& fallback) const {
  if (!has(key)) return fallback;
  if (!object_->at(key).is_string()) wrong(key, "a string");
  return object_->at(key).get<std::string>();
}

std::vector<std::string> ConfigReader::texts(const std::string& key) const {
  if (!has(key)) return {};
  std::vector<std::string> all;
  const nlohmann::json& list = object_->at(key);
  if (!list.is_array()) wrong(key, "a list of names");
  for (const nlohmann::json& one : list) {
    if (!one.is_string()) wrong(key, "a list of names");
    all.push_back(one.get<std::string>());
  }
  return all;
}

std::vector<double> ConfigReader::numbers(const std::string& key) const {
  if (!has(key)) missing(key);
  std::vector<double> all;
  const nlohmann::json& list = object_->at(key);
  if (!list.is_array()) wrong(key, "a list of numbers");
  for (const nlohmann::json& one : list) {
    if (!one.is_number()) wrong(key, "a list of numbers");
    all.push_back(one.get<double>());
  }
  return all;
}

std::optional<ConfigReader> ConfigReader::object(const std::string& key) const {
  if (!has(key)) return std::nullopt;
  if (!object_->at(key).is_object()) wrong(key, "an object");
  auto inner = std::make_shared<Object>();
  inner->value = object_->at(key);
  return ConfigReader(std::move(inner), fmt::format("{}: {}", origin_, key));
}

void ConfigReader::refuse(const std::string& key, const std::string& why) const {
  throw ConfigError(fmt::format("{}: {} {} {}", origin_, key, written(key), why),
                    "this model needs a feature that is not built; choose another model");
}

void ConfigReader::missing(const std::string& key) const {
  throw ConfigError(fmt::format("{}: key {} is missing", origin_, key),
                    "is this the config.json of a whole model?");
}

void ConfigReader::wrong(const std::string& key, const std::string& wanted) const {
  throw ConfigError(fmt::format("{}: key {} is {}, not {}", origin_, key, written(key), wanted),
                    "correct the file");
}

}  // namespace terrace
