#include "runtime/report/json_members.h"

#include <nlohmann/json.hpp>

namespace terrace::report {

using nlohmann::ordered_json;

const ordered_json& part_of(const ordered_json& object, const char* key) {
  static const ordered_json kNothing;
  return object.is_object() && object.contains(key) ? object[key] : kNothing;
}

std::string text_at(const ordered_json& object, const char* key) {
  const ordered_json& value = part_of(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::optional<double> number_at(const ordered_json& object, const char* key) {
  const ordered_json& value = part_of(object, key);
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

bool is_true_at(const ordered_json& object, const char* key) {
  const ordered_json& value = part_of(object, key);
  return value.is_boolean() && value.get<bool>();
}

}  // namespace terrace::report
