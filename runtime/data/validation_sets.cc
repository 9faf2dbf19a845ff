#include "runtime/data/validation_sets.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"

namespace terrace {
namespace {

constexpr std::string_view kNameCharacters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";

// Returns where the "=" after a name is; npos where the text is a path alone.
std::size_t end_of_name(const std::string& text) {
  const std::size_t equals = text.find('=');
  return text.find('/') < equals ? std::string::npos : equals;
}

[[noreturn]] void refuse_set(const std::string& text, std::string_view problem,
                             const std::string& remedy) {
  throw ConfigError(fmt::format("--validation-data {}: {}", text, problem), remedy);
}

void check_name(const std::string& text, const std::string& name) {
  const std::string remedy = fmt::format("write it as NAME=PATH, or as ./{} if it is a path", text);
  if (name.empty()) refuse_set(text, "the name of the set is empty", remedy);
  if (name.size() > kMostNameBytes) {
    refuse_set(text, fmt::format("the name has more than {} characters", kMostNameBytes), remedy);
  }
  if (name.find_first_not_of(kNameCharacters) != std::string::npos) {
    refuse_set(text, "a name may contain only letters, digits, _, - and .", remedy);
  }
}

// Returns the set of a name, for one more of its paths. It is the last set, or a new one.
ValidationSet& set_called(std::vector<ValidationSet>& sets, const std::string& text,
                          const std::string& name) {
  if (!sets.empty() && sets.back().name == name) return sets.back();
  if (std::ranges::find(sets, name, &ValidationSet::name) != sets.end()) {
    refuse_set(text, fmt::format("the name {} was already given, before another one", name),
               "give the paths of a set one after the other, or another name");
  }
  return sets.emplace_back(ValidationSet{name, {}});
}

}  // namespace

std::vector<ValidationSet> parse_validation_sets(const std::vector<std::string>& texts) {
  ValidationSet unnamed;
  std::vector<ValidationSet> sets;
  for (const std::string& text : texts) {
    const std::size_t equals = end_of_name(text);
    const bool is_named = equals != std::string::npos;
    const std::string path = is_named ? text.substr(equals + 1) : text;
    if (is_named) check_name(text, text.substr(0, equals));
    if (path.empty()) refuse_set(text, "the path is missing", "write it as NAME=PATH, or as PATH");
    ValidationSet& set = is_named ? set_called(sets, text, text.substr(0, equals)) : unnamed;
    if (std::ranges::find(set.paths, path) != set.paths.end()) {
      refuse_set(text, "the set has this path already", "give it only once");
    }
    set.paths.push_back(path);
  }
  if (!unnamed.paths.empty()) sets.insert(sets.begin(), std::move(unnamed));
  return sets;
}

std::vector<std::string> texts_of(const std::vector<ValidationSet>& sets) {
  std::vector<std::string> texts;
  for (const ValidationSet& set : sets) {
    for (const std::string& path : set.paths) {
      if (!set.name.empty()) {
        texts.push_back(fmt::format("{}={}", set.name, path));
      } else {
        // A path that looks as if it began with a name gets a directory in front.
        texts.push_back(end_of_name(path) == std::string::npos ? path : "./" + path);
      }
    }
  }
  return texts;
}

}  // namespace terrace
