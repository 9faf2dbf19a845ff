#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

// Members of JSON documents that another program may have written. A member that is missing or has
// another type is no error. Thread-safe.
namespace terrace::report {

// Returns a member; null if there is none, or if `object` is no object.
const nlohmann::ordered_json& part_of(const nlohmann::ordered_json& object, const char* key);
// Returns a member that is a text; else an empty one.
std::string text_at(const nlohmann::ordered_json& object, const char* key);
std::optional<double> number_at(const nlohmann::ordered_json& object, const char* key);
// Returns whether a member is true.
bool is_true_at(const nlohmann::ordered_json& object, const char* key);

}  // namespace terrace::report
