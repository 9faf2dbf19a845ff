#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/conversation_turns.h"
#include "runtime/jinja/value.h"

namespace terrace {

// A row's conversation, read from the keys of one of the forms.
struct ConversationForm {
  std::vector<Turn> turns;
  std::vector<std::string_view> keys;  // keys that other forms have too, and this one has read
  std::size_t context = 0;             // turns at the front that are never trained on
};

// Returns whether the row has a list of messages, under one of the names that such lists have.
bool has_message_list(const jinja::Mapping& row);

// Returns whether the row has a question and an answer, or an instruction.
bool has_question(const jinja::Mapping& row);

// Reads the form that a row without nulls has. Throws ConfigError, naming the key.
ConversationForm form_of_row(const jinja::Mapping& row, const std::string& place);

}  // namespace terrace
