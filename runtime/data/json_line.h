#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace terrace {

// The remedy for a line that has none of the forms of json_document.h.
inline constexpr const char* kJsonLineForms =
    "give each line \"text\", or \"prompt\" and \"completion\", or \"input_ids\" with an optional "
    "\"loss_mask\", or a conversation, for example \"messages\" (docs/conversations.md)";

// The whole numbers that a list may have: those in [low, high).
struct JsonNumbers {
  std::int64_t low = 0;
  std::int64_t high = 0;
  bool takes_bool = false;  // true and false are 1 and 0
  const char* remedy = "";  // for another number
};

// The object of a line of JSON, and where it stands.
class JsonLine {
 public:
  // Parses the line. `place` begins all messages. Throws CorruptData, with the parser's reason and
  // column, for text that is no JSON object.
  JsonLine(std::string_view text, std::string place);
  ~JsonLine();
  JsonLine(const JsonLine&) = delete;
  JsonLine& operator=(const JsonLine&) = delete;

  const std::string& place() const { return place_; }
  // Returns whether the line has the key. One whose value is null counts as absent.
  bool has(std::string_view key) const;
  // Returns whether the line has the key with a text as its value.
  bool has_text(std::string_view key) const;
  // Returns the line's keys, in alphabetical order.
  std::vector<std::string> keys() const;
  // Return the value of a key that the line has. Throw ConfigError, which names the key, for a
  // value of another kind.
  std::string text(std::string_view key) const;
  std::vector<std::int64_t> numbers(std::string_view key, const JsonNumbers& allowed) const;
  // Returns the error for the value of a key.
  ConfigError wrong(std::string_view key, std::string_view what, const std::string& remedy) const;

 private:
  struct Object;

  std::string place_;
  std::unique_ptr<const Object> object_;
};

}  // namespace terrace
