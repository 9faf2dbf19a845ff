#pragma once

#include <string>

namespace terrace::fuzz {

// Loads a tokenizer, and lets it encode and decode some texts. The tokenizer may refuse with errors
// of ours.
void use_tokenizer(const std::string& path);

}  // namespace terrace::fuzz
