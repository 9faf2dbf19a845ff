#pragma once

#include <memory>
#include <string>

#include "base/log.h"
#include "runtime/tokenizer/tokenizer.h"

// The values of --tokenizer: auto, which is the model directory's own tokenizer, or bytes where it
// has none; bytes; or the path of a tokenizer.
namespace terrace {

// Returns the path that a choice means; "" for bytes. `model_directory` need not be one.
std::string tokenizer_path(const std::string& choice, const std::string& model_directory);

// Returns the tokenizer that a choice means. Throws as load_tokenizer(), and ConfigError for auto
// where the model directory has a tokenizer that is not read.
std::unique_ptr<Tokenizer> choose_tokenizer(const std::string& choice,
                                            const std::string& model_directory, Log& log);

}  // namespace terrace
