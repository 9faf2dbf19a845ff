#pragma once

#include <string>

namespace terrace::fuzz {

// Loads a tokenizer, and lets it encode and decode some texts. Errors of ours are good answers.
void use_tokenizer(const std::string& path);

}  // namespace terrace::fuzz
