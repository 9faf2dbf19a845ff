#pragma once

#include <memory>
#include <string>

#include "runtime/tokenizer/special_names.h"
#include "runtime/tokenizer/tokenizer.h"

namespace terrace {

// Reads a model of SentencePiece, whose own library turns text into ids. Throws as
// load_tokenizer().
std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path, const SpecialNames& names);

}  // namespace terrace
