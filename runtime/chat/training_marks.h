#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/chat/conversation_turns.h"
#include "runtime/jinja/value.h"

// The keys that say whether a message is trained on.
namespace terrace {

// Returns for each turn whether it is trained on, and removes the marks from the messages. Only
// turns of the assistant behind the first `context` turns can be trained on. Throws ConfigError for
// a mark whose meaning or value is not clear.
std::vector<bool> take_training_marks(std::vector<Turn>& turns, std::size_t context,
                                      const std::string& place);

// Throws ConfigError if the row itself has a key that could say what is trained on.
void check_row_marks(const jinja::Mapping& row, const std::string& place);

}  // namespace terrace
