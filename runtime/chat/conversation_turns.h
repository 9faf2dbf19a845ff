#pragma once

#include <string>
#include <vector>

#include "runtime/jinja/value.h"

namespace terrace {

// A message of a conversation.
struct Turn {
  jinja::Mapping message;  // with the text "role"
  std::string path;        // the key of the row that has it: "messages[0]"

  bool has_role(const char* role) const;
};

// Reads a list of messages, each with "role" and "content" or with "from" and "value", ShareGPT's
// names. Throws ConfigError, naming the key.
std::vector<Turn> turns_of_list(const jinja::Value& value, const std::string& key,
                                const std::string& place);

}  // namespace terrace
