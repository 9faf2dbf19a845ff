#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// A line of a JSONL file: an object with `text`, with `prompt` and `completion`, or with
// `input_ids` and perhaps `loss_mask`. Other keys are passed over, except `labels` beside
// `input_ids` without `loss_mask`. That is refused, because labels say what is trained on.
struct JsonDocument {
  enum class Kind : std::uint8_t { kText, kPrompt, kIds };
  Kind kind = Kind::kText;
  std::string text;                // or the completion
  std::string prompt;              // of kPrompt
  std::vector<std::int32_t> ids;   // of kIds
  std::vector<std::uint8_t> mask;  // of kIds, 0 and 1; empty: none is given
};

// Parses `line`. `place` begins the messages: "FILE:NUMBER". Throws CorruptData, with the parser's
// reason and column, for text that is no JSON object. Throws ConfigError, naming the key, for an
// object of another form or an id that is not below `vocabulary`.
JsonDocument parse_json_document(std::string_view line, const std::string& place,
                                 std::int64_t vocabulary);

}  // namespace terrace
