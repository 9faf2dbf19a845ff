#include "runtime/config/config_file.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "runtime/config/unknown_flag.h"

namespace terrace {
namespace {

std::string read_text(const std::string& path) {
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  const bool is_file = !std::filesystem::is_directory(path);
  if (!stream.is_open() || stream.bad() || !is_file) {
    throw ConfigError(fmt::format("--config {}: {}", path, std::strerror(is_file ? errno : EISDIR)),
                      "name a readable TOML file");
  }
  return text.str();
}

// Returns a value as it would be written after the flag; unset for a value that has no such form.
std::optional<std::string> flag_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return fmt::format("{}", number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "on" : "off";
  return std::nullopt;
}

class Reader {
 public:
  Reader(const std::string& path, std::span<const FlagSpec> flags) : path_(path), flags_(flags) {
    for (const FlagSpec& flag : flags) {
      keys_.emplace_back(flag.name);
      std::replace(keys_.back().begin(), keys_.back().end(), '-', '_');
    }
  }

  std::vector<std::optional<FlagValue>> read(const toml::table& table) const {
    std::vector<std::optional<FlagValue>> values(flags_.size());
    for (const auto& [name, node] : table) {
      const std::string key(name.str());
      const auto found = std::find(keys_.begin(), keys_.end(), key);
      if (found == keys_.end()) refuse_key(key, node);
      const auto flag = static_cast<std::size_t>(found - keys_.begin());
      values[flag].emplace(fmt::format("{}: {}", path_, key), texts(flags_[flag], key, node));
    }
    return values;
  }

 private:
  [[noreturn]] void refuse_key(const std::string& key, const toml::node& node) const {
    if (node.is_table()) {
      throw ConfigError(fmt::format("{}: {} is a table", path_, key),
                        "write all keys at the top of the file, without tables");
    }
    throw unknown_key_error(path_, key, flags_);
  }

  [[noreturn]] void refuse_value(const std::string& key, const std::string& remedy) const {
    throw ConfigError(fmt::format("{}: {} has a value of the wrong kind", path_, key), remedy);
  }

  std::vector<std::string> texts(const FlagSpec& flag, const std::string& key,
                                 const toml::node& node) const {
    if (const std::optional<std::string> text = flag_text(node)) return {*text};
    const bool takes_many = flag.arity == FlagArity::kList || flag.arity == FlagArity::kRepeated;
    const toml::array* array = node.as_array();
    if (array == nullptr) refuse_value(key, "give a string, a number, true or false");
    if (!takes_many) refuse_value(key, "give one value, not a list");
    if (array->empty()) refuse_value(key, "leave the key out, or list at least one value");
    std::vector<std::string> texts;
    for (const toml::node& element : *array) {
      const std::optional<std::string> text = flag_text(element);
      if (!text) refuse_value(key, "list strings only");
      texts.push_back(*text);
    }
    return texts;
  }

  const std::string& path_;
  std::span<const FlagSpec> flags_;
  std::vector<std::string> keys_;
};

}  // namespace

std::vector<std::optional<FlagValue>> read_config_file(const std::string& path,
                                                       std::span<const FlagSpec> flags) {
  const std::string text = read_text(path);
  try {
    return Reader(path, flags).read(toml::parse(text, path));
  } catch (const toml::parse_error& error) {
    throw ConfigError(
        fmt::format("{}, line {}: {}", path, error.source().begin.line, error.description()),
        "correct the file");
  }
}

}  // namespace terrace
