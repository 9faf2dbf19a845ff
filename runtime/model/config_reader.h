#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// Reads the keys of a config.json, or of an object in it. `origin` names it in messages. A function
// that does not find what it wants throws ConfigError, naming the file, the key and what was
// wanted. A key that is null counts as absent, unless a function says otherwise.
class ConfigReader {
 public:
  // Throws ConfigError for a text that is no JSON object.
  ConfigReader(std::string_view json, const std::string& origin);

  const std::string& origin() const { return origin_; }
  bool has(const std::string& key) const;
  // Returns whether the key is there, even if it is null.
  bool names(const std::string& key) const;
  std::vector<std::string> keys() const;
  bool is_object(const std::string& key) const;
  // Returns the value as it stands in the file.
  std::string written(const std::string& key) const;

  // Returns a whole number of at least one. JSON writers may give 4096.0.
  std::int64_t count(const std::string& key) const;
  std::int64_t count(const std::string& key, std::int64_t fallback) const;
  // Returns a whole number of either sign.
  std::int64_t integer(const std::string& key, std::int64_t fallback) const;
  // Returns the value of a key that has two names. Throws ConfigError if both are there and differ.
  std::int64_t count_of(const std::string& key, const std::string& alias) const;
  // Returns a number above 0.
  double number(const std::string& key) const;
  double number(const std::string& key, double fallback) const;
  // Returns a number from 0 on.
  double number_or_zero(const std::string& key, double fallback) const;
  bool flag(const std::string& key, bool fallback) const;
  std::string text(const std::string& key, const std::string& fallback) const;
  std::vector<std::string> texts(const std::string& key) const;
  std::vector<double> numbers(const std::string& key) const;
  // Returns a reader of the object whose origin names the key too; none when the key is absent.
  std::optional<ConfigReader> object(const std::string& key) const;

  // Throws ConfigError, because `key` asks for something that this program does not do.
  [[noreturn]] void refuse(const std::string& key, const std::string& why) const;
  [[noreturn]] void missing(const std::string& key) const;
  // Throws ConfigError, because `key` has a value that is not `wanted`.
  [[noreturn]] void wrong(const std::string& key, const std::string& wanted) const;

 private:
  struct Object;
  ConfigReader(std::shared_ptr<const Object> object, std::string origin);

  std::shared_ptr<const Object> object_;
  std::string origin_;
};

}  // namespace terrace
