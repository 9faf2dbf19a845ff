#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "runtime/chat/conversation.h"

namespace terrace {

// Returns the part of a message that a text does not show, in words for a message to the user: its
// content behind a thought, or a call of a tool. Returns "" if the text shows all of them.
std::string missing_part(const jinja::Mapping& message, std::string_view text);

// Throws ConfigError if `text`, the rendered conversation, lacks a system message, a tool, or what
// one of `turns` says: templates can pass over these without a word. `turns` are the indices of the
// messages to train on.
//
// Templates leave thoughts out of earlier turns. A turn without its thought teaches to answer
// without thinking, so it may stand in a conversation, but is not trained on.
void check_shown(const Conversation& conversation, std::span<const std::size_t> turns,
                 std::string_view text, const std::string& place);

}  // namespace terrace
