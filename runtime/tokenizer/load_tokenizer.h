#pragma once

#include <memory>
#include <string>

#include "base/log.h"
#include "runtime/tokenizer/tokenizer.h"

namespace terrace {

// Reads a tokenizer: a tokenizer.json of Hugging Face's `tokenizers`, a SentencePiece model
// (.model), or a directory that has one of them, where tokenizer.json is taken before
// tokenizer.model. tokenizer_config.json, special_tokens_map.json and generation_config.json beside
// it may name the tokens that begin and end a document. docs/tokenizers.md says what is read and
// what is not.
//
// The ids are the same as with `tokenizers` and `sentencepiece`. Text that is not UTF-8 is read as
// Python's errors="replace" reads it. Throws ConfigError for what is not built, by its name, and
// for a path that has no tokenizer; CorruptData for a file that is not what it should be; IoError.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path, Log& log);

// Returns the tokenizer's file in the directory, or in the snapshot that hub_snapshot() finds in
// it: tokenizer.json or tokenizer.model; "" where there is none.
std::string find_tokenizer_file(const std::string& directory);

}  // namespace terrace
