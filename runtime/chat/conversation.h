#pragma once

#include <string>
#include <vector>

#include "runtime/chat/thoughts.h"
#include "runtime/jinja/value.h"

namespace terrace {

// A conversation, read from an object of JSON. docs/conversations.md lists the forms;
// python/terrace/data/conversation.py reads the same ones, with the same messages.
struct Conversation {
  std::vector<jinja::Value> messages;  // mappings with a text "role"
  jinja::Value tools;                  // a list of mappings, or None
  jinja::Mapping variables;            // further variables of the template
  std::vector<bool> trained;           // for each message; true only for the assistant's
  std::vector<Thought> thoughts;       // of the assistant
  std::string keys;                    // of the row that has it, for messages: "question", "answer"
};

// Returns whether a row is a conversation, and not a text, a prompt with its completion, or ids.
// read_conversation() may still refuse it.
bool is_conversation(const jinja::Mapping& row);

// Reads a row. `place` says where it is, and begins the messages. Throws ConfigError, naming the
// key, for a row of no form, or with a key that would be passed over although it has a meaning.
Conversation read_conversation(const jinja::Mapping& row, const std::string& place);

}  // namespace terrace
