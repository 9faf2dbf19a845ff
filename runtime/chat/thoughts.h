#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/conversation_turns.h"
#include "runtime/jinja/value.h"

// The thoughts of the assistant: under which keys messages have them, and templates read them.
namespace terrace {

struct Thought {
  std::size_t message;  // its index
  std::string key;   // "reasoning_content", "reasoning", "thinking"; or "content", before </think>
  std::string text;  // without white space at its ends
};

// Returns the thoughts of the assistant's turns. Throws ConfigError for one that is no text.
std::vector<Thought> thoughts_of(const std::vector<Turn>& turns, const std::string& place);

// Returns the content of a message behind the thought at its front; "" if the content is no text.
std::string_view answer_in_content(const jinja::Mapping& message);

// Returns the messages with thoughts under the key that the template reads: a thought is copied if
// it is there under one key, which the template does not read, and the template reads another of
// the keys.
std::vector<jinja::Value> with_thoughts_named(const std::vector<jinja::Value>& messages,
                                              std::string_view template_text);

}  // namespace terrace
