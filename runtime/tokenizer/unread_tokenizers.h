#pragma once

#include <string>
#include <string_view>

// Tokenizers in forms that are not read.
namespace terrace {

// Throws ConfigError, which names the files, if the directory has such a tokenizer, or a
// tokenizer.json that is a link to nothing. For a directory without tokenizer.json and
// tokenizer.model: without this check its text would be read as bytes. A path that is no directory
// has none.
void refuse_unread_tokenizer(const std::string& directory);

// Throws ConfigError if the name of the file is the name of such a tokenizer.
void refuse_unread_tokenizer_file(const std::string& path);

// Throws ConfigError if `content`, of the file `path`, has the form of tiktoken: lines with a piece
// in base64 and its rank.
void refuse_tiktoken(std::string_view content, const std::string& path);

}  // namespace terrace
