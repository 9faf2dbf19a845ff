#pragma once

#include <string>

namespace terrace {

// Returns the content of a file of a tokenizer. Throws IoError, CorruptData for one that is larger
// than any tokenizer is, and ConfigError for a pointer of Git LFS.
std::string read_tokenizer_file(const std::string& path);

}  // namespace terrace
