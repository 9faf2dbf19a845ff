#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/conversation.h"

namespace terrace {

// A line of a JSONL file: an object with `text`, with `prompt` and `completion`, with `input_ids`,
// or a conversation (runtime/chat/conversation.h). Beside `input_ids`, keys that say what is
// trained on, what is padding and where sequences end are read too (json_ids.h). Other keys are
// passed over.
struct JsonDocument {
  enum class Kind : std::uint8_t { kText, kPrompt, kIds, kConversation };
  Kind kind = Kind::kText;
  std::string text;                // or the completion
  std::string prompt;              // of kPrompt
  std::vector<std::int32_t> ids;   // of kIds
  std::vector<std::uint8_t> mask;  // of kIds, 0 and 1; empty: none is given
  std::vector<std::size_t> ends;   // of kIds, of the sequences in it; empty: the ids are one
  std::optional<Conversation> conversation;  // of kConversation
};

// Parses `line`. `place` begins the messages: "FILE:NUMBER". Throws CorruptData, with the parser's
// reason and column, for text that is no JSON object. Throws ConfigError, naming the key, for an
// object of another form or an id that is not below `vocabulary`.
JsonDocument parse_json_document(std::string_view line, const std::string& place,
                                 std::int64_t vocabulary);

}  // namespace terrace
