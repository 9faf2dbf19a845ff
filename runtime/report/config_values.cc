#include "runtime/report/config_values.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <set>

#include "runtime/config/toml_text.h"

namespace terrace::report {
namespace {

// Returns the value in the spelling of config.toml.
std::string text_of_value(const toml::node& value) {
  if (const auto* const text = value.as_string()) return toml_string(text->get());
  if (const auto* const number = value.as_floating_point()) return toml_number(number->get());
  if (const auto* const number = value.as_integer()) return toml_integer(number->get());
  if (const auto* const yes = value.as_boolean()) return toml_bool(yes->get());
  const toml::array* const list = value.as_array();
  if (list == nullptr) return "a date or a table";
  std::vector<std::string> parts;
  for (const toml::node& part : *list) parts.push_back(text_of_value(part));
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

void flatten_table(const toml::table& table, const std::string& prefix, ConfigValues& values) {
  for (const auto& [key, value] : table) {
    const std::string name = prefix + std::string(key.str());
    if (const toml::table* const inner = value.as_table()) {
      flatten_table(*inner, name + ".", values);
      continue;
    }
    values[name] = text_of_value(value);
  }
}

}  // namespace

ConfigValues read_config_values(const std::string& text, std::vector<std::string>& remarks) {
  ConfigValues values;
  try {
    flatten_table(toml::parse(text), "", values);
  } catch (const toml::parse_error& problem) {
    remarks.push_back(fmt::format("config.toml is not TOML ({}), so its options are not compared.",
                                  problem.description()));
  }
  return values;
}

std::vector<DifferingOption> differing_options(const std::vector<ConfigValues>& runs) {
  std::set<std::string> keys;
  for (const ConfigValues& run : runs) {
    for (const auto& [key, value] : run) keys.insert(key);
  }
  std::vector<DifferingOption> differing;
  for (const std::string& key : keys) {
    if (key == "run_dir") continue;
    DifferingOption option = {.key = key, .values = {}};
    for (const ConfigValues& run : runs) {
      const auto found = run.find(key);
      option.values.push_back(found == run.end() ? "not set" : found->second);
    }
    const bool is_equal = std::ranges::all_of(
        option.values, [&](const std::string& value) { return value == option.values.front(); });
    if (!is_equal) differing.push_back(std::move(option));
  }
  return differing;
}

}  // namespace terrace::report
