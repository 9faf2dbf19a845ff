#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "base/function_ref.h"

namespace terrace {

// A value of a JSON file. Errors name the file and the place in it. A value that is missing, or of
// another kind than is asked for, throws CorruptData. Valid as long as its JsonFile.
class JsonNode {
 public:
  // Returns the file, and the keys that lead to the value.
  const std::string& where() const { return where_; }

  bool is_null() const;
  bool is_text() const;
  bool is_array() const;
  bool is_object() const;

  std::string text() const;
  std::int64_t integer() const;

  // These are for an object. A key whose value is null counts as one that is not there.
  bool has(std::string_view key) const;
  // Returns whether the key is there, with null or another value.
  bool names(std::string_view key) const;
  JsonNode child(std::string_view key) const;
  std::string text(std::string_view key) const { return child(key).text(); }
  bool flag(std::string_view key, bool otherwise) const;
  void for_each_entry(FunctionRef<void(const std::string&, const JsonNode&)> take) const;

  // These are for an array.
  std::size_t size() const;
  JsonNode item(std::size_t index) const;
  void for_each_item(FunctionRef<void(const JsonNode&)> take) const;

  // Throws ConfigError naming a key that is not in the list: what it asks for is not built.
  void check_keys(std::initializer_list<std::string_view> known) const;
  // Throws ConfigError: "FILE: PLACE: what".
  [[noreturn]] void refuse(std::string_view what) const;
  // Throws CorruptData with the same text.
  [[noreturn]] void corrupt(std::string_view what) const;

 private:
  friend class JsonFile;
  JsonNode(const void* value, std::string where) : value_(value), where_(std::move(where)) {}

  const void* value_;  // of the parser's type, which headers do not name
  std::string where_;
};

// A JSON file in memory. Size and depth are bounded.
class JsonFile {
 public:
  // Throws IoError, and CorruptData for what is not JSON or is larger or deeper than a tokenizer's
  // files are.
  explicit JsonFile(const std::string& path);
  ~JsonFile();

  JsonNode root() const;

 private:
  struct Content;
  std::unique_ptr<Content> content_;
  std::string path_;
};

}  // namespace terrace
