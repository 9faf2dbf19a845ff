#pragma once

#include <memory>
#include <string>

#include "base/log.h"
#include "runtime/tokenizer/special_names.h"
#include "runtime/tokenizer/tokenizer.h"

namespace terrace {

// Reads a tokenizer.json of Hugging Face's `tokenizers`. Throws as load_tokenizer().
std::unique_ptr<Tokenizer> load_json_tokenizer(const std::string& path, const SpecialNames& names,
                                               Log& log);

}  // namespace terrace
